"""``paceline tune``: the slow loop, offline here or live in a running server."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.database_url import without_password
from tuner.cli.admin_client import AdminClient
from tuner.cli.failures import USAGE, CommandError
from tuner.cli.operator import DEFAULT_SERVER, Server, Token
from tuner.cli.output import Format, Output, make_console, print_data
from tuner.cli.service import Config, Model, can_be_written, given, listed, run_console, starting
from tuner.cli.tuning_view import print_tuning
from tuner.settings_loader import load_settings
from tuner.wording import program

OFFLINE = (
    "config",
    "model",
    "ground",
    "routes",
    "trials",
    "rounds",
    "patience",
    "sampler",
    "study",
    "storage",
    "out",
    "concurrency",
    "prompts",
    "tokens",
    "trace",
)
SHIPPED_TRACE = "tuner/replay/traces/workload.npz"
"""It comes with the package, and has every route and language of the workload."""
LIVE = ("start", "stop", "revert", "reason", "server", "token", "output")


def tune(
    ctx: typer.Context,
    config: Config = None,
    model: Model = None,
    ground: Annotated[
        str, typer.Option("--on", help="engine: serve the workload here; replay: a recorded trace.")
    ] = "engine",
    routes: Annotated[
        str | None, typer.Option("--routes", help="R,..: a study for each; all traffic in one unless given.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Candidates at most, production among them.")] = 30,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="Pairs of candidate and production a trial.")] = 3,
    patience: Annotated[int, typer.Option("--patience", min=1, help="Stop after so many without improvement.")] = 10,
    sampler: Annotated[str | None, typer.Option("--sampler", help="tpe or gp; setting tune.sampler.")] = None,
    study: Annotated[
        str | None, typer.Option("--study", help="Its name; the same command goes on with its own unless given.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option("--storage", help="SQLAlchemy URL; setting tune.storage.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write the settings that beat production.",
            show_default=False,
            callback=can_be_written,
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="engine: requests at a time.")] = 4,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="engine: prompts of a round.")] = 12,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="engine: longest output.")] = 64,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help=f"replay: a file of `paceline trace record`, or {SHIPPED_TRACE}, which comes with the package.",
            show_default=False,
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Show the study of a running server.")] = False,
    start: Annotated[bool, typer.Option("--start", help="live: begin it, or go on.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="live: end it; what was adopted stays.")] = False,
    revert: Annotated[bool, typer.Option("--revert", help="live: end it, and take back what was adopted.")] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", help="live: why; it is audited.", show_default=False)
    ] = None,
    server: Server = DEFAULT_SERVER,
    token: Token = None,
    output: Output = Format.TABLE,
) -> None:
    """Search settings that beat production: n-gram match lengths, confidence stops, draft temperature, prefill chunk,
    margin. Ends with 3 when nothing does."""
    _refuse_unread(ctx, LIVE if live else OFFLINE, "without --live" if not live else "with --live")
    if live:
        _live(AdminClient(server, token), start=start, stop=stop, revert=revert, reason=reason, output=output)
        return
    settings = load_settings(config, given({"model": {"path": model}})).settings
    scopes = _scopes(routes, list(settings.routes))
    if ground not in ("engine", "replay"):
        raise typer.BadParameter(f"{ground!r} is none; give engine or replay.", param_hint="--on")
    if trace is None and ground == "replay":
        raise typer.BadParameter(
            f"--on replay reads a trace: give a file of `paceline trace record`, or {SHIPPED_TRACE} of the package.",
            param_hint="--trace",
        )
    if trace is not None and ground != "replay":
        raise typer.BadParameter("only --on replay reads a trace.", param_hint="--trace")
    chosen: Any = settings.tune.sampler if sampler is None else sampler
    for option, text in (("--study", study), ("--storage", storage)):
        if text is not None and not text.strip():
            raise typer.BadParameter("it is empty: give one, or leave the option out.", param_hint=option)
    if chosen not in ("tpe", "gp"):
        raise typer.BadParameter(f"{chosen!r} is none; give tpe or gp.", param_hint="--sampler")
    with starting():
        from tuner.tune.knobs import Ground
        from tuner.tune.options import TuneOptions
        from tuner.tune.run import run_tune
        from tuner.tune.search import SearchOptions

        options = TuneOptions(
            ground=Ground(ground),
            scopes=scopes,
            search=SearchOptions(trials, rounds, patience),
            sampler=chosen,
            study=study,
            storage=storage,
            out=out,
            concurrency=concurrency,
            prompts=prompts,
            tokens=tokens,
            trace=trace,
        )
        raise typer.Exit(run_tune(settings, options, run_console(), _command(ctx)))


def _command(ctx: typer.Context) -> str:
    """The command line that searches the same: every option that was given, as it was given, but no password."""
    parts = [program(), "tune"]
    for parameter in ctx.command.params:
        name = str(parameter.name)
        source = ctx.get_parameter_source(name)
        if name in OFFLINE and source is not None and source.name == "COMMANDLINE":
            value = str(ctx.params[name])
            parts += [parameter.opts[0], without_password(value) if name == "storage" else value]
    return shlex.join(parts)


def _scopes(routes: str | None, configured: list[str]) -> list[str]:
    if routes is None:
        return ["*"]
    chosen = list(dict.fromkeys(listed(routes)))
    for route in chosen:
        if route not in configured:
            known = ", ".join(configured)
            raise typer.BadParameter(f"{route!r} is not configured; use some of {known}.", param_hint="--routes")
    if not chosen:
        raise typer.BadParameter("give at least one route, or leave the option out.", param_hint="--routes")
    return chosen


def _refuse_unread(ctx: typer.Context, reads: tuple[str, ...], when: str) -> None:
    """An option that would be ignored is refused."""
    options = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    for name, option in options.items():
        source = ctx.get_parameter_source(str(name))
        if name not in (*reads, "live") and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it is not read {when}.", param_hint=option)


def _live(client: AdminClient, *, start: bool, stop: bool, revert: bool, reason: str | None, output: Format) -> None:
    if start + stop + revert > 1:
        raise CommandError("Give one of --start, --stop and --revert, or none to show the study.", USAGE)
    if (start or stop or revert) is not (reason is not None):
        raise CommandError("Give --reason TEXT with --start, --stop or --revert, and only with them.", USAGE)
    if start:
        found = client.post("tuning", body={"reason": reason})
    elif stop or revert:
        found = client.delete("tuning", query={"reason": reason or "", "revert": str(revert).lower()})
    else:
        found = client.get("tuning")
    if output is Format.TABLE:
        print_tuning(make_console(), found)
    else:
        print_data(found, output)

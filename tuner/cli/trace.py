"""``paceline trace``: record what drafters would have made of the workload, and hold replays against the engine."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.cli.failures import CommandError
from tuner.cli.service import Config, JsonFile, Model, can_be_written, given, listed, run_console, starting
from tuner.settings_loader import LoadedSettings, load_settings
from tuner.wording import program
from tuner.workload import MAX_OUTPUT_TOKENS, ROUTES


def record(
    out: Annotated[Path, typer.Option("--out", help="The file to write, .npz.", callback=can_be_written)],
    config: Config = None,
    model: Model = None,
    routes: Annotated[
        str | None, typer.Option("--routes", help=f"Some of {', '.join(ROUTES)}; all unless given.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", min=1, help="Of each route; every prompt once unless given.", show_default=False),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=2, max=MAX_OUTPUT_TOKENS, help="Longest output.")
    ] = MAX_OUTPUT_TOKENS,
) -> None:
    """Serve the workload plain, and record what every drafter would have offered at each position; no text is kept."""
    chosen = ROUTES if routes is None else tuple(dict.fromkeys(listed(routes)))
    for route in chosen:
        if route not in ROUTES:
            raise typer.BadParameter(
                f"{route!r} is no route of the workload; use some of {', '.join(ROUTES)}.", param_hint="--routes"
            )
    if not chosen:
        raise typer.BadParameter("give at least one route, or leave the option out.", param_hint="--routes")
    settings = load_settings(config, given({"model": {"path": model}})).settings
    with starting():
        from tuner import trace_runs
        from tuner.replay.recording import RecordingError

        ask = trace_runs.RecordAsk(out, chosen, requests or 0, tokens)
        try:
            trace_runs.record(settings, ask, run_console())
        except RecordingError as error:
            raise CommandError(str(error)) from error


def verify(
    config: Config = None,
    model: Model = None,
    drafters: Annotated[
        str, typer.Option("--drafters", help="Drafters to hold against the engine, beside plain.")
    ] = "suffix,smollm2-135m-general",
    tokens: Annotated[int, typer.Option("--tokens", min=3, max=MAX_OUTPUT_TOKENS, help="Length of each output.")] = 33,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="Each cell so often, the order reversed.")] = 3,
    json_path: JsonFile = None,
) -> None:
    """Predict tokens per second of fixed arms from a recording, and measure them; ends with 3 where they differ."""
    chosen = tuple(dict.fromkeys(listed(drafters)))
    if not chosen:
        raise typer.BadParameter("give at least one drafter, or leave the option out.", param_hint="--drafters")
    loaded = load_settings(config, given({"model": {"path": model}}))
    with starting():
        from tuner import trace_runs
        from tuner.replay.recording import RecordingError

        command = shlex.join((program(), *sys.argv[1:]))
        ask = trace_runs.VerifyAsk(chosen, tokens, rounds, json_path, command, measured_with(loaded))
        try:
            raise typer.Exit(trace_runs.verify(loaded.settings, ask, run_console()))
        except RecordingError as error:
            raise CommandError(str(error)) from error


def measured_with(loaded: LoadedSettings) -> dict[str, Any]:
    """What was set of the target and the engine, by dotted name: with the command, what it takes to measure it again.
    Of folders the name alone."""
    return {
        name: [_last_part(one) for one in value] if isinstance(value, list) else _last_part(value)
        for name, value, _ in loaded.values()
        if name in loaded.origins and name.startswith(("model.", "engine."))
    }


def _last_part(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) else value

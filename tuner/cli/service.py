"""Commands that run something here. What they run, and the tensor libraries with it, is imported when one is called."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tuner.bench.options import MIXED, READS, SCENARIOS, BenchOptions
from tuner.cli.failures import CommandError
from tuner.cli.output import PLAIN_WIDTH, Format, Output, make_console, print_data, unpadded
from tuner.cli.tables import print_settings
from tuner.output_file import OutputFileError, check
from tuner.settings_loader import CONFIG_VARIABLE, load_settings

Config = Annotated[
    Path | None, typer.Option("--config", help=f"A YAML file; also {CONFIG_VARIABLE}.", show_default=False)
]
Model = Annotated[
    str | None, typer.Option("--model", help="A folder or a Hugging Face id; setting model.path.", show_default=False)
]


def can_be_written(path: Path | None) -> Path | None:
    """The callback of an option that names a file to be written: known before minutes of work, and not after them."""
    if path is not None:
        try:
            check(path)
        except OutputFileError as error:
            raise typer.BadParameter(str(error)) from error
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        help="Write the result there too.",
        show_default=False,
        callback=can_be_written,
    ),
]

_MEASURED = tuple(dict.fromkeys(name for names in READS.values() for name in names))
"""Every option that some scenario reads."""
ROOMS = ("policies", "kernels", "engine", "tuner")
"""Ours: one that is missing is a fault, and no extra."""


def serve(
    config: Config = None,
    model: Model = None,
    host: Annotated[str | None, typer.Option("--host", help="Setting server.host.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option("--port", help="Setting server.port.", show_default=False)] = None,
    admin_port: Annotated[
        int | None, typer.Option("--admin-port", help="Setting admin.port.", show_default=False)
    ] = None,
) -> None:
    """Serve a model with an OpenAI-compatible API, and tune speculation while it serves."""
    overrides = given({"model": {"path": model}, "server": {"host": host, "port": port}, "admin": {"port": admin_port}})
    settings = load_settings(config, overrides).settings
    with starting():
        from tuner import root

        raise typer.Exit(root.serve(settings, run_console()))


def demo(
    config: Config = None,
    model: Model = None,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, max=5.0, help="How long traffic runs.")] = 5.0,
    json_path: JsonFile = None,
) -> None:
    """Serve the default model to a mix of traffic for a few minutes, and show what is learned."""
    loaded = load_settings(config, given({"model": {"path": model}}))
    settings = loaded.settings
    with starting():
        from tuner import demo as runner

        if "database.url" not in loaded.origins:  # neither does `serve` go on from a demo, nor a demo from another
            url = f"sqlite:///{tempfile.mkdtemp(prefix='paceline-demo-')}/paceline.db"
            settings = settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})
        raise typer.Exit(runner.run_demo(settings, json_path, minutes, run_console()))


def bench(
    ctx: typer.Context,
    config: Config = None,
    model: Model = None,
    scenario: Annotated[str, typer.Option("--scenario", help=f"{', '.join(SCENARIOS)}.")] = "matrix",
    routes: Annotated[
        str | None, typer.Option("--routes", help="R,..; all of them unless given. matrix: mixed is all at once.")
    ] = None,
    concurrency: Annotated[str, typer.Option("--concurrency", help="Numbers of clients.")] = "1,2,4,8,16",
    arms: Annotated[str, typer.Option("--arms", help="plain, DRAFTER:K and tuned.")] = "plain,ngram:4,tuned",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Each cell so often, the order reversed.")] = 3,
    languages: Annotated[str, typer.Option("--languages", help="drafters: prompts in these.")] = "code,en,de,fr",
    drafters: Annotated[
        str | None, typer.Option("--drafters", help="drafters: which; all that are loaded unless given.")
    ] = None,
    lengths: Annotated[str, typer.Option("--lengths", help="drafters: block lengths that are tried.")] = "2,4,8",
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="drafters, transformers: prompts of each.")] = 4,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Longest output.")] = 64,
    requests: Annotated[int, typer.Option("--requests", min=2, help="cancel, preempt, fragment: together.")] = 64,
    assistant: Annotated[
        str | None, typer.Option("--assistant", help="transformers: folder of an assistant model.", show_default=False)
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Measure on this machine: arms on the workload, the floor, drafters, other engines, and how serving holds up."""
    _refuse_unread(ctx, scenario)
    settings = load_settings(config, given({"model": {"path": model}})).settings
    chosen = list(settings.routes) if routes is None else listed(routes)
    for route in chosen:
        if route not in settings.routes and not (route == MIXED and scenario == "matrix"):
            known = ", ".join(settings.routes)
            raise typer.BadParameter(f"{route!r} is not configured; use some of {known}.", param_hint="--routes")
    options = BenchOptions(
        scenario=scenario,
        routes=chosen,
        concurrency=[positive(part, "--concurrency") for part in listed(concurrency)],
        arms=listed(arms),
        repeats=repeats,
        json_path=json_path,
        languages=listed(languages),
        drafters=() if drafters is None else listed(drafters),
        lengths=[positive(part, "--lengths") for part in listed(lengths)],
        prompts=prompts,
        tokens=tokens,
        assistant=assistant,
        requests=requests,
    )
    with starting():
        from tuner.bench.runner import run_bench

        raise typer.Exit(run_bench(settings, options, run_console()))


def _refuse_unread(ctx: typer.Context, scenario: str) -> None:
    """An option that would be ignored is refused. A scenario that there is not is refused elsewhere."""
    reads = READS.get(scenario, _MEASURED)
    for name in _MEASURED:
        source = ctx.get_parameter_source(name)
        if name not in reads and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"the scenario {scenario} does not read it, but {', '.join(f'--{other}' for other in reads)}.",
                param_hint=f"--{name}",
            )


def fetch() -> None:
    """Download the default model once, and convert it into the local cache."""
    with starting():
        from tuner import root

        typer.echo(root.fetch_model(run_console(stderr=True)))


def show(
    config: Config = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show every setting in force."""
    rows = list(load_settings(config).values())
    if output is Format.TABLE:
        print_settings(make_console(), rows, origin=origin)
    elif origin:
        print_data({name: {"value": value, "origin": came_from} for name, value, came_from in rows}, output)
    else:
        print_data({name: value for name, value, _ in rows}, output)


def run_console(*, stderr: bool = False) -> Console:
    """For what runs a while: colours on a terminal, and elsewhere lines that are not cut."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, log_path=False)
    return Console(file=unpadded(stream), log_path=False, width=PLAIN_WIDTH)


@contextmanager
def starting() -> Iterator[None]:
    """What keeps the service from starting becomes one sentence; so does a missing extra."""
    try:
        from tuner.root import START_ERRORS
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ROOMS:
            raise
        raise CommandError(
            f"{error.name} is not installed: install the extra with pip install 'paceline[engine]'."
        ) from error
    try:
        yield
    except START_ERRORS as error:
        raise CommandError(str(error)) from error


def given(overrides: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """`overrides` without what was not given."""
    return {
        group: {key: value for key, value in keys.items() if value is not None} for group, keys in overrides.items()
    }


def listed(text: str) -> list[str]:
    """The parts of a text with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def positive(text: str, option: str) -> int:
    """A number above 0. Raises BadParameter, which names the option."""
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is not a number above 0.", param_hint=option)
    return int(text)

"""The command line. Importing it imports no tensor library."""

from importlib.metadata import version
from typing import Annotated

import typer

from tuner.cli import draft, operator, plugin, service, trace
from tuner.cli.doctor import doctor
from tuner.cli.export import export
from tuner.cli.failures import SentenceGroup
from tuner.cli.replay import replay
from tuner.cli.sidecar import sidecar
from tuner.cli.tune import tune

app = typer.Typer(
    name="paceline",
    cls=SentenceGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes cut names at 80 columns
    help="Chooses, while a language model serves, whether to speculate, how far, and when to stop.",
)
model = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The default model.")
drafters = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The drafters.")
traces = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Traces for `paceline replay`.")
config = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The configuration.")

app.command(short_help="Serve a model, and tune speculation while it serves.")(service.serve)
app.command(short_help="Stand beside servers of a fleet, and steer them.")(sidecar)
app.command(short_help="Serve real traffic for minutes, and show what is learned.")(service.demo)
app.command(short_help="Measure on this machine: arms, the floor, other engines.")(service.bench)
app.command(short_help="Run controllers over traces in which the truth is known.")(replay)
app.command(short_help="Search settings that beat production, here or live.")(tune)
app.command(short_help="Say what a running server lets be steered, and whether it is worth it.")(doctor)
app.command(short_help="Show what is in force.")(operator.status)
app.command(short_help="Say why a context, or a request, is served as it is.")(operator.explain)
app.command()(operator.pin)
app.command()(operator.unpin)
app.command(short_help="Switch speculation off for a route or everywhere.")(operator.off)
app.command()(operator.on)
app.command("plugin", short_help="Write what lets Paceline steer vLLM from inside.")(plugin.write)
app.command(short_help="Print launch settings of other engines that hold what was learned.")(export)
drafters.command("train", short_help="Train a drafter for the model; run again, it goes on.")(draft.train)
drafters.command("list", short_help="Show every drafter, and whether it fits the model.")(draft.list_drafters)
drafters.command("add")(draft.add)
drafters.command("test", short_help="Measure a drafter on held-out prompts against plain.")(draft.try_out)
drafters.command("remove")(draft.remove)
drafters.command("load")(operator.load)
drafters.command("unload", short_help="Let a running server's drafter go.")(operator.unload)
model.command("fetch", short_help="Download the default model once, into the local cache.")(service.fetch)
config.command("show")(service.show)
traces.command("record", short_help="Record what drafters would have made of the workload.")(trace.record)
traces.command("verify", short_help="Hold the replay's predictions against the engine.")(trace.verify)
app.add_typer(drafters, name="draft")
app.add_typer(model, name="model")
app.add_typer(traces, name="trace")
app.add_typer(config, name="config")


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(version("paceline"))
        raise typer.Exit


@app.callback()
def _root(
    told: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_tell_version)
    ] = False,
) -> None:
    """Keeps `paceline` a group of commands; what `--version` asks for is told before this is called."""


def main() -> None:
    """The script `paceline`."""
    app()

"""The command line. Importing it imports no tensor library."""

import typer

from tuner.cli import draft, operator, service
from tuner.cli.failures import SentenceGroup

app = typer.Typer(
    name="paceline",
    cls=SentenceGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Chooses, while a language model serves, which drafter to speculate with, how far, and when to stop.",
)
model = typer.Typer(no_args_is_help=True, help="The default model.")
drafters = typer.Typer(no_args_is_help=True, help="The drafters.")
config = typer.Typer(no_args_is_help=True, help="The configuration.")

app.command()(service.serve)
app.command()(service.demo)
app.command()(service.bench)
app.command()(operator.status)
app.command()(operator.explain)
app.command()(operator.pin)
app.command()(operator.unpin)
app.command()(operator.off)
app.command()(operator.on)
drafters.command("train")(draft.train)
drafters.command("list")(draft.list_drafters)
drafters.command("add")(draft.add)
drafters.command("test")(draft.try_out)
drafters.command("remove")(draft.remove)
drafters.command("load")(operator.load)
drafters.command("unload")(operator.unload)
model.command("fetch")(service.fetch)
config.command("show")(service.show)
app.add_typer(drafters, name="draft")
app.add_typer(model, name="model")
app.add_typer(config, name="config")


@app.callback()
def _root() -> None:
    """Keeps `paceline` a group of commands."""


def main() -> None:
    """The script `paceline`."""
    app()

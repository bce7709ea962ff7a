"""``paceline draft``: the drafters that there are, and those that are added, tested, removed or trained."""

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Never

import typer
from rich.table import Table

from tuner.bench.options import BenchOptions
from tuner.cli.failures import USAGE, CommandError
from tuner.cli.output import Format, Output, make_console, print_data, print_table
from tuner.cli.service import Config, Model, given, listed, positive, run_console, starting
from tuner.cli.training_view import training_view
from tuner.settings import AUTO, drafter_name
from tuner.settings_loader import load_settings
from tuner.training_request import TrainingRequest
from tuner.wording import program
from tuner.workload import load_workload


class Kind(StrEnum):
    FEATURE_HEAD = "feature_head"
    DRAFT_MODEL = "draft_model"


Name = Annotated[str, typer.Argument(help="A drafter that `paceline draft list` names.", show_default=False)]
NEGATIVE_VERDICT = 3
SIGNALLED = 128
"""The exit code after a signal is this and the signal's number."""


def list_drafters(config: Config = None, model: Model = None, output: Output = Format.TABLE) -> None:
    """Show every drafter: its kind and size, how much of its blocks is kept, and whether it fits the model."""
    with _drafting():
        from tuner import root

        rows = root.drafter_rows(load_settings(config, given({"model": {"path": model}})).settings)
    if output is not Format.TABLE:
        print_data([row | {"fits": not row["misfit"]} for row in rows], output)
        return
    table = Table("drafter", "kind", "origin", "trained for", "MiB", "S_1..S_8", "fits")
    for row in rows:
        curve = " ".join(f"{share:.2f}" for share in row["held_out"])
        size = f"{row['file_bytes'] / 2**20:.1f}" if row["file_bytes"] else ""
        kind = row["kind"].replace("_", " ")
        table.add_row(row["name"], kind, row["origin"], row["target"], size, curve, row["misfit"] or "yes")
    print_table(make_console(), table)


def add(
    path: Annotated[Path, typer.Argument(help="A drafter's folder, or a model's.", show_default=False)],
    name: Annotated[
        str | None, typer.Option("--name", help="Its name here; the folder's unless given.", show_default=False)
    ] = None,
    config: Config = None,
    model: Model = None,
) -> None:
    """Take a drafter over, once it is known to fit the model."""
    with _drafting():
        from tuner import root

        settings = load_settings(config, given({"model": {"path": model}})).settings
        place = root.add_drafter(settings, path, name)
    how = (
        "the next start loads it with the others that fit"
        if settings.engine.drafters == (AUTO,)
        else "name it in engine.drafters for the next start"
    )
    typer.echo(
        f"Added {place.name}: {how}; `paceline draft load {place.name} --reason TEXT` takes it into a server that "
        f"runs, and `paceline draft test {place.name}` measures it."
    )


def remove(name: Name) -> None:
    """Delete a drafter that was added."""
    with _drafting():
        from tuner import root

        root.remove_drafter(name)
    typer.echo(f"Removed {name}.")


def try_out(
    name: Name,
    config: Config = None,
    model: Model = None,
    routes: Annotated[str | None, typer.Option("--routes", help="R,..; all of them unless given.")] = None,
    languages: Annotated[str, typer.Option("--languages", help="Prompts in these.")] = "code,en",
    lengths: Annotated[str, typer.Option("--lengths", help="Block lengths that are tried.")] = "4,8",
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Prompts of each route and language.")] = 3,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Longest output.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Paired rounds.")] = 2,
    output: Output = Format.TABLE,
) -> None:
    """Run held-out prompts with a drafter: S_1..S_8, and tokens per second against plain; ends with 3 if it loses."""
    settings = load_settings(config, given({"model": {"path": model}})).settings
    options = BenchOptions(
        scenario="drafters",
        routes=list(settings.routes) if routes is None else listed(routes),
        languages=listed(languages),
        lengths=[positive(part, "--lengths") for part in listed(lengths)],
        prompts=prompts,
        tokens=tokens,
        repeats=repeats,
        drafters=[drafter_name(name)],
    )
    with _drafting():
        from tuner import root
        from tuner.bench.runner import measure

        console = run_console(stderr=output is not Format.TABLE)
        report = measure(root.with_one_drafter(settings, name, console), options, console)
    if output is not Format.TABLE:
        print_data(dict(report.body), output)
    found = [ratio for ratios in report.body["routes"].values() for ratio in ratios.values()]
    if all(ratio["high"] is not None and ratio["high"] < 1.0 for ratio in found):
        raise typer.Exit(NEGATIVE_VERDICT)


def train(
    name: Annotated[str, typer.Argument(help="What to call it.", show_default=False)],
    kind: Annotated[Kind, typer.Option("--kind", help="A layer on the target's features, or a small model.")] = (
        Kind.FEATURE_HEAD
    ),
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Tokens that the model writes to learn from.")] = (
        2_000_000
    ),
    text: Annotated[
        list[Path] | None, typer.Option("--text", help="A text file of yours, again for more.", show_default=False)
    ] = None,
    text_kinds: Annotated[
        str | None, typer.Option("--text-kinds", help="Kinds of the model's text to use; all unless given.")
    ] = None,
    epochs: Annotated[float, typer.Option("--epochs", min=0.01, help="Times that the text is gone through.")] = 2.0,
    start_from: Annotated[
        Path | None, typer.Option("--start-from", help="A drafter's folder to go on from.", show_default=False)
    ] = None,
    work: Annotated[
        Path | None, typer.Option("--work", help="Folder of text and checkpoints.", show_default=False)
    ] = None,
    output_folder: Annotated[
        Path | None, typer.Option("--output-folder", help="Where to make it; added unless given.", show_default=False)
    ] = None,
    config: Config = None,
    model: Model = None,
) -> None:
    """Train a drafter for the model from text that the model writes, and from yours; run again, it goes on."""
    settings = load_settings(config, given({"model": {"path": model}})).settings
    for file in text or ():
        if not file.is_file():
            raise typer.BadParameter(f"there is no file {file}.", param_hint="--text")
    asked = TrainingRequest(
        name=name,
        kind=kind.value,
        tokens=tokens,
        files=text or (),
        text_kinds=() if text_kinds is None else listed(text_kinds),
        epochs=epochs,
        excluded=[message["content"] for prompt in load_workload() for message in prompt.messages],
        start_from=start_from,
        work=work,
        output=output_folder,
        command=f"paceline draft train {name} --kind {kind.value} --tokens {tokens} --epochs {epochs:g}",
    )
    console = run_console()
    with _drafting():
        from tuner import root

        settings = root.prepared(settings, console)
        root.check_new_name(name)
        place = root.training_place(settings, asked)
        console.print(
            f"Text and checkpoints are kept in {place.folder}, {place.text_bytes / 1e6:,.0f} MB in the end. The same "
            "command goes on from there.",
            soft_wrap=True,
        )
        try:
            with _terminable(), training_view(console) as show:
                made = root.train_drafter(settings, asked, show)
        except KeyboardInterrupt as error:
            number = signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT
            raise CommandError(
                f"Stopped. What is done is in {place.folder}: the same command goes on.", SIGNALLED + number
            ) from error
    curve = ", ".join(f"{share:.2f}" for share in made.held_out) or "not measured, since no text was held out"
    console.print(f"Trained {name}, which lies in {made.folder}.", soft_wrap=True)
    console.print(f"S_1..S_8 on held-out text: {curve}")
    of_model = f" --model {shlex.quote(model)}" if model else ""
    of_config = f" --config {shlex.quote(str(config))}" if config else ""
    follow = f"draft add {shlex.quote(str(made.folder))}" if output_folder else f"draft test {name}"
    console.print(f"Next: {program()} {follow}{of_model}{of_config}", soft_wrap=True)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a training as control-C does."""


@contextmanager
def _terminable() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> Never:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _drafting() -> Iterator[None]:
    """What a drafter cannot be is one sentence, and wrong usage; the rest as for every command that runs here."""
    with starting():
        from tuner.root import DrafterError

        try:
            yield
        except DrafterError as error:
            raise CommandError(f"{error}.", USAGE) from error

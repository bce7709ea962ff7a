"""What commands print: a table for people, JSON or YAML for programs, colours only on a terminal."""

import json
import re
import sys
import textwrap
from enum import StrEnum
from typing import IO, Annotated, Any, cast

import typer
import yaml
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 160
"""Columns where there is no terminal to ask, so that tables in logs and pipes are not cut."""
_UNLIMITED = 10_000


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]


class _Unpadded:
    """A file or a pipe that gets no blanks at the ends of its lines, with which rich fills them up."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(re.sub(r"[ \t]+(?=\n|$)", "", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_console() -> Console:
    """Standard output. What users wrote is shown as it is, never as markup."""
    if sys.stdout.isatty():
        return Console(markup=False, highlight=False)
    return Console(file=unpadded(sys.stdout), width=PLAIN_WIDTH, markup=False, highlight=False, soft_wrap=True)


def unpadded(stream: IO[str]) -> IO[str]:
    """`stream`, without the blanks at the ends of lines."""
    return cast(IO[str], _Unpadded(stream))


def print_table(console: Console, table: Table, narrow: Table | None = None) -> None:
    """`table` where the console has room for its cells as they are, else `narrow`, which tells less, where it has.

    Else each row of `table` becomes a paragraph that folds at blanks. A row's first cell names it; where that is empty
    the one above does.
    """
    for fitting in (table, narrow):
        if fitting is None:
            continue
        if console.measure(fitting, options=console.options.update_width(_UNLIMITED)).maximum <= console.width:
            console.print(fitting)
            return
    headings = [str(column.header) for column in table.columns]
    if table.title:
        print_paragraph(console, str(table.title))
    name: object = ""
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        name = cells[0] or name
        named = [f"{heading} {cell}" for heading, cell in zip(headings[1:], cells[1:], strict=True) if cell]
        print_paragraph(console, f"{name}: {'; '.join(named)}")


def print_paragraph(console: Console, text: str) -> None:
    """`text`, folded at blanks."""
    lines = textwrap.wrap(text, console.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def print_data(data: Any, output: Format) -> None:
    """`data` as JSON or YAML."""
    if output is Format.JSON:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip())

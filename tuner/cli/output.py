"""What commands print: a table for people, JSON or YAML for programs, colours only on a terminal."""

import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

PLAIN_WIDTH = 160
"""Columns where there is no terminal to ask, so that tables in logs and pipes are not cut."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]


def make_console() -> Console:
    """Standard output. What users wrote is shown as it is, never as markup."""
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(width=width, markup=False, highlight=False, soft_wrap=width is not None)


def print_data(data: Any, output: Format) -> None:
    """`data` as JSON or YAML."""
    if output is Format.JSON:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip())

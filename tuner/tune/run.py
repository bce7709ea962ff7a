"""Runs `paceline tune`."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

from rich.console import Console

from tuner.bench.report import machine_text
from tuner.bench.runner import on_free_ports
from tuner.machine import describe_machine, source_commit
from tuner.output_file import write
from tuner.settings import Settings
from tuner.tune.knobs import Ground
from tuner.tune.on_engine import tune_on_engine
from tuner.tune.on_replay import tune_on_replay
from tuner.tune.options import TuneOptions
from tuner.tune.report import NOTHING_BETTER, as_yaml, recommended

T = TypeVar("T")


def run_tune(settings: Settings, options: TuneOptions, console: Console, command: str) -> int:
    """Search, print what was found, write the file. Returns the exit code: 3 when nothing beats production.

    Raises:
        SettingsError, WorkloadError, StoreError: what was asked for cannot be searched.
        LoadError: a request failed.
    """
    commit = source_commit()
    today = datetime.now(UTC).date().isoformat() + ("" if commit is None else f", commit {commit}")
    machine = machine_text(describe_machine())
    for line in (machine, today, command):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if options.ground is Ground.ENGINE:
        found = asyncio.run(tune_on_engine(on_free_ports(settings), options, console))
    else:
        found = _finished(tune_on_replay(settings, options, console))
    if not recommended(found):
        return NOTHING_BETTER
    text = as_yaml(found, f"{command}\n{today}; {machine}")
    console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
    if options.out is not None:
        write(options.out, "--out", text.encode())
    return 0


def _finished(search: Coroutine[Any, Any, T]) -> T:
    """What comes of a search that waits for nothing but its own reckoning. An event loop would keep an interrupt back
    until the search waits, which it never does."""
    try:
        search.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a search in a replay waits for something")

"""What `paceline replay` runs: controllers against each other and the oracle, over traces whose truth is known."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tuner.bench.report import NEGATIVE_VERDICT, machine_text
from tuner.cli.failures import USAGE, CommandError
from tuner.cli.output import make_console, print_table
from tuner.cli.service import run_console
from tuner.machine import describe_machine, source_commit
from tuner.replay.report import print_report, write_json
from tuner.replay.run import FIXED, ORACLE, PLAIN_CONTROLLER, UNBOUND, Done, Job, all_controllers, run_jobs
from tuner.replay.scenarios import ScenarioError, shipped_scenarios
from tuner.replay.summary import MINUTES_CORES, MINUTES_SEEDS, Comparison, bars, minutes_bar
from tuner.replay.trace_file import TraceFileError, load
from tuner.wording import program


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What was asked for."""

    everything: bool
    scenarios: tuple[str, ...]
    traces: tuple[Path, ...]
    controllers: tuple[str, ...]
    """All where none is named."""
    seeds: int
    tuning: bool
    plot_path: Path | None
    json_path: Path | None

    @property
    def command(self) -> str:
        """The command that says the same."""
        words = [program(), "replay"]
        words += ["--all"] if self.everything else [word for name in self.scenarios for word in ("--scenario", name)]
        words += [word for path in self.traces for word in ("--trace", str(path))]
        words += [word for name in self.controllers for word in ("--controller", name)]
        words += ["--seeds", str(self.seeds), *(["--tuning"] if self.tuning else [])]
        return shlex.join(words)


def run_replay(options: ReplayOptions) -> None:
    """Run it, print it, and write what was asked for. Raises typer.Exit(3) where a bar fails, and what is wrong with
    the options before anything runs."""
    book = shipped_scenarios()
    known = _known_controllers()
    names = tuple(book.scenarios) if options.everything else tuple(dict.fromkeys(options.scenarios))
    usual = tuple(name for name in known if name != UNBOUND)
    chosen = tuple(dict.fromkeys(options.controllers)) or usual
    _refuse_unknown(names, tuple(book.scenarios), "--scenario")
    _refuse_unknown(chosen, known, "--controller")
    if not names and not options.traces:
        raise CommandError("Give --all, --scenario NAME or --trace FILE; --list shows the names.", USAGE)
    try:
        seeds = book.tuning(options.seeds) if options.tuning else book.held_out(options.seeds)
    except ScenarioError as error:
        raise typer.BadParameter(str(error), param_hint="--seeds") from error
    plot = None if options.plot_path is None else _plotting()
    places: list[tuple[str, Path | None]] = [(name, None) for name in names]
    places += [(str(path), path) for path in _readable(options.traces)]
    playing = tuple(name for name in chosen if name != FIXED)
    jobs = [Job(name, seed, path, playing, FIXED in chosen) for name, path in places for seed in seeds]
    console = run_console()
    console.print(machine_text(describe_machine()), markup=False, highlight=False)
    console.print(options.command, markup=False, highlight=False, soft_wrap=True)
    processes = len(os.sched_getaffinity(0))
    started = time.perf_counter()
    comparison = Comparison(_run(console, jobs, processes))
    seconds = time.perf_counter() - started
    found = bars(comparison, book)
    if options.everything and chosen == usual and len(seeds) >= MINUTES_SEEDS and processes == MINUTES_CORES:
        found.append(minutes_bar(seconds))
    print_report(console, comparison, {name: book.scenarios[name].about for name in names}, found)
    try:
        if options.json_path is not None:
            head = _head(options.command, seeds) | {"processes": processes, "wall_seconds": seconds}
            write_json(options.json_path, comparison, found, head)
    finally:  # neither file is lost with the other
        if plot is not None and options.plot_path is not None:
            plot(comparison, options.plot_path)
    if any(bar.verdict == "fails" for bar in found):
        raise typer.Exit(NEGATIVE_VERDICT)


def show_scenarios() -> None:
    """Print the names of scenarios and controllers."""
    console = make_console()
    table = Table("scenario", "requests", "what happens")
    for name, scenario in shipped_scenarios().scenarios.items():
        table.add_row(name, str(scenario.requests), scenario.about)
    print_table(console, table)
    listed = ", ".join(_known_controllers())
    console.print(
        f"Controllers: {listed}. {PLAIN_CONTROLLER} and {ORACLE} always run, {UNBOUND} only when named.", soft_wrap=True
    )


def _known_controllers() -> tuple[str, ...]:
    return (*all_controllers(), FIXED)


def _run(console: Console, jobs: Sequence[Job], processes: int) -> list[Done]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("traces", total=len(jobs))
        return run_jobs(jobs, processes, lambda: progress.advance(task))


def _plotting() -> Any:
    try:
        from tuner.replay.plot import plot
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        raise CommandError("Pillow is not installed: install the extra with pip install 'paceline[plot]'.") from error
    return plot


def _readable(paths: Sequence[Path]) -> list[Path]:
    """Raises CommandError for the first file that is no trace, before anything runs."""
    for path in paths:
        try:
            load(path)
        except TraceFileError as error:
            raise CommandError(str(error), USAGE) from error
    return list(dict.fromkeys(paths))


def _refuse_unknown(names: Sequence[str], known: Sequence[str], option: str) -> None:
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"there is no {name!r}; use some of {', '.join(known)}.", param_hint=option)


def _head(command: str, seeds: Sequence[int]) -> dict[str, Any]:
    """What a result says of itself."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": source_commit(),
        "machine": describe_machine(),
        "command_line": command,
        "seeds": list(seeds),
    }

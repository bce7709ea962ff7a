"""What every scenario prints and writes: the machine, the command, figures with intervals, and bars."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from policies.stats import EngineInfo
from policies.types import Interval
from tuner.bench.options import BenchOptions
from tuner.machine import describe_machine, source_commit
from tuner.output_file import write

NEGATIVE_VERDICT = 3
"""The exit code when a bar fails."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that must hold, and what was measured of it."""

    name: str
    measured: Interval | None
    """None when it could not be measured."""
    bar: float
    at_least: bool = True

    @property
    def verdict(self) -> str:
        """``holds`` only where the whole 95 % interval meets the bar, ``fails`` only where it excludes it; in between
        the estimate decides, and the interval is named. One that is a point, as of a peak, is judged by itself; the
        unbounded one of a single round or seed neither holds nor fails."""
        if self.measured is None:
            return "not measured"
        found = self.measured
        worst, best = (found.low, found.high) if self.at_least else (found.high, found.low)
        if self._met(worst):
            return "holds"
        if not self._met(best):
            return "fails"
        return ("holds" if self._met(found.estimate) else "misses") + ", within its interval"

    def _met(self, value: float) -> bool:
        return value >= self.bar if self.at_least else value <= self.bar

    def row(self) -> dict[str, Any]:
        """As the JSON file has it."""
        return {
            "name": self.name,
            "measured": None if self.measured is None else interval_row(self.measured),
            "bar": self.bar,
            "at_least": self.at_least,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        sign = "at least" if self.at_least else "at most"
        found = "-" if self.measured is None else interval_text(self.measured)
        return f"{self.name}: {found}, bar {sign} {self.bar:g}: {self.verdict}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a scenario found."""

    body: Mapping[str, Any]
    """Its own part of the JSON file."""
    bars: Sequence[Bar] = ()
    faults: Sequence[str] = ()
    """Sentences about what must not be: a text that differs, a block that is lost."""

    @property
    def exit_code(self) -> int:
        failed = any(bar.verdict == "fails" for bar in self.bars)
        return NEGATIVE_VERDICT if failed or self.faults else 0


def interval_text(found: Interval) -> str:
    """``1.42 [1.31, 1.55]``; the estimate alone where no spread is known: after a single pair, and of a count."""
    if math.isinf(found.high) or found.low == found.high:
        return f"{found.estimate:.2f}"
    return f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"


def interval_row(found: Interval) -> dict[str, float | None]:
    """JSON knows no infinity: after a single pair, or a single seed, a bound is null."""
    low, high = (None if math.isinf(bound) else bound for bound in (found.low, found.high))
    return {"estimate": found.estimate, "low": low, "high": high}


def begin(console: Console, options: BenchOptions) -> None:
    """Print on what and how it is measured, before anything is."""
    commit = source_commit()
    console.print(machine_text(describe_machine()), markup=False, highlight=False)
    console.print(_today() + ("" if commit is None else f", commit {commit}"), markup=False, highlight=False)
    console.print(options.command, markup=False, highlight=False)


def finish(console: Console, options: BenchOptions, info: EngineInfo | None, report: Report) -> int:
    """Print the bars and what the engine was, and write the JSON. Returns the exit code."""
    for bar in report.bars:
        console.print(str(bar), markup=False, highlight=False)
    for fault in report.faults:
        console.print(f"FAULT: {fault}", markup=False, highlight=False)
    machine = describe_machine(info)
    if info is not None:
        console.print(machine_text(machine), markup=False, highlight=False)
    if options.json_path is not None:
        _write(options.json_path, options, machine, report)
    return report.exit_code


def machine_text(machine: Mapping[str, object]) -> str:
    """The machine in one line."""
    text = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    if "model" in machine:
        text += f"; {machine['model']} in {machine['dtype']}, engine threads: {machine['threads']}"
    return text


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _write(path: Path, options: BenchOptions, machine: Mapping[str, object], report: Report) -> None:
    content: dict[str, object] = {
        "scenario": options.scenario,
        "date": _today(),
        "commit": source_commit(),
        "machine": machine,
    }
    content |= {"command_line": options.command} | dict(report.body)
    content |= {"bars": [bar.row() for bar in report.bars], "faults": list(report.faults)}
    write(path, "--json", f"{json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)}\n".encode())

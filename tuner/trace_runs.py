"""What ``paceline trace`` runs: recording the workload, and holding the replay against the engine."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from policies.stats import CycleStats
from policies.types import PLAIN, Arm
from tuner.bench.report import NEGATIVE_VERDICT, machine_text
from tuner.cli.output import print_table
from tuner.machine import describe_machine, source_commit
from tuner.output_file import write
from tuner.replay.recording import RecordingError, make_trace
from tuner.replay.session_costs import session_costs
from tuner.replay.trace import TracedRequest
from tuner.replay.trace_file import save
from tuner.replay.verify import BAR_PERCENT, Cell, check, predict, rows
from tuner.root import Task, TracedWorkload, prepared
from tuner.settings import Settings, SettingsError
from tuner.workload import ROUTES, load_workload

LOOKUP = ("ngram", "suffix")
"""Drafters that have no layers of their own, and read no text before they draft."""
PRICED_TOKENS = 33
PRICED_LENGTH = 4
"""Length of outputs, and block length, of what is served before a recording to learn what cycles cost."""
VERIFIED = 10
"""Requests of each route that are recorded for a verification; half of those that are long enough are measured."""
LOADS = (1, 4, 16)
REQUESTS = {1: 3, 4: 8, 16: 32}
"""Requests of a cell by load: about as long as each other."""


@dataclass(frozen=True, slots=True)
class RecordAsk:
    """What is to be recorded."""

    path: Path
    routes: Sequence[str]
    requests: int
    """Of each route; 0 takes every prompt once."""
    tokens: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class VerifyAsk:
    """What is to be held against the engine."""

    drafters: Sequence[str]
    tokens: int
    rounds: int
    json_path: Path | None
    command: str
    settings: Mapping[str, Any]
    """What was set of the target and the engine, by dotted name."""
    seed: int = 0


def record(settings: Settings, ask: RecordAsk, console: Console) -> None:
    """Record a trace and write it.

    Raises what `running_service` does, WorkloadError, RecordingError, and OutputFileError.
    """
    tasks = _tasks(ask.routes, ask.requests, ask.tokens)
    random.Random(ask.seed).shuffle(tasks)
    workload = TracedWorkload(prepared(settings, console), console.log)
    machine = machine_text(describe_machine(workload.info))
    console.log("serving some of them with every drafter, to learn what cycles cost")
    served = _priced(workload, tasks)
    console.log(f"recording {len(tasks)} requests with {', '.join(workload.drafters)}")
    found = [one for one in workload.record(tasks) if one is not None]
    trace = make_trace(found, workload.info, served, machine, ask.seed)
    save(trace, ask.path)
    tokens = sum(one.output_tokens for one in found)
    console.print(
        f"{ask.path}: {len(found)} requests, {tokens} output tokens, {len(trace.drafters)} drafters; {machine}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def verify(settings: Settings, ask: VerifyAsk, console: Console) -> int:
    """Measure every cell, predict it, and print both. Returns the exit code: 3 when a prediction is off.

    Raises as `record`, and SettingsError before the engine starts for a drafter that it does not load.
    """
    console.print(machine_text(describe_machine()), markup=False, highlight=False)
    console.print(ask.command, markup=False, highlight=False, soft_wrap=True)
    settings = prepared(settings, console)
    loads = settings.engine.drafter_names[1:]
    for name in ask.drafters:
        if name not in loads:
            raise SettingsError(f"--drafters has {name!r}, which is not loaded: give some of {', '.join(loads)}.")
    workload = TracedWorkload(settings, console.log)
    info = workload.info
    cells = [
        Cell(name, length, load)
        for load in LOADS
        if load <= info.slots
        for name, lengths in ((PLAIN, (0,)), *((name, _lengths(name)) for name in ask.drafters))
        for length in lengths
    ]
    console.log("recording the requests")
    seen, unseen = _halves(workload, ask)
    learned_on: list[CycleStats] = []
    measured: dict[Cell, list[list[CycleStats]]] = {cell: [] for cell in cells}
    for number in range(ask.rounds):
        console.log(f"round {number + 1} of {ask.rounds}")
        for cell in cells if number % 2 == 0 else reversed(cells):
            # What cycles cost is learned on other requests, at about the time of those that are measured.
            learned_on += workload.serve(
                _tasks_of(seen, cell.load)[: -(-REQUESTS[cell.load] // 2)], _arm(cell), cell.load
            )
            measured[cell].append(workload.serve(_tasks_of(unseen, cell.load), _arm(cell), cell.load))
    session = session_costs(info, learned_on)
    checked = [
        check(
            cell,
            predict(
                cell,
                [one for _, one in _of(unseen, cell.load)],
                session,
                info.slots,
                reads=cell.drafter not in (PLAIN, *LOOKUP),
            ),
            measured[cell],
        )
        for cell in cells
    ]
    table = Table(title="decoded tokens per second, predicted by the replay and measured", box=None)
    for heading in ("load", "arm", "predicted", "measured", "95 % interval", "error", "cycles"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for one in checked:
        found = one.measured
        table.add_row(
            str(one.cell.load),
            str(one.cell),
            f"{one.predicted:.1f}",
            f"{found.estimate:.1f}",
            f"{found.low:.1f} to {found.high:.1f}",
            f"{one.error_percent:+.1f} %" + ("" if one.holds else " !"),
            f"{one.predicted_cycles}/{one.measured_cycles}",
        )
    print_table(console, table, table)
    off = [one for one in checked if not one.holds]
    console.print(
        f"{len(checked) - len(off)} of {len(checked)} cells within {BAR_PERCENT:g} % or the measurement's interval"
    )
    if ask.json_path is not None:
        content = {
            "date": datetime.now(UTC).date().isoformat(),
            "commit": source_commit(),
            "machine": describe_machine(info),
            "command_line": ask.command,
            "settings": dict(ask.settings),
            "bar_percent": BAR_PERCENT,
            "rows": rows(checked),
        }
        write(ask.json_path, "--json", f"{json.dumps(content, indent=2, allow_nan=False)}\n".encode())
    return NEGATIVE_VERDICT if off else 0


def _priced(workload: TracedWorkload, tasks: Sequence[Task]) -> list[CycleStats]:
    """Cycles of every drafter at several loads."""
    short = [replace(task, tokens=min(task.tokens, PRICED_TOKENS)) for task in tasks]
    cycles: list[CycleStats] = []
    for load in LOADS:
        if load <= workload.info.slots:
            for name in (PLAIN, *workload.drafters):
                some = list(islice(cycle(short), REQUESTS[load] // 2 + 1))
                cycles += workload.serve(some, Arm.fixed(name, PRICED_LENGTH), load)
    return cycles


def _tasks(routes: Sequence[str], requests: int, tokens: int) -> list[Task]:
    """`requests` of each route, in the order of its file; what is asked again has another seed."""
    tasks: list[Task] = []
    for route in routes:
        prompts = load_workload([route])
        for prompt in islice(cycle(prompts), requests or len(prompts)):
            tasks.append(Task(prompt, len(tasks), min(prompt.max_tokens, tokens)))
    return tasks


def _halves(
    workload: TracedWorkload, ask: VerifyAsk
) -> tuple[list[tuple[Task, TracedRequest]], list[tuple[Task, TracedRequest]]]:
    """Requests to learn costs on and to measure: of one length, so that load is what it is said to be."""
    tasks = _tasks(ROUTES, VERIFIED, ask.tokens)
    random.Random(ask.seed).shuffle(tasks)
    found = zip(tasks, workload.record(tasks), strict=True)
    full = [(task, one) for task, one in found if one is not None and one.output_tokens == ask.tokens - 1]
    if len(full) < 2:
        raise RecordingError("Hardly any request of the workload is so long; ask for fewer tokens.")
    return full[::2], full[1::2]


def _of(pairs: Sequence[tuple[Task, TracedRequest]], load: int) -> list[tuple[Task, TracedRequest]]:
    return list(islice(cycle(pairs), REQUESTS[load]))


def _tasks_of(pairs: Sequence[tuple[Task, TracedRequest]], load: int) -> list[Task]:
    return [task for task, _ in _of(pairs, load)]


def _lengths(drafter: str) -> tuple[int, ...]:
    return (4, 8) if drafter in LOOKUP else (2, 4)


def _arm(cell: Cell) -> Arm:
    return Arm.fixed(cell.drafter, cell.block_length)

"""What `paceline replay` prints and writes: a table for each scenario and one over all, bars, and the JSON."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tuner.bench.report import Bar, interval_row, interval_text
from tuner.output_file import write
from tuner.replay.compare import TRAIL_REQUESTS
from tuner.replay.run import ORACLE, OURS
from tuner.replay.summary import Cell, Comparison

HEADINGS = (
    "controller",
    "regret %",
    "over oracle-copying %",
    "over ours",
    "worst window %",
    "windows > 2 %",
    "neighbours > 1.10",
)


def print_report(console: Console, comparison: Comparison, about: dict[str, str], found: Sequence[Bar]) -> None:
    """Every scenario with every controller; of the fixed arms the best one, since the JSON has them all."""
    for scenario in comparison.scenarios:
        cells = [comparison.cell(scenario, controller) for controller in comparison.controllers]
        title = f"{scenario}: {about[scenario]}" if scenario in about else scenario
        console.print(_table(title, [cell for cell in cells if cell is not None]))
        _print_learning(console, comparison, scenario)
    if len(comparison.scenarios) > 1:
        overall = [comparison.overall(controller) for controller in comparison.controllers]
        console.print(_table("mean over scenarios", [cell for cell in overall if cell is not None]))
    seeds = len(comparison.seeds)
    from_what = f"means over {seeds} seeds with 95 % intervals" if seeds > 1 else "of one seed, so without intervals"
    console.print(
        f"Regret: time over the oracle's, in percent, after the first tenth of the requests; {from_what}. "
        "Over oracle-copying: the same over the oracle that looks at proposals too. Over ours: the difference in "
        "points, paired by seed. The last two: share of runs.",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    for bar in found:
        console.print(str(bar), soft_wrap=True, markup=False, highlight=False)


def _table(title: str, cells: Sequence[Cell]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "controller" else "right", no_wrap=True)
    for cell in _shown(cells):
        table.add_row(
            cell.controller,
            interval_text(cell.regret),
            "" if cell.over_copying is None else interval_text(cell.over_copying),
            "" if cell.over_ours is None or cell.controller == OURS else interval_text(cell.over_ours),
            f"{cell.worst_window_percent:.1f}",
            f"{100.0 * cell.window_share:.0f} %",
            f"{100.0 * cell.neighbour_share:.0f} %",
        )
    return table


def _shown(cells: Sequence[Cell]) -> list[Cell]:
    """The oracle, then by regret; of the fixed arms, whose names have a colon, the best one."""
    fixed = sorted((cell for cell in cells if ":" in cell.controller), key=_regret)
    others = [cell for cell in cells if ":" not in cell.controller]
    return sorted([*others, *fixed[:1]], key=lambda cell: (cell.controller != ORACLE, _regret(cell)))


def _regret(cell: Cell) -> float:
    return cell.regret.estimate


def _print_learning(console: Console, comparison: Comparison, scenario: str) -> None:
    """How soon each controller that learns was within 2 % of the oracle after each change."""
    lines = {
        controller: comparison.recoveries(scenario, controller)
        for controller in comparison.controllers
        if controller != ORACLE
    }
    lines = {controller: recoveries for controller, recoveries in lines.items() if recoveries}
    if not lines:
        return
    changes = [first for first, _ in next(iter(lines.values()))]
    listed = "; ".join(
        f"{controller} {', '.join(str(needed) for _, needed in recoveries)}" for controller, recoveries in lines.items()
    )
    console.print(
        f"Requests until within 2 % of the oracle, from request {', '.join(map(str, changes))} on "
        f"({TRAIL_REQUESTS} is the least that can be told): {listed}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def write_json(path: Path, comparison: Comparison, found: Sequence[Bar], head: dict[str, Any]) -> None:
    """Rows for every run, a summary for every scenario and controller and for each controller overall, and the bars.
    Raises OutputFileError."""
    cells = [
        cell
        for scenario in comparison.scenarios
        for controller in comparison.controllers
        if (cell := comparison.cell(scenario, controller)) is not None
    ]
    content = head | {
        "rows": [
            {
                "scenario": run.scenario,
                "controller": run.controller,
                "seed": run.seed,
                "regret_percent": run.regret_percent,
                "worst_window_percent": run.worst_window_percent,
                "whole_regret_percent": run.whole_regret_percent,
                "worst_neighbour": run.worst_neighbour,
                "seconds": run.seconds,
                "plain_seconds": run.plain_seconds,
                "shadow_seconds": run.shadow_seconds,
                "cycles": run.cycles,
            }
            for run in comparison.runs
        ],
        "summary": [_summary_row(cell) for cell in cells],
        "overall": [
            _summary_row(cell)
            for controller in comparison.controllers
            if (cell := comparison.overall(controller)) is not None
        ],
        "bars": [bar.row() for bar in found],
    }
    write(path, "--json", f"{json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)}\n".encode())


def _summary_row(cell: Cell) -> dict[str, Any]:
    regret = cell.regret
    low, high = (None if math.isinf(bound) else bound for bound in (regret.low, regret.high))
    return {
        "scenario": cell.scenario,
        "controller": cell.controller,
        "mean": regret.estimate,
        "low": low,
        "high": high,
        "over_copying": None if cell.over_copying is None else interval_row(cell.over_copying),
        "over_ours": None if cell.over_ours is None else interval_row(cell.over_ours),
        "worst_window_percent": cell.worst_window_percent,
        "window_share": cell.window_share,
        "neighbour_share": cell.neighbour_share,
    }

"""Plain cycles against the floor of the machine, and a block against a single token."""

import asyncio
import statistics

from rich.console import Console
from rich.table import Table

from tuner.bench.options import BenchOptions
from tuner.bench.report import Bar, Report, interval_row, interval_text
from tuner.cli.output import print_table
from tuner.paired import paired_ratio, percentile
from tuner.root import Floor, floor_of
from tuner.settings import Settings

ROUNDS_A_REPEAT = 20
FLOOR_BARS = {1: 0.80, 16: 0.70}
"""Least share of the floor's rate, by load."""
BLOCK_BAR = 1.25
"""Most that a block of 8 at load 1 may cost, in single tokens."""


async def run_floor(settings: Settings, options: BenchOptions, console: Console) -> tuple[None, Report]:
    """Measure in this process, which owns the decoder while nothing else runs in it."""
    found = await asyncio.to_thread(floor_of, settings, ROUNDS_A_REPEAT * options.repeats, console.log)
    table = Table(title="medians; the ratio is the floor over the cycle, pair by pair, with its 95 % interval")
    headings = ("load", "linear layers ms", "KV read ms", "cycle ms", "floor / cycle", "half of the pairs in")
    for heading in headings:
        table.add_column(heading, justify="right")
    bars = []
    rows = []
    for one in found.loads:
        floors = [linear + read for linear, read in zip(one.linear_seconds, one.kv_seconds, strict=True)]
        ratio = paired_ratio(floors, one.cycle_seconds)
        ratios = [floor / cycle for floor, cycle in zip(floors, one.cycle_seconds, strict=True)]
        medians = [statistics.median(part) for part in (one.linear_seconds, one.kv_seconds, one.cycle_seconds)]
        spread = (percentile(ratios, 0.25), percentile(ratios, 0.75))
        table.add_row(
            str(one.load),
            *(f"{1e3 * seconds:.2f}" for seconds in medians),
            interval_text(ratio),
            f"{spread[0]:.2f} to {spread[1]:.2f}",
        )
        bars.append(Bar(f"plain cycle at load {one.load}, share of the floor's rate", ratio, FLOOR_BARS[one.load]))
        rows.append(
            {
                "load": one.load,
                "linear_seconds": medians[0],
                "kv_seconds": medians[1],
                "kv_bytes": statistics.median(one.kv_bytes),
                "cycle_seconds": medians[2],
                "ratio": interval_row(ratio),
                "ratio_median": statistics.median(ratios),
                "ratio_quartiles": spread,
            }
        )
    print_table(console, table)
    block = paired_ratio(found.block_seconds, found.single_seconds)
    bars.append(Bar("a block of 8 (9 rows) over a single token at load 1", block, BLOCK_BAR, at_least=False))
    console.print(
        f"verifying one token {1e3 * statistics.median(found.single_seconds):.2f} ms, a block of 8 "
        f"{1e3 * statistics.median(found.block_seconds):.2f} ms; memory reads {found.bandwidth / 1e9:.1f} GB/s; "
        f"{found.dtype}, {found.threads} threads, context 512",
        highlight=False,
    )
    body = _body(found) | {"loads": rows, "block_over_single": interval_row(block)}
    return None, Report(body, bars)


def _body(found: Floor) -> dict[str, object]:
    return {
        "dtype": found.dtype,
        "threads": found.threads,
        "context": 512,
        "bytes_per_second": found.bandwidth,
        "single_seconds": statistics.median(found.single_seconds),
        "block_seconds": statistics.median(found.block_seconds),
    }

"""What is measured at start: the number of threads, and cycles that seed the cost model."""

import random
import statistics
import time
from collections.abc import Callable

from engine.blocks import BLOCK_TOKENS, blocks_for
from engine.rows import Rows
from engine.target import DecoderTarget
from kernels.sampling import Block, Sampling
from policies.cycle_policy import Window
from policies.stats import CycleStats

GREEDY = Sampling(temperature=0.0)
LOADS = (1, 2, 4, 8, 16)
ROWS_PER_SEQUENCE = (1, 2, 3, 5, 9, 17)
TOKEN_LIMIT = 80
"""Most rows of a calibrated pass: beyond it the cost is a straight line."""
CONTEXTS = (96, 480)
REPEATS = 3


def choose_threads(target: DecoderTarget, cores: int) -> int:
    """Threads with the fastest plain cycle at load 1; one more must gain 5 % to be taken."""
    native = target.decoder.native
    best, best_seconds = 1, float("inf")
    context = min(CONTEXTS[0], target.decoder.capacity - 1, target.decoder.blocks * BLOCK_TOKENS - 1)
    for threads in range(1, cores + 1):
        native.resize(threads)
        seconds = min(_cycle_seconds(target, 1, 1, context) for _ in range(5))
        if seconds < 0.95 * best_seconds:
            best, best_seconds = threads, seconds
    native.resize(best)
    return best


def calibrate(target: DecoderTarget, slots: int, seed: int, progress: Callable[[str], None]) -> tuple[CycleStats, ...]:
    """Passes over the grid of loads, rows and contexts, in shuffled order, `REPEATS` times after one warm-up.

    Each becomes a `CycleStats` without sequences. The rows hold synthetic tokens; no request is running.
    """
    limit = target.decoder.capacity
    points = [
        (load, rows, context)
        for load in LOADS
        if load <= slots
        for rows in ROWS_PER_SEQUENCE
        if load * rows <= max(TOKEN_LIMIT, load)
        for context in (CONTEXTS if rows == 1 else CONTEXTS[:1])
        if context + rows <= limit and load * blocks_for(context + rows) <= target.decoder.blocks
    ]
    measured: dict[tuple[int, int, int], list[float]] = {point: [] for point in points}
    order = random.Random(seed)
    for repeat in range(REPEATS + 1):
        progress(f"calibrating the cost of a cycle, round {repeat + 1} of {REPEATS + 1}")
        order.shuffle(points)
        for point in points:
            seconds = _cycle_seconds(target, *point)
            if repeat > 0:
                measured[point].append(seconds)
    return tuple(
        _as_stats(load, rows, context, statistics.median(seconds))
        for (load, rows, context), seconds in measured.items()
        for _ in range(REPEATS)
    )


def _cycle_seconds(target: DecoderTarget, load: int, rows: int, context: int) -> float:
    vocabulary = target.decoder.config.vocab_size
    table = blocks_for(context + rows)
    parts: list[Rows] = []
    blocks: list[Block] = []
    for sequence in range(load):
        token_ids = tuple((7 * (sequence * rows + row) + 3) % vocabulary for row in range(rows))
        parts.append(Rows(token_ids, context, range(sequence * table, (sequence + 1) * table), rows))
        blocks.append(Block(sequence * rows, token_ids[1:], GREEDY, 0))
    started = time.perf_counter()
    target.verify(parts, blocks)
    return time.perf_counter() - started


def _as_stats(load: int, rows: int, context: int, seconds: float) -> CycleStats:
    return CycleStats(
        cycle=0,
        policy_version=0,
        window=Window(0, plain=False),
        first_after_switch=False,
        killed=False,
        load=load,
        tokens=load * rows,
        kv_tokens=load * context,
        draft_seconds={},
        verify_seconds=seconds,
        cycle_seconds=seconds,
        prefill_tokens=0,
        prefill_seconds=0.0,
        waiting=0,
        sequences=(),
        shadows=(),
    )

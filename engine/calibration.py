"""What is measured at start: the number of threads, and cycles that seed the cost model."""

import random
import statistics
import time
from collections.abc import Callable

import torch

from engine.target import DecoderTarget
from kernels.sampling import Block, Sampling
from policies.types import CycleStats, Window

GREEDY = Sampling(temperature=0.0)
LOADS = (1, 2, 4, 8, 16)
ROWS_PER_SEQUENCE = (1, 2, 3, 5, 9, 17)
TOKEN_LIMIT = 80
"""Most rows of a calibrated pass: beyond it the cost is a straight line."""
CONTEXTS = (96, 480)
REPEATS = 3


def choose_threads(target: DecoderTarget, cores: int) -> int:
    """torch threads with the fastest plain cycle at load 1; one more must gain 5 % to be taken."""
    best, best_seconds = 1, float("inf")
    context = min(CONTEXTS[0], target.decoder.capacity - 1)
    for threads in range(1, cores + 1):
        torch.set_num_threads(threads)
        seconds = min(_cycle_seconds(target, 1, 1, context) for _ in range(5))
        if seconds < 0.95 * best_seconds:
            best, best_seconds = threads, seconds
    torch.set_num_threads(best)
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
        if context + rows <= limit
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
    token_ids = [(7 * index + 3) % vocabulary for index in range(load * rows)]
    slots = [slot for slot in range(load) for _ in range(rows)]
    positions = [context + row for _ in range(load) for row in range(rows)]
    blocks = [
        Block(slot * rows, tuple(token_ids[slot * rows + 1 : (slot + 1) * rows]), GREEDY, 0) for slot in range(load)
    ]
    started = time.perf_counter()
    target.verify(token_ids, slots, positions, blocks)
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

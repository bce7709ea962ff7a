"""From a drafter's curve and the cost of a pass to the load-to-block-length schedule that people read.

The schedule says which fixed block length is best at each load if every sequence used it. What runs is finer: each
cycle's allocation weighs the proposals that it sees. `predicted_gain` is the gain of that.
"""

import itertools
import math
from collections.abc import Sequence

from policies.allocate import Candidate, allocate
from policies.cycle_policy import PassCost
from policies.types import Arm, LoadStep
from tuner.acceptance import Curve

_NEAR = 0.98
_STAYS = 0.96
_SAMPLES = 64
"""Sequences drawn at least, over all draws, for a predicted gain."""


def block_lengths(
    curve: Curve, cost: PassCost, slots: int, kv_each: float, cap: int, margin: float, previous: Arm | None
) -> tuple[int, ...]:
    """A block length within 2 % of the best one at each load 1..`slots`; 0 where plain wins.

    A length goes on over the next load while it is that good, so that schedules have few steps. Speculation goes on at
    a load when it gains more than `margin`, and off again when it gains less than half of it. The schedule of
    `previous`, the arm in force, stays as a whole while it is on and off at the right loads and within 4 % of the best
    everywhere. `kv_each` is the mean context of a sequence in tokens.
    """
    proposing = 1.0 - curve.shares[0]
    emitted = list(itertools.accumulate(curve.unconditioned[:cap], initial=1.0))
    lengths: list[int] = []
    stays = previous is not None
    for load in range(1, slots + 1):
        kv_tokens = round(load * kv_each)
        rates = [
            load * tokens / _expected_seconds(cost, length, proposing, load, kv_tokens)
            for length, tokens in enumerate(emitted)
        ]
        before = min(previous.block_length(load), cap) if previous is not None else 0
        needed = rates[0] * (1.0 + (margin / 2 if before else margin))
        best = max(range(len(rates)), key=rates.__getitem__)
        if rates[best] <= needed:
            lengths.append(0)
            stays = stays and before == 0
            continue
        lower = lengths[-1] if lengths else 0
        lengths.append(lower if rates[lower] > needed and rates[lower] >= _NEAR * rates[best] else best)
        stays = stays and rates[before] > needed and rates[before] >= _STAYS * rates[best]
    if stays and previous is not None:
        return tuple(min(previous.block_length(load), cap) for load in range(1, slots + 1))
    return tuple(lengths)


def merged(drafter: str, lengths: Sequence[int]) -> tuple[LoadStep, ...]:
    """`lengths` of `drafter` at loads 1, 2, ... as steps."""
    steps: list[LoadStep] = []
    for load, length in enumerate(lengths, start=1):
        if steps and steps[-1].block_length == length:
            steps[-1] = LoadStep(steps[-1].load_low, load, length, drafter)
        else:
            steps.append(LoadStep(load, load, length, drafter))
    return tuple(steps)


def predicted_gain(curve: Curve, cost: PassCost, load: int, kv_each: float, cap: int, margin: float) -> float:
    """Expected tokens per second over plain, when `load` sequences of this context run and each cycle allocates.

    Their confidence is drawn from the curve's shares by systematic sampling, so the value is the same each time. The
    bound on neighbours does not bind among equals: each waits for the others as often as they wait for it.
    """
    kv_tokens = round(load * kv_each)
    emitted = seconds = 0.0
    draws = max(1, _SAMPLES // load)
    for draw in range(draws):
        candidates: list[Candidate] = []
        for index in range(load):
            bucket = _bucket(curve.shares, (index + (draw + 0.5) / draws) / load)
            survival = curve.survival.of(bucket)
            candidates.append(Candidate(cap if bucket else 0, survival, forced=False))
        verified = allocate(candidates, cost, kv_tokens, margin, math.inf)
        emitted += load + sum(sum(c.survival[:length]) for c, length in zip(candidates, verified, strict=True))
        seconds += cost.seconds(load + sum(verified), load, kv_tokens)
    return emitted / seconds / (load / cost.seconds(load, load, kv_tokens))


def representative_loads(slots: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `slots`."""
    loads = [1]
    while loads[-1] * 2 <= slots:
        loads.append(loads[-1] * 2)
    return tuple(loads) if loads[-1] == slots else (*loads, slots)


def _expected_seconds(cost: PassCost, length: int, proposing: float, load: int, kv_tokens: int) -> float:
    """Mean seconds of a cycle in which each of `load` sequences brings `length` drafts with probability `proposing`.

    The number of those that do is binomial. A cost at the mean number of tokens would be too low: the first rows of a
    pass are free on many machines, and a drafter that seldom proposes would seem to stay among them.
    """
    if length == 0 or proposing <= 0.0:
        return cost.seconds(load, load, kv_tokens)
    return sum(
        math.comb(load, bringing)
        * proposing**bringing
        * (1.0 - proposing) ** (load - bringing)
        * cost.seconds(load + bringing * length, load, kv_tokens)
        for bringing in range(load + 1)
    )


def _bucket(shares: Sequence[float], quantile: float) -> int:
    total = 0.0
    for bucket, share in enumerate(shares):
        total += share
        if quantile < total:
            return bucket
    return len(shares) - 1

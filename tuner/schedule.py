"""From a drafter's curve and the cost of a pass to the load-to-block-length schedule that people read.

The schedule says which fixed block length is best at each load if every sequence used it. What runs is finer: each
cycle's allocation weighs the proposals that it sees. `predicted_gain` is the gain of that.
"""

import math
from collections.abc import Sequence

from policies.allocate import Candidate, allocate
from policies.types import Arm, LoadStep, PassCost
from tuner.acceptance import Curve

_KEEP = 0.98
"""A block length stays while it gives at least this share of the best one's tokens per second."""
_DRAWS = 8


def block_lengths(
    curve: Curve, cost: PassCost, slots: int, kv_each: float, cap: int, margin: float, previous: Arm | None
) -> tuple[int, ...]:
    """The best block length at each load 1..`slots`; 0 where plain wins.

    Speculation goes on at a load when it gains more than `margin`, and off again when it gains less than half of it;
    `previous` is the arm that is in force. `kv_each` is the mean context of a sequence in tokens.
    """
    lengths: list[int] = []
    proposing = 1.0 - curve.shares[0]
    emitted = [1.0]
    for survival in curve.unconditioned[:cap]:
        emitted.append(emitted[-1] + survival)
    for load in range(1, slots + 1):
        kv_tokens = round(load * kv_each)
        rates = [
            load * tokens / _seconds_at(cost, load * (1.0 + length * proposing), load, kv_tokens)
            for length, tokens in enumerate(emitted)
        ]
        best = max(range(len(rates)), key=rates.__getitem__)
        before = min(previous.block_length(load), cap) if previous is not None else 0
        needed = margin / 2 if before else margin
        if rates[best] <= rates[0] * (1.0 + needed):
            best = 0
        elif before and rates[before] >= _KEEP * rates[best] and rates[before] > rates[0]:
            best = before
        lengths.append(best)
    return tuple(lengths)


def merged(lengths: Sequence[int]) -> tuple[LoadStep, ...]:
    """`lengths` at loads 1, 2, ... as steps."""
    steps: list[LoadStep] = []
    for load, length in enumerate(lengths, start=1):
        if steps and steps[-1].block_length == length:
            steps[-1] = LoadStep(steps[-1].load_low, load, length)
        else:
            steps.append(LoadStep(load, load, length))
    return tuple(steps)


def predicted_gain(curve: Curve, cost: PassCost, load: int, kv_each: float, cap: int, margin: float) -> float:
    """Expected tokens per second over plain, when `load` sequences of this context run and each cycle allocates.

    Their confidence is drawn from the curve's shares by systematic sampling, so the value is the same each time. The
    bound on neighbours does not bind among equals: each waits for the others as often as they wait for it.
    """
    kv_tokens = round(load * kv_each)
    emitted = seconds = 0.0
    for draw in range(_DRAWS):
        candidates: list[Candidate] = []
        for index in range(load):
            bucket = _bucket(curve.shares, (index + (draw + 0.5) / _DRAWS) / load)
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


def _seconds_at(cost: PassCost, tokens: float, load: int, kv_tokens: int) -> float:
    """Seconds for a mean number of tokens: linear between whole numbers."""
    whole = int(tokens)
    low = cost.seconds(whole, load, kv_tokens)
    return low + (tokens - whole) * (cost.seconds(whole + 1, load, kv_tokens) - low)


def _bucket(shares: Sequence[float], quantile: float) -> int:
    total = 0.0
    for bucket, share in enumerate(shares):
        total += share
        if quantile < total:
            return bucket
    return len(shares) - 1

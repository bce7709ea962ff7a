"""Single blocks: what a cycle shows of one, and the product limit over some."""

from collections.abc import Iterable

from policies.stats import BlockEnd, SequenceStats
from policies.types import PLAIN


def product_limit(blocks: Iterable[tuple[int, int]], length: int) -> tuple[float, ...]:
    """S_1..S_length from (k, a) of each block, pooled with nothing; shorter where no block reached a position."""
    at, accepted = [0] * length, [0] * length
    for requested, kept in blocks:
        for position in range(min(kept, length)):
            at[position] += 1
            accepted[position] += 1
        if kept < min(requested, length):
            at[kept] += 1
    curve: list[float] = []
    survival = 1.0
    for reached, kept in zip(at, accepted, strict=True):
        if not reached and survival > 0.0:
            break
        survival *= kept / reached if reached else 0.0
        curve.append(survival)
    return tuple(curve)


def observed_length(sequence: SequenceStats) -> int:
    """The k under which a block is counted; 0 if the cycle shows nothing of it."""
    if sequence.requested == 0 or sequence.drafter == PLAIN:
        return 0
    if sequence.end is BlockEnd.CENSORED:
        return sequence.accepted
    return sequence.requested if sequence.verified == sequence.proposed else sequence.verified

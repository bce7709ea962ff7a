"""How many of the proposed tokens of each running sequence one cycle verifies. Pure, and quick: it runs every cycle.

Verifying position j of a sequence adds S_j expected tokens and one row to the target's pass. What counts in the long
run is all tokens over all seconds, a ratio of sums. So a cycle is not made as good as it can be by itself: it is worth
its tokens less what its seconds would bring elsewhere, ``tokens - price * seconds`` (Dinkelbach 1967), where the price
is the rate that these sequences reach on average. A lucky cycle then verifies more, and one with poor proposals less,
than the best ratio of each would say.

The cost is linear between its knots, so within a segment the rows worth taking are those with S_j above price * slope.
The best of every segment is looked at, since the cost has steps and what lies behind one may pay for it.

Requests that wait have no term of their own. They wait for slots or blocks, which come free as tokens are emitted, so
the highest rate is their shortest wait too; and the end of the cycle at hand comes at most by what running sequences
may wait later than without speculation.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf
from operator import neg

from policies.allocate_rows import Found, Objectives, Rows
from policies.candidate import Candidate
from policies.cycle_policy import PassCost
from policies.pass_segments import segments_from

__all__ = ["Candidate", "allocate"]

_TINY = 1e-12
"""Relative: a gain smaller than this is rounding."""


def allocate(
    candidates: Sequence[Candidate],
    cost: PassCost | None,
    kv_tokens: int,
    margin: float,
    spare_seconds: float = inf,
    rate: float = 0.0,
    draft_seconds: float = 0.0,
) -> tuple[int, ...]:
    """The verified length of each candidate's proposal, in their order.

    Forced proposals are taken whole and belong to the plain cycle, which everything else is compared with. Lengths are
    allowed if

        seconds <= plain seconds + spare_seconds
        seconds <= tpot_limit * expected tokens, for every sequence of which the plain cycle does not break that too

    The best allowed lengths are used if their tokens per second beat the plain cycle's by more than `margin` (a share,
    e.g. 0.02), else none. Of equals the one with fewer rows wins, and of equal positions the earlier candidate's.
    Without a `cost` only forced proposals are verified.

    Args:
        spare_seconds: what everybody who runs may still wait for others, see `policies.ledger`.
        rate: tokens per second that these sequences reach on average (`policies.plan.Plan.rate`), counted as no less
            than the plain cycle's. 0.0 where nobody knows: then the tokens per second of this cycle are made most.
        draft_seconds: what drafting takes in this cycle. It is spent, so it counts in the seconds of every choice, but
            not in the plain seconds of the first condition.
    """
    forced = [one.proposed if one.forced else 0 for one in candidates]
    if cost is None:
        return tuple(forced)
    base = float(len(candidates))
    gains: list[float] = []
    limited = False
    for one in candidates:
        if one.tpot_limit is not None:
            limited = True
        if one.forced:
            base += sum(one.survival[: one.proposed])
        elif one.proposed:
            gains += one.survival[: one.proposed]
    if not gains:
        return tuple(forced)
    fixed_seconds = cost.sequence_seconds * len(candidates) + cost.kv_token_seconds * kv_tokens + draft_seconds
    segments = segments_from(cost, len(candidates) + sum(forced), len(gains), fixed_seconds)
    base_seconds = segments[0][2]
    plain_seconds = base_seconds - draft_seconds
    most_seconds = plain_seconds + spare_seconds

    rows = Rows(gains, base)
    objectives = Objectives(candidates, base, plain_seconds) if limited else None
    own = rate <= 0.0
    price = base / base_seconds if own else max(rate, base / plain_seconds)
    while True:
        found = rows.best(segments, price, most_seconds)
        if objectives is not None and found.total and not objectives.surely_met(found.seconds):
            found = objectives.best(rows, segments, price, most_seconds)
        if not own or found.tokens <= price * (1.0 + _TINY) * found.seconds:
            break
        price = found.tokens / found.seconds
    # Rounding may make nothing look better than itself.
    if found.total == 0 or found.tokens <= base / base_seconds * (1.0 + margin) * found.seconds:
        return tuple(forced)
    return _lengths(candidates, forced, found)


def _lengths(candidates: Sequence[Candidate], forced: list[int], found: Found) -> tuple[int, ...]:
    """Whose the rows are: those that each must have, then the largest gains; of equal ones the earlier candidate's."""
    last, least = -found.last, found.least
    curves: dict[int, tuple[int, int]] = {}
    """Of each curve, how many positions are worth as much as the last one, and how many are worth more."""
    lengths = list(forced)
    over = -found.total
    for index, one in enumerate(candidates):
        proposed = one.proposed
        if proposed and not one.forced:
            survival = one.survival
            reached = curves.get(id(survival))
            if reached is None:
                sure = bisect_left(survival, last, key=neg)
                reached = curves[id(survival)] = bisect_right(survival, last, sure, key=neg), sure
            length = reached[0]
            if length > proposed:
                length = proposed
            if least and length < least.get(index, 0):
                length = least[index]
            lengths[index] = length
            over += length
    if over:
        for index in range(len(candidates) - 1, -1, -1):
            one = candidates[index]
            if one.proposed and not one.forced:
                sure = max(min(curves[id(one.survival)][1], one.proposed), least.get(index, 0))
                fewer = min(lengths[index] - sure, over)
                lengths[index] -= fewer
                over -= fewer
                if not over:
                    break
    return tuple(lengths)

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
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, floor, inf

from policies.cycle_policy import PassCost
from policies.pass_segments import Segment, segments_from

_TINY = 1e-12
"""Relative: a gain smaller than this is rounding."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One running sequence. Every one is listed, also those that propose nothing: their number is the load."""

    proposed: int
    """Tokens on offer, already cut to the decision's cap."""
    survival: tuple[float, ...]
    """S_1..S_n for the confidence of this proposal; positions beyond it count as never accepted. Sequences that share
    one tuple are weighed in less time."""
    forced: bool
    """The proposal is verified whole and not weighed."""
    tpot_limit: float | None = None
    """Seconds per output token that its route's objective allows."""


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
    rows = len(candidates) + sum(forced)
    base = float(len(candidates))
    gains: list[float] = []
    curves: dict[int, tuple[float, ...]] = {}
    for one in candidates:
        proposed, survival = one.proposed, one.survival
        if one.forced:
            base += sum(survival[:proposed])
        elif proposed:
            curve = curves.get(id(survival))
            if curve is None:
                curve = curves[id(survival)] = _falling(survival)
            gains += curve[:proposed]
    if not gains:
        return tuple(forced)
    gains.sort()
    emitted = list(accumulate(reversed(gains), initial=base))
    fixed_seconds = cost.sequence_seconds * len(candidates) + cost.kv_token_seconds * kv_tokens + draft_seconds
    segments = segments_from(cost, rows, len(gains), fixed_seconds)
    base_seconds = segments[0][2]
    plain_seconds = base_seconds - draft_seconds

    own = rate <= 0.0
    price = base / base_seconds if own else max(rate, base / plain_seconds)
    while True:
        total, seconds = _best_total(gains, emitted, segments, price)
        if not own or emitted[total] <= price * (1.0 + _TINY) * seconds:
            break
        price = emitted[total] / seconds
    needed = base / base_seconds * (1.0 + margin)
    most_seconds = plain_seconds + spare_seconds
    if total == 0 or (seconds <= most_seconds and _keeps_objectives(candidates, seconds)):
        # Rounding may make nothing look better than itself.
        if total == 0 or emitted[total] <= needed * seconds:
            return tuple(forced)
        return _lengths_above(candidates, curves, forced, gains[-total], total)

    search = _BoundedSearch(candidates, curves, gains, emitted, segments, plain_seconds, most_seconds)
    while True:
        found = search.best(price)
        if not own or found.tokens <= price * (1.0 + _TINY) * found.seconds:
            break
        price = found.tokens / found.seconds
    if found.tokens <= needed * found.seconds:
        return tuple(forced)
    return search.lengths(forced, found)


def _falling(survival: tuple[float, ...]) -> tuple[float, ...]:
    """An estimate that rises along the block is read as flat: else a position could be taken without the one before."""
    if sorted(survival, reverse=True) == list(survival):
        return survival
    return tuple(accumulate(survival, min))


def _best_total(
    gains: Sequence[float], emitted: Sequence[float], segments: Sequence[Segment], price: float
) -> tuple[int, float]:
    """How many of the largest `gains` (which rise) are worth most less the price of their seconds, and those."""
    count = len(gains)
    best, best_seconds = 0, segments[0][2]
    best_value = emitted[0] - price * best_seconds
    for low, high, seconds, slope in segments:
        total = count - bisect_right(gains, price * slope)
        if total > high:
            total = int(high)
        elif total < low:
            total = int(low)
        took = seconds + slope * (total - low)
        value = emitted[total] - price * took
        if value > best_value:
            best, best_seconds, best_value = total, took, value
    return best, best_seconds


def _keeps_objectives(candidates: Sequence[Candidate], seconds: float) -> bool:
    """Whether a cycle of `seconds` is within every objective, were one token emitted. It may be more careful than
    needed: then the search looks closer."""
    return all([one.tpot_limit is None or seconds <= one.tpot_limit for one in candidates])


def _lengths_above(
    candidates: Sequence[Candidate],
    curves: dict[int, tuple[float, ...]],
    forced: list[int],
    least: float,
    total: int,
) -> tuple[int, ...]:
    """Whose the `total` largest gains are, of which `least` is the last; of equal ones the earlier candidate's."""
    spans = {}
    for key, curve in curves.items():
        rising = curve[::-1]
        spans[key] = len(curve) - bisect_right(rising, least), len(curve) - bisect_left(rising, least)
    lengths = list(forced)
    left = total - sum(
        [min(one.proposed, spans[id(one.survival)][0]) for one in candidates if one.proposed and not one.forced]
    )
    for index, one in enumerate(candidates):
        proposed = one.proposed
        if proposed and not one.forced:
            sure, tied = spans[id(one.survival)]
            if proposed <= sure:
                lengths[index] = proposed
            else:
                more = min(min(proposed, tied) - sure, left)
                lengths[index] = sure + more
                left -= more
    return tuple(lengths)


@dataclass(frozen=True, slots=True)
class _Found:
    """The first `greedy` rows in falling order of S_j, and at least `least` of the sequences that are bounded."""

    tokens: float
    seconds: float
    greedy: int
    least: tuple[int, ...]


class _BoundedSearch:
    """The best allowed lengths where the best of all are not allowed.

    Seconds fix the shortest length that each sequence must have, so for a given total the best lengths are those, and
    then the rows of the largest S_j. Totals are tried outwards from the one of each segment that would be best without
    bounds, while even without bounds they would beat the best that is found.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        curves: dict[int, tuple[float, ...]],
        gains: Sequence[float],
        emitted: Sequence[float],
        segments: Sequence[Segment],
        plain_seconds: float,
        most_seconds: float,
    ) -> None:
        self._gains = gains
        self._emitted = emitted
        self._segments = segments
        self._most_seconds = most_seconds
        flat: list[float] = []
        owners: list[int] = []
        movable: list[tuple[int, list[float], float]] = []
        for index, one in enumerate(candidates):
            curve: tuple[float, ...] = ()
            alone = 1.0
            if one.forced:
                alone += sum(one.survival[: one.proposed])
            elif one.proposed:
                curve = curves[id(one.survival)][: one.proposed]
                flat += curve
                owners += [index] * len(curve)
            limit = one.tpot_limit
            if limit is None or plain_seconds > limit * alone:
                limit = inf
            expected = list(accumulate(curve, initial=alone))
            self._most_seconds = min(self._most_seconds, limit * expected[-1])
            if curve:
                movable.append((index, expected, limit))
        self._owners = owners
        self._order = sorted(range(len(flat)), key=flat.__getitem__, reverse=True)
        longest = max(max(seconds, seconds + slope * (high - low)) for low, high, seconds, slope in segments)
        longest = min(longest, self._most_seconds)
        self._bounded = [one for one in movable if longest > one[2]]
        places: dict[int, list[int]] = {index: [] for index, *_ in self._bounded}
        for place, item in enumerate(self._order):
            if owners[item] in places:
                places[owners[item]].append(place)
        self._places = [places[index] for index, *_ in self._bounded]

    def best(self, price: float) -> _Found:
        """The allowed cycle with the most tokens less the price of its seconds; the plain one always is allowed."""
        found = _Found(self._emitted[0], self._segments[0][2], 0, ())
        value = found.tokens - price * found.seconds
        for low, high, seconds, slope in self._segments:
            first, final = int(low), int(high)
            spare = self._most_seconds * (1.0 + _TINY) - seconds
            rise = slope * (high - low)
            if spare < min(0.0, rise):
                continue
            if spare < rise:
                final = first + floor(spare / slope)
            elif spare < 0.0:
                first += ceil(spare / slope)
            peak = min(max(len(self._gains) - bisect_right(self._gains, price * slope), first), final)
            for totals in (range(peak, first - 1, -1), range(peak + 1, final + 1)):
                for total in totals:
                    took = seconds + slope * (total - low)
                    if self._emitted[total] - price * took <= value:
                        break
                    trial = self._at(total, took)
                    if trial is not None and trial.tokens - price * took > value:
                        found, value = trial, trial.tokens - price * took
        return found

    def _at(self, total: int, seconds: float) -> _Found | None:
        """The best allowed lengths of `total` rows in a cycle of `seconds`; None where there are none."""
        least = []
        for _, expected, limit in self._bounded:
            least.append(bisect_left(expected, seconds / limit * (1.0 - _TINY)))
            if least[-1] == len(expected):
                return None
        greedy = total
        while True:
            lifted, tokens = 0, 0.0
            for length, places, (_, expected, _) in zip(least, self._places, self._bounded, strict=True):
                if length:
                    own = bisect_left(places, greedy)
                    if own < length:
                        lifted += length - own
                        tokens += expected[length] - expected[own]
            if greedy + lifted == total:
                return _Found(self._emitted[greedy] + tokens, seconds, greedy, tuple(least))
            greedy = total - lifted
            if greedy < 0:
                return None

    def lengths(self, forced: Sequence[int], found: _Found) -> tuple[int, ...]:
        """The verified length of each candidate."""
        lengths = list(forced)
        for item in self._order[: found.greedy]:
            lengths[self._owners[item]] += 1
        for (index, *_), least in zip(self._bounded, found.least, strict=False):
            lengths[index] = max(lengths[index], least)
        return tuple(lengths)

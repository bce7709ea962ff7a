"""Lengths for groups of equal sequences: the search below `policies.plan`.

At a given price of a row and of a second each group has its own best length, and each drafter its own best depth,
whatever the others do. So the search is for the prices.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf, sqrt
from typing import NamedTuple, Protocol

from policies.pass_segments import Envelope
from policies.plan_groups import Drafter

_NEAR = 2e-2
"""A rate that is nearer than this to the one before is the same: the choice is off by about the square of it."""
_TRIALS = 10
"""Most of them find the prices in two or three."""
_HALVINGS = 3
"""Of the slopes at a corner of the cost."""
_BOUNDED_TRIALS = 4
_DEARER = 1.1, 2.25
"""Least and most by which a second is made dearer at once. It is as the root of how many times what may be waited the
cycle would take; where that is not what binds,"""
_DEARER_FOR_ONE = 1.25
"""by this."""
_CLOSE = 1.23
"""A price between one that is too low and one that is so much higher is not looked for."""
_FULL = 0.7
"""Share of the seconds that may be waited which is enough to be used in one cycle: what is left is not lost."""
_RAISES = 4
"""Longer blocks take time, so that who waits for them may need longer ones still."""


class Choice(NamedTuple):
    """Lengths by group, and what all sequences come to."""

    lengths: list[int]
    tokens: float
    rows: float
    seconds: float


class Prices(NamedTuple):
    """What a search ended at."""

    rate: float
    """Tokens that a second is worth."""
    slope: float
    """Seconds that a row of the target takes."""


NO_PRICES = Prices(0.0, 0.0)


class Bounds(Protocol):
    """What says how long a cycle may take."""

    def most(self, lengths: Sequence[int]) -> float:
        """Seconds that are allowed with these lengths, whatever is emitted, but for objectives."""

    def least(self, choice: Choice) -> list[int] | None:
        """The length that each group must have at least in a cycle as long as `choice`, nothing if none must have any;
        None if none is enough."""


class Search:
    """Choices of lengths for everything that is weighed, on top of the plain cycle."""

    def __init__(self, drafters: Sequence[Drafter], envelope: Envelope, plain: Choice) -> None:
        self._drafters = drafters
        self.groups = [group for drafter in drafters for group in drafter.groups]
        self._envelope = envelope
        self._plain = plain

    def best(self, near: Prices) -> tuple[Choice, Prices]:
        """The choice with about the most tokens per second, and its prices; they are looked for from `near` on."""
        plain = found = self._plain
        most = least_rate = plain.tokens / plain.seconds
        rate, ended = max(near.rate, least_rate), near.slope
        slopes = self._envelope.slopes
        low, high = 0, len(slopes) - 1
        place = min(bisect_left(slopes, near.slope), high)
        slope = near.slope if place and near.slope < slopes[place] else slopes[place]
        for tried in range(_TRIALS):
            trial, landed = self._at(rate, slope, rate)
            reached = trial.tokens / trial.seconds
            if reached > most:
                found, most, ended = trial, reached, slope
            settled = abs(reached - rate) <= _NEAR * rate
            rate = max(reached, least_rate)
            if slope != slopes[place]:
                # Rows at the corner between two pieces, where the plan before ended, are about the best still.
                near_corner = place - 1 <= landed <= place
                if near_corner and settled:
                    return found, Prices(most, ended)
                if tried or not near_corner:
                    slope = slopes[place]
                continue
            if landed == place:
                if settled:
                    break
                low, high = 0, len(slopes) - 1
                continue
            if landed > place:
                low, high = place + 1, min(high, landed)
            else:
                low, high = max(low, landed), place - 1
            if low > high:
                break
            place = (low + high) // 2
            slope = slopes[place]
        if high < low and 0 < low < len(slopes):
            # A dearer row is too dear and a cheaper one too cheap: the best rows are at the corner between.
            corner, least, dear = self._envelope.corners[low], slopes[low - 1], slopes[low]
            for _ in range(_HALVINGS):
                middle = (least + dear) / 2.0
                trial, _ = self._at(rate, middle, rate)
                reached = trial.tokens / trial.seconds
                if reached > most:
                    found, most, ended, rate = trial, reached, middle, reached
                least, dear = (middle, dear) if trial.rows > corner else (least, middle)
        return found, Prices(most, ended)

    def within(self, bounds: Bounds, choice: Choice) -> Choice:
        """About the best choice that `bounds` allow, where they do not allow `choice`, which is best without them.

        Who would wait too long is asked for more than is best for all, so that it need not wait. Where that is not
        enough a second is made dearer, which makes blocks shorter; whether drafters pay as a whole is for the true rate
        to say.
        """
        plain = self._plain
        spare = bounds.most(choice.lengths) - plain.seconds
        if spare <= 0.0:
            return plain
        price = low = choice.tokens / choice.seconds
        high = inf
        least, most = _DEARER
        found, trial = plain, choice
        for left in range(_BOUNDED_TRIALS, -1, -1):
            raised = self._raised(trial, bounds)
            if raised is None:
                low = price
                over = (trial.seconds - plain.seconds) / spare
                if high < inf:
                    price = sqrt(low * high)
                else:
                    price *= min(most, max(least, sqrt(over))) if over > 1.0 else _DEARER_FOR_ONE
            else:
                if raised.tokens * found.seconds > found.tokens * raised.seconds:
                    found = raised
                if price == low or raised.seconds - plain.seconds >= _FULL * spare:
                    break
                high = price
                price = sqrt(low * high)
            if not left or high < _CLOSE * low:
                break
            slope = self._envelope.slopes[self._envelope.place(trial.rows)]
            trial, _ = self._at(price, slope, plain.tokens / plain.seconds)
        return found

    def _raised(self, choice: Choice, bounds: Bounds) -> Choice | None:
        """`choice` with the lengths that it needs to be allowed."""
        for _ in range(_RAISES):
            least = bounds.least(choice)
            if not least:
                return None if least is None else choice
            lengths = choice.lengths
            raised = [max(pair) for pair in zip(lengths, least, strict=True)]
            if raised == lengths:
                return choice
            choice = self._with(raised)
        return None

    def _with(self, lengths: list[int]) -> Choice:
        """What certain lengths come to."""
        for group, length in zip(self.groups, lengths, strict=True):
            group.length = length
        tokens, rows, seconds = self._plain.tokens, 0.0, self._plain.seconds
        for drafter in self._drafters:
            more, added, took = drafter.expected()
            tokens += more
            rows += added
            seconds += took
        return Choice(lengths, tokens, rows, seconds + self._envelope.at(rows) - self._envelope.seconds[0])

    def _at(self, rate: float, slope: float, worth: float) -> tuple[Choice, int]:
        """The best lengths where a row takes `slope` seconds, and on which piece of the cost their rows lie.

        A drafter is dropped whose tokens are fewer than what its time and its rows are worth, with all others' rows
        before its own: that rows are dear where the last ones lie does not make all of them dear.
        """
        plain, envelope = self._plain, self._envelope
        tokens, rows, seconds = plain.tokens, 0.0, plain.seconds
        row_price = rate * slope
        used = []
        for drafter in self._drafters:
            chosen = drafter.choose(row_price, rate)
            more, added, took = chosen
            if more:
                used.append((drafter, chosen))
                tokens += more
                rows += added
                seconds += took
        landed = envelope.place(rows)
        pass_seconds = envelope.on(landed, rows)
        for drafter, (more, added, took) in used:
            without = envelope.at(rows - added)
            if more <= worth * (took + pass_seconds - without):
                drafter.drop()
                tokens -= more
                rows -= added
                seconds -= took
                pass_seconds = without
        seconds += pass_seconds - envelope.seconds[0]
        return Choice([group.length for group in self.groups], tokens, rows, seconds), landed

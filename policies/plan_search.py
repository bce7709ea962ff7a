"""Lengths for groups of equal sequences: the search below `policies.plan`.

At a given price of a row and of a second each group has its own best length, and each drafter its own best depth,
whatever the others do. So the search is for the prices.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol

from policies.cycle_policy import DraftCost, Outlook
from policies.pass_segments import Segment, envelope_of, seconds_at

_NEAR = 1e-3
"""A rate that is nearer than this to the one before is the same: the choice is off by the square of it."""
_BETTER = 1e-4
"""A single change of length must bring this share of the rate."""
_DOUBLINGS = 5
_HALVINGS = 3


class Group:
    """Sequences that are alike: one drafter, one outlook, one cap."""

    __slots__ = ("asked", "cap", "length", "members", "outlook")

    def __init__(self, outlook: Outlook, cap: int) -> None:
        self.outlook = outlook
        self.asked = cap
        self.cap = min(cap, len(outlook.survival))
        """Of `asked`, what anything is known of."""
        self.members: list[int] = []
        self.length = 0


class Drafter:
    """The groups of one drafter that are weighed, and what its forced blocks pay for already."""

    __slots__ = ("cost", "forced", "forced_rows", "groups", "silent")

    def __init__(self, cost: DraftCost) -> None:
        self.cost = cost
        self.groups: list[Group] = []
        self.forced = 0
        self.forced_rows = 0.0
        self.silent: list[float] = []
        """The probability that no forced block offers position j."""

    def force(self, outlook: Outlook, cap: int) -> tuple[float, float]:
        """Count a block that is asked for in any case; its expected tokens and rows."""
        length = min(cap, len(outlook.survival))
        self.forced += 1
        self.forced_rows += outlook.rows[length]
        self.silent += [1.0] * (length - len(self.silent))
        for position in range(length):
            self.silent[position] *= 1.0 - (outlook.rows[position + 1] - outlook.rows[position])
        return outlook.tokens[length], outlook.rows[length]

    def forced_seconds(self) -> float:
        """Expected seconds of drafting for the forced blocks."""
        return self.cost.seconds(self.forced, len(self.silent) - sum(self.silent), self.forced_rows)

    def is_free(self, limit: float) -> bool:
        """Whether drafting up to every cap takes no more than `limit` seconds."""
        caps = [(group.asked, len(group.members)) for group in self.groups]
        rows = sum(cap * count for cap, count in caps)
        return self.cost.seconds(sum(count for _, count in caps), max(caps)[0], rows) <= limit

    def choose(self, row_price: float, rate: float, keeps: bool) -> tuple[float, float, float]:
        """Set the best length of each group where a row of the target costs `row_price` and a second `rate` tokens.

        A drafter that as a whole is not worth its price is not used, unless it `keeps` what is worth its steps. Returns
        the expected tokens, rows and drafting seconds beyond those of forced blocks.
        """
        cost = self.cost
        price = row_price + rate * cost.row_seconds
        depth = 0
        for group in self.groups:
            outlook = group.outlook
            length = outlook.lengths[bisect_right(outlook.prices, price)]
            group.length = length if length < group.cap else group.cap
            if group.length > depth:
                depth = group.length
        if depth == 0:
            return 0.0, 0.0, 0.0
        steps = 0.0
        if cost.step_seconds:
            depth, steps = self._depth(depth, price, rate * cost.step_seconds)
        least = rate * cost.sequence_seconds
        for group in self.groups:
            length = group.length = min(group.length, depth)
            if group.outlook.tokens[length] - price * group.outlook.rows[length] <= least:
                group.length = 0
        tokens, rows, seconds = self.expected(steps)
        if not keeps and tokens <= row_price * rows + rate * seconds:
            for group in self.groups:
                group.length = 0
            return 0.0, 0.0, 0.0
        return tokens, rows, seconds

    def expected(self, steps: float) -> tuple[float, float, float]:
        """Tokens, rows and drafting seconds at the lengths that are set, beyond those of forced blocks."""
        tokens, rows, asked = 0.0, 0.0, 0
        for group in self.groups:
            length = group.length
            if length:
                count = len(group.members)
                tokens += count * group.outlook.tokens[length]
                rows += count * group.outlook.rows[length]
                asked += count
        seconds = self.cost.seconds(asked, steps, rows)
        return tokens, rows, seconds - self.cost.call_seconds if asked and self.forced else seconds

    def steps(self) -> float:
        """Expected steps at the lengths that are set, beyond those of forced blocks."""
        return self._depth(max(group.length for group in self.groups), 0.0, 0.0)[1] if self.cost.step_seconds else 0.0

    def _depth(self, longest: int, price: float, step_price: float) -> tuple[int, float]:
        """Up to which position drafting goes on, and the expected steps: those in which any block offers one more."""
        value = steps = 0.0
        best, best_depth, best_steps = 0.0, 0, 0.0
        for position in range(longest):
            before = silent = self.silent[position] if position < len(self.silent) else 1.0
            for group in self.groups:
                if group.length > position:
                    rows = group.outlook.rows
                    offered = rows[position + 1] - rows[position]
                    count = len(group.members)
                    value += count * (group.outlook.survival[position] - price * offered)
                    silent *= (1.0 - offered) ** count
            value -= step_price * (before - silent)
            steps += before - silent
            if value > best:
                best, best_depth, best_steps = value, position + 1, steps
        return best_depth, best_steps


class Choice(NamedTuple):
    """Lengths by group, and what all sequences come to."""

    lengths: list[int]
    tokens: float
    rows: float
    seconds: float


class Bounds(Protocol):
    """What says whether a choice may be made."""

    def allow(self, choice: Choice) -> bool: ...


class Search:
    """Choices of lengths for everything that is weighed, on top of the plain cycle."""

    def __init__(self, drafters: Sequence[Drafter], segments: list[Segment], plain: Choice) -> None:
        self._drafters = drafters
        self._segments = segments
        self._plain = plain
        self._envelope = envelope_of(segments)
        self._place = len(self._envelope) - 1

    def converged(self, rate: float) -> tuple[Choice, float]:
        """The choice with the most tokens per second, and that rate."""
        while True:
            found = self.best(rate)
            reached = found.tokens / found.seconds
            if reached <= rate * (1.0 + _NEAR):
                break
            rate = reached
        found = self.best(max(rate, reached), halvings=_HALVINGS)
        return found, found.tokens / found.seconds

    def within(self, bounds: Bounds, rate: float) -> Choice:
        """A choice that `bounds` allow: for the lowest price of a second, above `rate`, for which one is found.

        Such a price only makes blocks shorter. Whether they pay is for the true rate to say.
        """
        low, high = rate, 2.0 * rate
        found = self.best(high, keeps=True)
        for _ in range(_DOUBLINGS):
            if bounds.allow(found):
                break
            low, high = high, 2.0 * high
            found = self.best(high, keeps=True)
        if not bounds.allow(found):
            return self._plain
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            trial = self.best(middle, keeps=True)
            if bounds.allow(trial):
                found, high = trial, middle
            else:
                low = middle
        return found

    def polished(self, choice: Choice) -> Choice:
        """`choice`, or one with more tokens per second that single changes of length lead to."""
        groups = [group for drafter in self._drafters for group in drafter.groups]
        lengths = choice.lengths or [0] * len(groups)
        improved = True
        while improved:
            improved = False
            for index, group in enumerate(groups):
                for length in {0, lengths[index] - 1, lengths[index] + 1, group.cap} - {lengths[index]}:
                    if 0 <= length <= group.cap:
                        trial = self._with([*lengths[:index], length, *lengths[index + 1 :]])
                        if trial.tokens * choice.seconds > choice.tokens * trial.seconds * (1.0 + _NEAR):
                            choice, lengths, improved = trial, trial.lengths, True
        return choice

    def _with(self, lengths: list[int]) -> Choice:
        """What certain lengths come to."""
        tokens, rows, seconds = self._plain.tokens, 0.0, 0.0
        left = iter(lengths)
        for drafter in self._drafters:
            for group in drafter.groups:
                group.length = next(left)
            more, used, took = drafter.expected(drafter.steps())
            tokens += more
            rows += used
            seconds += took
        return Choice(lengths, tokens, rows, seconds + seconds_at(self._segments, rows))

    def best(self, rate: float, keeps: bool = False, halvings: int = 0) -> Choice:
        """About the most tokens less `rate` times seconds; see `Drafter.choose` for `keeps`.

        Where a piece of the cost asks for more rows than it has and the next for fewer, prices between their slopes
        are tried `halvings` times, each half way.
        """
        best = self._plain
        value = -inf if keeps else best.tokens - rate * best.seconds
        pieces = self._envelope
        low, high = 0, len(pieces) - 1
        place = min(self._place, high)
        while low <= high:
            left, right, slope = pieces[place]
            found = self._at(rate, slope, keeps)
            if found.tokens - rate * found.seconds > value:
                best, value = found, found.tokens - rate * found.seconds
                self._place = place
            if found.rows > right:
                low = place + 1
            elif found.rows < left:
                high = place - 1
            else:
                return best
            place = (low + high) // 2
        if halvings and 0 < low < len(pieces):
            corner, least, most = pieces[low][0], pieces[low - 1][2], pieces[low][2]
            for _ in range(halvings):
                slope = (least + most) / 2.0
                found = self._at(rate, slope, keeps)
                if found.tokens - rate * found.seconds > value:
                    best, value = found, found.tokens - rate * found.seconds
                least, most = (slope, most) if found.rows > corner else (least, slope)
        return best

    def _at(self, rate: float, slope: float, keeps: bool) -> Choice:
        """The best lengths where a row takes `slope` seconds."""
        segments = self._segments
        tokens, rows, seconds = self._plain.tokens, 0.0, 0.0
        for drafter in self._drafters:
            more, used, took = drafter.choose(rate * slope, rate, keeps)
            tokens += more
            rows += used
            seconds += took
        lengths = [group.length for drafter in self._drafters for group in drafter.groups]
        return Choice(lengths, tokens, rows, seconds + seconds_at(segments, rows))

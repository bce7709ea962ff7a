"""Which rows a cycle verifies: the largest gains, and first those that objectives need."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import ceil, floor, inf
from typing import NamedTuple

from policies.candidate import Candidate
from policies.pass_segments import Segment

_TINY = 1e-12
"""Relative: a difference smaller than this is rounding."""
_FEW = 24
"""Up to so many lengths of limited sequences together, every level at which one changes is looked at."""
_LEVELS = 7
"""With more than that; each takes as long as the best rows without objectives."""
_NOBODY: Mapping[int, int] = {}


class Found(NamedTuple):
    """Some rows that are taken, and what they come to."""

    total: int
    tokens: float
    seconds: float
    last: float
    """The smallest gain that is taken, but for rows that are taken in any case."""
    least: Mapping[int, int]
    """The length that a candidate has in any case, by its index."""


class Rows:
    """Rows to choose from, beyond some that are taken in any case."""

    __slots__ = ("_emitted", "_gains", "_least", "_taken")

    def __init__(self, gains: list[float], base: float, least: Mapping[int, int] = _NOBODY) -> None:
        """`gains` are sorted in place; `base`: tokens without any of them, with the rows of `least`."""
        gains.sort()
        self._gains = gains
        self._emitted = list(accumulate(reversed(gains), initial=base))
        self._taken = sum(least.values())
        self._least = least

    def best(self, segments: Sequence[Segment], price: float, most_seconds: float = inf) -> Found:
        """The rows that are worth most less the price of their seconds, which are no more than `most_seconds`.

        Where there are none: the plain cycle, which is always allowed; nothing at no worth if that has not all rows
        that are taken in any case.
        """
        gains, emitted, taken = self._gains, self._emitted, self._taken
        count = len(gains) + taken
        best, best_seconds, best_value = -1, inf, -inf
        if not taken:
            best, best_seconds = 0, segments[0][2]
            best_value = emitted[0] - price * best_seconds
        for low, high, seconds, slope in segments:
            if high < taken or low > count:
                continue
            first, final = low if low > taken else taken, high if high < count else count
            spare, rise = most_seconds * (1.0 + _TINY) - seconds, slope * (high - low)
            if spare < rise or spare < 0.0:
                if spare < rise and spare < 0.0:
                    continue
                if spare < rise:
                    final = min(final, low + floor(spare / slope))
                else:
                    first = max(first, low + ceil(spare / slope))
                if final < first:
                    continue
            total = count - bisect_right(gains, price * slope)
            if total > final:
                total = int(final)
            elif total < first:
                total = int(first)
            took = seconds + slope * (total - low)
            value = emitted[total - taken] - price * took
            if value > best_value:
                best, best_seconds, best_value = total, took, value
        if best < 0:
            return Found(0, 0.0, inf, inf, self._least)
        last = gains[taken - best] if best > taken else inf
        return Found(best, emitted[best - taken], best_seconds, last, self._least)


class _Limited(NamedTuple):
    """A sequence with an objective."""

    place: int
    """Among the candidates."""
    gains: tuple[float, ...]
    """Falling."""
    expected: list[float]
    """Tokens by length, 0 to all."""
    limit: float


class Objectives:
    """The best rows where objectives may forbid the best of all.

    Seconds fix the shortest length that each sequence must have. So levels of seconds are looked at: what is allowed in
    a cycle that long is allowed in a shorter one, and beyond those lengths the rows are free to choose.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        base: float,
        plain_seconds: float,
    ) -> None:
        """`base`: tokens of the plain cycle. An objective that the plain
        cycle breaks is none."""
        self._base = base
        self._free: list[float] = []
        """Gains of those without an objective."""
        self._limited: list[_Limited] = []
        self._most_seconds = inf
        """What can be allowed at most."""
        self._least_limit = inf
        for index, one in enumerate(candidates):
            proposed = one.proposed
            gains: tuple[float, ...] = ()
            alone = 1.0
            if one.forced:
                alone += sum(one.survival[:proposed])
            elif proposed:
                gains = one.survival[:proposed]
            limit = one.tpot_limit
            if limit is None or plain_seconds > limit * alone:
                self._free += gains
                continue
            expected = list(accumulate(gains, initial=alone))
            self._most_seconds = min(self._most_seconds, limit * expected[-1])
            self._least_limit = min(self._least_limit, limit)
            self._limited.append(_Limited(index, gains, expected, limit))

    def surely_met(self, seconds: float) -> bool:
        """Whether a cycle of `seconds` is within every objective, were one token emitted."""
        return seconds <= self._least_limit

    def best(self, rows: Rows, segments: Sequence[Segment], price: float, most_seconds: float) -> Found:
        """The allowed rows, of all `rows`, with the most tokens less the price of their seconds; none are always
        allowed. If many sequences have an objective they are only about the best."""
        found = Found(0, self._base, segments[0][2], inf, _NOBODY)
        most_seconds = min(most_seconds, self._most_seconds)
        if sum([len(one.gains) for one in self._limited]) <= _FEW:
            for level in self._changes(most_seconds):
                found = self._at(level, rows, segments, price, found) or found
            return found
        level = rows.best(segments, price, most_seconds).seconds
        step = (level - min([min(at, at + slope * (high - low)) for low, high, at, slope in segments])) / _LEVELS
        for _ in range(_LEVELS):
            better = self._at(level, rows, segments, price, found)
            level -= step
            if better is not None:
                found = better
                level = min(level, better.seconds)
        return found

    def _changes(self, most_seconds: float) -> list[float]:
        """Seconds up to `most_seconds` at which a length that is needed changes, falling."""
        changes = {one.limit * expected for one in self._limited for expected in one.expected}
        return sorted([most_seconds, *(change for change in changes if change < most_seconds)], reverse=True)

    def _at(self, level: float, rows: Rows, segments: Sequence[Segment], price: float, found: Found) -> Found | None:
        """The best rows of a cycle of at most `level` seconds, with the lengths that are needed in one of `level`; None
        if they are no better than `found`."""
        value = found.tokens - price * found.seconds
        freely = rows.best(segments, price, level)
        if freely.tokens - price * freely.seconds <= value:
            return None
        gains = list(self._free)
        least: dict[int, int] = {}
        base = self._base
        for place, own, expected, limit in self._limited:
            length = bisect_left(expected, level / limit * (1.0 - _TINY))
            if length == len(expected):
                return None
            if length:
                least[place] = length
                base += expected[length] - expected[0]
            gains += own[length:]
        trial = Rows(gains, base, least).best(segments, price, level)
        return trial if trial.total and trial.tokens - price * trial.seconds > value else None

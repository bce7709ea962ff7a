"""When a candidate serves for a moment, and what it was worth against production right before and after.

Time is cut into stretches of ``window_seconds / share``; in each, one window of the candidate starts at a moment drawn
at random, and production serves the rest. A stretch is a cluster: candidate and production meet the same traffic and
the same machine in it. What they serve is not the same work, so work is weighed by what plain would take for it at
equal load and context, and a prompt's token by what either side takes on average:

    speed = (sum of emitted / load * plain_seconds(load, kv_tokens) + prefill_tokens * mean prefill seconds) / seconds

The ratio of the two speeds is one of sums, and its interval a jackknife over stretches (`tuner.jackknife`).
"""

import random
from dataclasses import dataclass

from policies.cycle_policy import PassCost
from policies.stats import CycleStats
from policies.types import Interval
from tuner import jackknife

LEAST_CYCLES = 3
"""A stretch in which either side has fewer says nothing: the engine was idle."""


@dataclass(slots=True)
class _Side:
    cycles: int = 0
    work: float = 0.0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    seconds: float = 0.0

    def add(self, stats: CycleStats, cost: PassCost) -> None:
        if stats.load:
            emitted = sum(sequence.emitted for sequence in stats.sequences)
            self.cycles += 1
            self.work += emitted / stats.load * cost.seconds(stats.load, stats.load, stats.kv_tokens)
            self.seconds += stats.cycle_seconds
        self.prefill_tokens += stats.prefill_tokens
        self.prefill_seconds += stats.prefill_seconds
        self.seconds += stats.prefill_seconds

    def plus(self, other: "_Side") -> "_Side":
        return _Side(
            self.cycles + other.cycles,
            self.work + other.work,
            self.prefill_tokens + other.prefill_tokens,
            self.prefill_seconds + other.prefill_seconds,
            self.seconds + other.seconds,
        )

    def minus(self, other: "_Side") -> "_Side":
        return _Side(
            self.cycles - other.cycles,
            self.work - other.work,
            self.prefill_tokens - other.prefill_tokens,
            self.prefill_seconds - other.prefill_seconds,
            self.seconds - other.seconds,
        )


@dataclass(frozen=True, slots=True)
class _Stretch:
    tried: _Side
    served: _Side


class Comparison:
    """What a candidate's stretches say."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []

    @property
    def windows(self) -> int:
        """Stretches that count."""
        return len(self._stretches)

    def add(self, tried: _Side, served: _Side) -> bool:
        """Take in a stretch; False, and nothing is taken in, if it says nothing."""
        if min(tried.cycles, served.cycles) < LEAST_CYCLES:
            return False
        self._stretches.append(_Stretch(tried, served))
        return True

    def interval(self) -> Interval | None:
        """Speed of the candidate over production's; None while that means nothing."""
        tried, served = _Side(), _Side()
        for stretch in self._stretches:
            tried, served = tried.plus(stretch.tried), served.plus(stretch.served)
        if len(self._stretches) < 2:
            return None
        left_out = [_ratio(tried.minus(one.tried), served.minus(one.served)) for one in self._stretches]
        freedom = jackknife.freedom([one.tried.work for one in self._stretches])
        return jackknife.ratio_interval(_ratio(tried, served), left_out, freedom)


class Windows:
    """The window in force, as a function of time, and the sides of the stretch that runs."""

    def __init__(self, window_seconds: float, share: float, seed: int) -> None:
        self._window_seconds, self._share = window_seconds, share
        self._random = random.Random(seed)
        self._tried, self._served = _Side(), _Side()
        self._from = self._until = self._end = 0.0

    def begin(self, now: float) -> None:
        """A stretch starts, with sides that are empty."""
        stretch = self._window_seconds / self._share
        self._from = now + self._random.uniform(0.0, stretch - self._window_seconds)
        self._until, self._end = self._from + self._window_seconds, now + stretch
        self._tried, self._served = _Side(), _Side()

    def trying(self, now: float) -> bool:
        """Whether the candidate serves at `now`."""
        return self._from <= now < self._until

    def over(self, now: float) -> bool:
        """Whether the stretch has ended."""
        return now >= self._end

    def fold(self, stats: CycleStats, trial: int, cost: PassCost) -> None:
        """Count a cycle; not the first of a window, nor plain and killed ones."""
        if stats.window.plain or stats.killed or stats.first_after_switch:
            return
        if stats.window.trial == trial:
            self._tried.add(stats, cost)
        elif stats.window.trial == 0:
            self._served.add(stats, cost)

    def close(self, into: Comparison) -> bool:
        """Hand the stretch over; False if it says nothing."""
        return into.add(self._tried, self._served)


def _ratio(tried: _Side, served: _Side) -> float:
    tokens = tried.prefill_tokens + served.prefill_tokens
    each = (tried.prefill_seconds + served.prefill_seconds) / tokens if tokens else 0.0
    speeds = [(side.work + each * side.prefill_tokens) / side.seconds for side in (tried, served)]
    return speeds[0] / speeds[1]

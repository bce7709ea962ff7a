"""When the whole engine runs plain, for a moment, so that the baseline is measured and not remembered.

Time is cut into stretches of ``window_seconds / share``; in each, one plain window starts at a moment drawn at random.
So plain and served cycles see the same traffic, and no stretch goes unmeasured. The share of plain time falls with the
variance of the baseline: it starts at `share_start` and ends at `share_floor`.

Intervals rest on how many windows there were, since cycles next to each other are slow or fast together. So windows are
short, and a small share of the time holds as many of them as a large share of long ones: eight in 100 seconds.
"""

import random
from dataclasses import dataclass

from policies.cycle_policy import Window

_SOONER = 1.5
"""A stretch is cut short when the share that is called for exceeds its own by this factor."""


@dataclass(frozen=True, slots=True)
class SwitchbackOptions:
    """How plain windows are drawn. `share_start` 0 means that there are none, and no measured baseline."""

    window_seconds: float = 0.25
    share_start: float = 0.02
    share_floor: float = 0.01
    target_error: float = 0.02
    """Relative standard error of the baseline down to which the share stays at `share_start`."""


class Switchback:
    """The window in force, as a function of time; not thread-safe."""

    def __init__(self, options: SwitchbackOptions, seed: int, now: float) -> None:
        """`now` and every later time are seconds of one monotonic clock."""
        self._options = options
        self._random = random.Random(seed)
        self._window = Window(1, plain=False)
        self._share = options.share_start
        self._plain_from = now
        self._plain_until = now
        self._stretch_until = now
        if options.share_start > 0.0:
            self._draw(now)

    @property
    def window(self) -> Window:
        """The window in force."""
        return self._window

    @property
    def share(self) -> float:
        """Share of time that plain windows take in this stretch."""
        return self._share

    def advance(self, now: float, baseline_error: float | None, suspended: bool) -> Window:
        """The window in force at `now`.

        Args:
            now: seconds, never less than before.
            baseline_error: relative standard error of the baseline; None while it is unknown.
            suspended: no plain window may be open, because of a pin that is exempt.
        """
        if self._options.share_start <= 0.0:
            return self._window
        share = self._share_for(baseline_error)
        # A load that nobody measured makes the baseline uncertain at once; that cannot wait for a long stretch to end.
        if now >= self._stretch_until or (share > _SOONER * self._share and not self._window.plain):
            self._share = share
            self._draw(now)
        self._switch(plain=self._plain_from <= now < self._plain_until and not suspended)
        return self._window

    def _share_for(self, error: float | None) -> float:
        options = self._options
        if error is None:
            return options.share_start
        share = options.share_start * min(1.0, (error / options.target_error) ** 2)
        return max(share, options.share_floor)

    def _draw(self, now: float) -> None:
        length = self._options.window_seconds
        stretch = length / self._share
        self._plain_from = now + self._random.uniform(0.0, stretch - length)
        self._plain_until = self._plain_from + length
        self._stretch_until = now + stretch

    def _switch(self, plain: bool) -> None:
        if plain != self._window.plain:
            self._window = Window(self._window.window_id + 1, plain)

"""How wrong predictions of cycles were before the cycle was learned from, and whether they went wrong of late."""

import math
import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

RANGES = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 1 << 30))
"""Tokens of a pass, by which errors are told apart."""
_LAST = [last for _, last in RANGES]
_KEPT = 512
_KEPT_EACH = 128
_WINDOWS = (64, 128, 256, 512)
"""Cycles over which a shift of the mean is looked for. What neighbours on a machine take of its memory for a few cycles
is no change of what cycles cost."""
_FEWEST = 8
"""Differences of which the noise of a cycle is made."""
_ALARM = 5.7
"""Standard deviations of a window's mean. For independent normal residuals each of the windows exceeds it in one of
8e7 cycles, all of them together in one of twenty million: about once in 80 hours of 70 cycles a second."""
_SLIGHT = 0.25
"""Standard deviations by which a mean may be off without being a change: shapes between knots are."""
DRIFT = 0.05
"""Share by which it may be off, however little noise there is: cycles of an engine that nothing happened to drift by
that within minutes, and the fit follows them."""
_CLIP = 3.0
"""A cycle counts with at most this many standard deviations beyond what may be off, so that one stall is no change."""
_OF_DIFFERENCES = 1.0484
"""Standard deviation of a normal variable over the median absolute difference of two."""


class Errors:
    """Absolute relative errors of the last predictions; not thread-safe."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=_KEPT)
        self._last: dict[tuple[int, int], float] = {}
        self._differences: deque[float] = deque(maxlen=_KEPT_EACH)
        self._by_range: dict[tuple[int, int], deque[float]] = {}

    def add(self, tokens: int, relative: float) -> None:
        """`relative` is measured over predicted, less 1."""
        error = abs(relative)
        self._all.append(error)
        key = range_of(tokens)
        self._by_range.setdefault(key, deque(maxlen=_KEPT_EACH)).append(error)
        if key in self._last:
            self._differences.append(abs(relative - self._last[key]))
        self._last[key] = relative

    @property
    def median(self) -> float | None:
        """Over the last 512 cycles; None before the first."""
        return statistics.median(self._all) if self._all else None

    @property
    def by_range(self) -> Mapping[tuple[int, int], float]:
        """Medians over the last 128 cycles in each range of `RANGES` that was served."""
        return {key: statistics.median(errors) for key, errors in sorted(self._by_range.items())}

    def noise(self, otherwise: float) -> float:
        """Standard deviation of a cycle about what cycles like it take.

        From differences between cycles of one range that follow each other: what the model gets wrong about a range is
        in both, and the median is not moved by stalls.
        """
        if len(self._differences) < _FEWEST:
            return otherwise
        return _OF_DIFFERENCES * statistics.median(self._differences)


class ChangeTest:
    """Generalised likelihood ratio for a shift of a normal mean from about zero, over windows of doubling length.

    For a window of n standardised residuals with sum z the statistic is (|z| - n d)^2 / 2n, where d is by how many
    standard deviations a mean may be off (Lorden 1971, with Lai's 1995 limit to a set of windows); the alarm is at
    (|z| - n d) / sqrt(n) = `_ALARM`.
    """

    def __init__(self, drift: float = DRIFT) -> None:
        """`drift` is the share by which the mean may be off, however little noise there is."""
        self._drift = drift
        self._sums: deque[float] = deque([0.0], maxlen=_WINDOWS[-1] + 1)
        """Cumulative, the newest last."""

    def add(self, relative: float, deviation: float) -> bool:
        """Count a relative residual of this standard deviation; whether the mean has shifted. After an alarm it starts
        anew."""
        sums = self._sums
        slight = max(_SLIGHT, self._drift / deviation)
        clip = slight + _CLIP
        sums.append(sums[-1] + min(max(relative / deviation, -clip), clip))
        newest, length = sums[-1], len(sums)
        for window in _WINDOWS:
            if window >= length:
                break
            if abs(newest - sums[-1 - window]) > _ALARM * math.sqrt(window) + slight * window:
                sums.clear()
                sums.append(0.0)
                return True
        return False


def range_of(tokens: int) -> tuple[int, int]:
    """That of `RANGES` which `tokens` are in."""
    return RANGES[bisect_left(_LAST, tokens)]

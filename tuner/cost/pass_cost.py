"""Seconds of a pass of the target, learned while it serves.

    seconds = f(tokens) + a * load + b * kv_tokens + d * drafted,   f linear between knots

where `drafted` is 1 if a drafter with layers of its own ran before it: the target's weights then have to come from
memory again. That is a cost of drafting, and no part of `PassCost`.

A calibration at start says how cost grows, with errors of its own: a handful of quick passes, each shape some percent
off. So it is a prior, not data. With c_k, c_a, c_b the calibrated coefficients, what is fitted are the ratios r of the
truth to them:

    r_k = s + e_k     s: the speed of the machine today, the same for every shape, and free
                      e: what the calibration got wrong, normal, `SPREAD` wide, alike at shapes that are near each other
                         (Ornstein-Uhlenbeck in the logarithm of tokens, so its precision is tridiagonal)

and live cycles, weighted by how well the model predicts cycles, each fading with those that come later; d is not
calibrated, and expected to be a small share of a pass. The prior never fades: shapes that are not served keep what was
calibrated, times the speed that the others show. Nothing rises or falls by force: a shape that is cheaper than a
smaller one is found to be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.cycle_policy import PassCost
from policies.types import MAX_BLOCK_LENGTH

SPREAD = 0.10
"""Standard deviation of what a calibration gets wrong at a shape (research on tuning, 5.6)."""
_REACH = 0.5
"""Over this much of the logarithm of tokens what it gets wrong changes to something else."""
_SPEED_SPREAD = 1.0
"""The speed is as good as free: two readings tell more."""
_LEAST_SECONDS = 1e-6
"""No pass is predicted to be quicker than this."""
_DRAFTED = 0.05
"""Standard deviation of d, as a share of the least pass."""
_ROUGHNESS = 0.02
"""Of a calibrated f: relative size of a bend that costs as much as a measurement missed by as much."""
_TIES = (1e-3, 1e-2)
"""What a and b cost where shapes cannot tell them from f, or from each other: as `_ROUGHNESS`, for the seconds that a
typical shape has of them. Shapes of one load or of one context say nothing of another."""
_LEAST_RATIO = 0.1
"""No shape becomes cheaper than this share of what was calibrated, from one change to the next."""
_DENSE = 1.05
"""Knots above `_ALL_KNOTS` are at least this factor apart."""
_ALL_KNOTS = 24

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """A pass, and what it took."""

    tokens: int
    load: int
    kv_tokens: int
    seconds: float
    drafted: bool = False


class PassFit:
    """The fit, given a calibration; not thread-safe."""

    def __init__(self, calibration: Sequence[Shape], half_life_cycles: float) -> None:
        """Raises ValueError for an empty calibration."""
        if not calibration:
            raise ValueError("a fit of the cost of a pass needs calibrated shapes; run the engine's calibration")
        self._knots = _knots_of(calibration)
        self._calibrated = _calibrated(calibration, self._knots)
        """c_1..c_n, c_a, c_b, and what d is measured in."""
        self._fade = 0.5 ** (1.0 / half_life_cycles)
        self._size = len(self._knots) + 3
        self._prior = _prior(self._knots)
        # Lists: single elements are read and written with every cycle.
        self._live = [[0.0] * self._size for _ in range(self._size)]
        self._live_vector = [0.0] * self._size
        self._weight = 1.0
        self._ratios: list[float] = []
        self._covariance: list[list[float]] = []
        self._speed = 1.0
        self._speed_before = 1.0
        self._drafted_before = 0.0
        """What d was found to be before the last change, in its unit."""
        self.drafted_seconds = 0.0
        """d, as of the last `refit`."""
        self.cost = self._solve()

    def seconds(self, tokens: int, load: int, kv_tokens: int, *, drafted: bool) -> float:
        """Predicted, as of the last `refit`."""
        return self.cost.seconds(tokens, load, kv_tokens) + (self.drafted_seconds if drafted else 0.0)

    def shares(
        self, tokens: int, load: int, kv_tokens: int, *, drafted: bool
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The coefficients that a pass depends on, and the seconds of each as calibrated."""
        knots, calibrated = self._knots, self._calibrated
        upper = 1
        last = len(knots) - 1
        while upper < last and knots[upper] < tokens:
            upper += 1
        share = (tokens - knots[upper - 1]) / (knots[upper] - knots[upper - 1]) if tokens > knots[0] else 0.0
        size = self._size
        places = (upper - 1, upper, size - 3, size - 2)
        seconds = (
            (1.0 - share) * calibrated[upper - 1],
            share * calibrated[upper],
            load * calibrated[-3],
            kv_tokens * calibrated[-2],
        )
        return ((*places, size - 1), (*seconds, calibrated[-1])) if drafted else (places, seconds)

    def deviation(self, tokens: int, load: int, kv_tokens: int, *, drafted: bool) -> float:
        """Standard deviation of the prediction for a pass, in seconds, as of the last `refit`."""
        places, seconds = self.shares(tokens, load, kv_tokens, drafted=drafted)
        covariance = self._covariance
        variance = 0.0
        for place, left in zip(places, seconds, strict=True):
            row = covariance[place]
            for other, right in zip(places, seconds, strict=True):
                variance += left * right * row[other]
        return math.sqrt(max(variance, 0.0))

    def fold(self, shape: Shape, noise_seconds: float) -> None:
        """Learn from a live pass that the noise of single passes moves by `noise_seconds`."""
        # The newest has the largest weight, instead of all older ones being multiplied each time.
        self._weight /= self._fade
        scale = self._weight / noise_seconds**2
        places, shares = self.shares(shape.tokens, shape.load, shape.kv_tokens, drafted=shape.drafted)
        terms = [(place, share) for place, share in zip(places, shares, strict=True) if share]
        vector, live, seconds = self._live_vector, self._live, shape.seconds
        for place, left in terms:
            part = scale * left
            vector[place] += part * seconds
            row = live[place]
            for other, right in terms:
                row[other] += part * right

    def start_anew(self) -> None:
        """A change has been found: from here what is known today is as good as a calibration, and the speed is free.

        A machine that became slower for every shape alike is known again as soon as its speed is, and a shape that
        alone became dearer is as free to move as after the start.
        """
        *of_pass, of_drafting = self._calibrated
        self._calibrated = [
            *(max(ratio, _LEAST_RATIO) * each for ratio, each in zip(self._ratios, of_pass, strict=False)),
            of_drafting,
        ]
        self._drafted_before = self._ratios[-1]
        self._speed_before *= self._speed
        self._live = [[0.0] * self._size for _ in range(self._size)]
        self._live_vector = [0.0] * self._size
        self._weight = 1.0

    @property
    def speed(self) -> float:
        """Seconds of a pass over those calibrated at start."""
        return self._speed_before * self._speed

    def refit(self) -> PassCost:
        """The best fit to everything so far."""
        factor = 1.0 / self._weight
        self._live = [[value * factor for value in row] for row in self._live]
        self._live_vector = [value * factor for value in self._live_vector]
        self._weight = 1.0
        self.cost = self._solve()
        return self.cost

    def _solve(self) -> PassCost:
        size = self._size
        matrix = self._prior.copy()
        matrix[:size, :size] += np.array(self._live)
        vector = np.array([*self._live_vector, _SPEED_SPREAD**-2])
        vector[size - 1] += self._drafted_before
        covariance = np.linalg.inv(matrix)
        *self._ratios, self._speed = (covariance @ vector).tolist()
        self._covariance = covariance.tolist()
        seconds = [max(ratio, 0.0) * each for ratio, each in zip(self._ratios, self._calibrated, strict=True)]
        knots = [max(each, _LEAST_SECONDS) for each in seconds[:-3]]
        knots[-1] = max(knots[-2:])  # beyond what was measured no pass is cheaper
        self.drafted_seconds = seconds[-1]
        return PassCost(self._knots, tuple(knots), seconds[-3], seconds[-2])


def _knots_of(calibration: Sequence[Shape]) -> tuple[int, ...]:
    """The token counts that were calibrated, and one far beyond them."""
    counts = sorted({shape.tokens for shape in calibration})
    knots: list[int] = []
    for count in counts:
        if len(counts) <= _ALL_KNOTS or not knots or count >= _DENSE * knots[-1] or count == counts[-1]:
            knots.append(count)
    most = max(shape.load for shape in calibration) * (1 + MAX_BLOCK_LENGTH)
    return (*knots, max(2 * knots[-1], most))


def _calibrated(calibration: Sequence[Shape], knots: tuple[int, ...]) -> list[float]:
    """f at the knots, a and b: least squares of relative errors, with a, b >= 0; and the unit of d."""
    count = len(knots)
    terms = np.array([[*_hats(shape.tokens, knots), shape.load, shape.kv_tokens] for shape in calibration])
    rows = terms / np.array([[shape.seconds] for shape in calibration])
    typical = float(np.median([shape.seconds for shape in calibration]))
    bends = np.zeros((count - 2, count + 2))
    for place in range(1, count - 1):
        left, right = knots[place] - knots[place - 1], knots[place + 1] - knots[place]
        bend = np.array([right, -(left + right), left]) / (left + right)
        # The last knot was not measured: it goes on as straight as it can.
        bends[place - 1, place - 1 : place + 2] = _ROUGHNESS / typical * bend
    ties = np.zeros((2, count + 2))
    ties[:, count:] = np.diag(np.array(_TIES) * np.median(terms[:, count:], axis=0) / typical)
    columns = np.vstack([rows, bends, ties])
    values = np.concatenate([np.ones(len(rows)), np.zeros(len(bends) + 2)])
    free = list(range(count + 2))
    while True:
        found = np.zeros(count + 2)
        found[free] = np.linalg.lstsq(columns[:, free], values, rcond=None)[0]
        negative = [place for place in (count, count + 1) if found[place] < 0.0]
        if not negative:
            break
        free.remove(min(negative, key=lambda place: float(found[place] * np.linalg.norm(columns[:, place]))))
    found[:count] = np.maximum(found[:count], _LEAST_SECONDS)
    found[count - 1] = max(found[count - 2 : count])
    return [*map(float, found), _DRAFTED * float(min(found[:count]))]


def _hats(tokens: int, knots: tuple[int, ...]) -> list[float]:
    """The weight of each knot in f(tokens)."""
    return [float(np.interp(tokens, knots, unit)) for unit in np.eye(len(knots))]


def _prior(knots: tuple[int, ...]) -> Array:
    """Precision of the ratios and, last, of the speed."""
    size = len(knots) + 3
    rows = []
    before = 0.0
    for place, knot in enumerate(knots):
        row = np.zeros(size + 1)
        kept = math.exp(-(math.log(knot) - before) / _REACH) if place else 0.0
        before = math.log(knot)
        row[place] = 1.0
        row[size] = -1.0 + kept
        if place:
            row[place - 1] = -kept
        rows.append(row / (SPREAD * math.sqrt(1.0 - kept**2)))
    for place in (size - 3, size - 2):
        row = np.zeros(size + 1)
        row[place], row[size] = 1.0, -1.0
        rows.append(row / SPREAD)
    row = np.zeros(size + 1)
    row[size - 1] = 1.0
    rows.append(row)
    row = np.zeros(size + 1)
    row[size] = 1.0 / _SPEED_SPREAD
    rows.append(row)
    stacked = np.array(rows)
    product: Array = stacked.T @ stacked
    return product

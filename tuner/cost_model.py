"""Seconds of a cycle as a function of tokens, load and context, learned while serving.

    seconds = f(tokens) + a * load + b * kv_tokens,   f piecewise linear and rising, a >= 0, b >= 0

The fit is least squares of relative errors with coefficients that may not be negative, kept as normal equations: the
sum of the rows of the calibration, which never fade, and of live cycles, which do (recursive least squares with
forgetting, in information form). Calibrated rows say how cost grows; they are scaled to the speed that the machine has
now, since a machine that slows down would otherwise look as if only the shapes that are in use had become dear.
"""

import itertools
import statistics
from collections import deque
from collections.abc import Sequence

from policies.cycle_policy import PassCost
from policies.stats import CycleStats
from tuner.nonnegative import solve_nonnegative

TOKEN_KNOTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 144, 272)
_SIZE = len(TOKEN_KNOTS) + 2
_CLIP = 0.5
"""A live cycle counts with a relative error of at most this much, so that a stall moves little (Huber 1964)."""
_SMOOTHNESS = 0.05
"""Rows that say that neighbouring slopes are alike: what the data leave open is filled in from beside it."""
_RIDGE = 1e-4
_LEAST_SECONDS = 1e-6
"""No pass is predicted to be quicker than this."""
_ERRORS_KEPT = 512
_SPEED_CYCLES = 100.0
"""Cycles over which the machine's speed is averaged."""

Matrix = list[list[float]]


class CostModel:
    """Fits `PassCost`; not thread-safe."""

    def __init__(self, calibration: Sequence[CycleStats], half_life_cycles: float = 2000.0) -> None:
        """
        Args:
            calibration: cycles with known tokens, load and kv_tokens. Without any there is no cost, ever: cycles in
                which nothing is verified cannot tell what verifying costs.
            half_life_cycles: a live cycle counts half after this many later ones.
        """
        self._fade = 0.5 ** (1.0 / half_life_cycles)
        self._prior, self._prior_vector = _empty()
        self._live, self._live_vector = _empty()
        self._live_weight = 1.0
        self._speed = 1.0
        self._cost: PassCost | None = None
        self._calibrated: PassCost | None = None
        self._errors: deque[float] = deque(maxlen=_ERRORS_KEPT)
        self._draft_seconds: dict[str, float] = {}
        rows = [stats for stats in calibration if stats.load > 0 and stats.cycle_seconds > 0.0]
        if rows:
            _add_smoothness(self._prior, statistics.median(stats.cycle_seconds for stats in rows))
            for stats in rows:
                _add_row(self._prior, self._prior_vector, stats, stats.cycle_seconds, stats.cycle_seconds**-2)
            self._cost = self._calibrated = self._solve()

    @property
    def cost(self) -> PassCost | None:
        """The fit of the last `refit`; None without a calibration."""
        return self._cost

    @property
    def error(self) -> float | None:
        """Median absolute relative error on live cycles, each taken before the model learned from it."""
        return statistics.median(self._errors) if self._errors else None

    @property
    def draft_seconds(self) -> dict[str, float]:
        """Mean seconds of one proposal for one sequence, by drafter."""
        return dict(self._draft_seconds)

    def fold(self, stats: CycleStats) -> None:
        """Learn from a live cycle; what it changes shows after the next `refit`."""
        if stats.load == 0 or stats.cycle_seconds <= 0.0:
            return
        self._fold_drafting(stats)
        if self._cost is None or self._calibrated is None:
            return
        predicted = self._cost.seconds(stats.tokens, stats.load, stats.kv_tokens)
        relative = stats.cycle_seconds / predicted - 1.0
        self._errors.append(abs(relative))
        seconds = predicted * (1.0 + min(max(relative, -_CLIP), _CLIP))

        expected = self._calibrated.seconds(stats.tokens, stats.load, stats.kv_tokens)
        self._speed += (seconds / expected - self._speed) / _SPEED_CYCLES
        # The newest row has the largest weight instead of all older ones being multiplied, row by row.
        self._live_weight /= self._fade
        _add_row(self._live, self._live_vector, stats, seconds, self._live_weight * expected**-2)

    def refit(self) -> PassCost | None:
        """The best fit to everything folded so far."""
        if self._calibrated is not None:
            for i in range(_SIZE):
                self._live_vector[i] /= self._live_weight
                for j in range(_SIZE):
                    self._live[i][j] /= self._live_weight
            self._live_weight = 1.0
            self._cost = self._solve()
        return self._cost

    def _solve(self) -> PassCost:
        matrix = [[self._prior[i][j] + self._live[i][j] for j in range(_SIZE)] for i in range(_SIZE)]
        vector = [self._speed * self._prior_vector[i] + self._live_vector[i] for i in range(_SIZE)]
        for i in range(_SIZE):
            # A column that is zero throughout has nothing to fit: any positive value leaves its coefficient at 0.
            matrix[i][i] = matrix[i][i] * (1.0 + _RIDGE) or 1.0
        first, *slopes, per_sequence, per_kv_token = solve_nonnegative(matrix, vector)
        seconds = [max(first, _LEAST_SECONDS)]
        for (low, high), slope in zip(itertools.pairwise(TOKEN_KNOTS), slopes, strict=True):
            seconds.append(seconds[-1] + slope * (high - low))
        return PassCost(TOKEN_KNOTS, tuple(seconds), per_sequence, per_kv_token)

    def _fold_drafting(self, stats: CycleStats) -> None:
        for drafter, seconds in stats.draft_seconds.items():
            proposals = sum(s.drafter == drafter and s.requested > 0 for s in stats.sequences)
            if proposals:
                each = seconds / proposals
                mean = self._draft_seconds.setdefault(drafter, each)
                self._draft_seconds[drafter] = mean + (min(each, 5.0 * mean) - mean) / _SPEED_CYCLES


def _features(tokens: int, load: int, kv_tokens: int) -> list[float]:
    """[1, the part of `tokens` on each segment between knots, load, kv_tokens]; the last segment has no end."""
    features = [1.0]
    last = len(TOKEN_KNOTS) - 2
    for segment in range(last + 1):
        low, high = TOKEN_KNOTS[segment], TOKEN_KNOTS[segment + 1]
        part = max(0, tokens - low)
        features.append(float(part if segment == last else min(part, high - low)))
    features.append(float(load))
    features.append(float(kv_tokens))
    return features


def _empty() -> tuple[Matrix, list[float]]:
    return [[0.0] * _SIZE for _ in range(_SIZE)], [0.0] * _SIZE


def _add_row(matrix: Matrix, vector: list[float], stats: CycleStats, seconds: float, weight: float) -> None:
    features = _features(stats.tokens, stats.load, stats.kv_tokens)
    used = [(index, value) for index, value in enumerate(features) if value]
    for i, left in used:
        vector[i] += weight * left * seconds
        row = matrix[i]
        for j, right in used:
            row[j] += weight * left * right


def _add_smoothness(matrix: Matrix, seconds: float) -> None:
    """Add the square of the difference of neighbouring slopes, each times the wider of their segments."""
    widths = [high - low for low, high in itertools.pairwise(TOKEN_KNOTS)]
    for segment in range(1, len(widths)):
        weight = _SMOOTHNESS * (max(widths[segment - 1], widths[segment]) / seconds) ** 2
        # Column 0 is the constant, so the slope of segment s is column s + 1.
        left, right = segment, segment + 1
        matrix[left][left] += weight
        matrix[right][right] += weight
        matrix[left][right] -= weight
        matrix[right][left] -= weight

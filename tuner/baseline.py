"""What plain decoding costs, measured, and what each context gained over it.

In a cycle of a plain window every sequence emits one token, whatever its context, so plain cycle seconds are pooled
over contexts by load, with a slope for the context tokens (KV). The gain of a context is then, over its own
sequence-cycles in served windows,

    speedup = sum of emitted * plain_seconds(load, kv_tokens)  /  sum of cycle_seconds

the TPOT that plain would have had over the TPOT as served: a ratio of sums, never a mean of ratios. It is at equal
load, not at equal arrivals: a faster engine also has fewer sequences running.

Its variance is that of a ratio estimator with requests as clusters (Cochran 1977, section 6.3), plus the baseline's
own, which has windows as clusters, since cycles next to each other are slow or fast together.

Requests that loop are counted and left out of every gain and total: a loop flatters n-gram drafting.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.stats import CycleStats, RequestStats
from policies.types import Interval
from tuner.snapshot import BaselineCell, Throughput

Era = tuple[str, str, str, bool]
"""(route, language, drafter, forced): gains of different arms are not mixed."""

_WINDOWS_KEPT = 200
_REQUESTS_KEPT = 400
_IN_FLIGHT = 4096
_CELL_CYCLES = 8
_CELL_WINDOWS = 2
_GAIN_REQUESTS = 4
_UNMEASURED_ERROR = 0.2
_LATELY_REQUESTS = 200
"""A finished request's seconds count half, as to which loads are served, after this many later ones."""
_COVERED_SHARE = 0.5
"""At least this share of the served seconds must be at loads at which plain was measured."""


@dataclass(slots=True)
class _Sums:
    """Over cycles at one load: weight (cycles, or tokens emitted), its product with KV tokens, and seconds."""

    weight: float = 0.0
    weighted_kv: float = 0.0
    seconds: float = 0.0
    kv_squares: float = 0.0
    kv_seconds: float = 0.0

    def add(self, weight: float, kv_tokens: int, seconds: float) -> None:
        self.weight += weight
        self.weighted_kv += weight * kv_tokens
        self.seconds += seconds
        self.kv_squares += weight * kv_tokens * kv_tokens
        self.kv_seconds += kv_tokens * seconds


@dataclass(slots=True)
class _Request:
    """What a request did in windows."""

    served: dict[int, _Sums] = field(default_factory=dict)
    """By load, weighted by tokens emitted."""
    throughput: Throughput = field(default_factory=Throughput)


@dataclass(frozen=True, slots=True)
class Gain:
    """The measured gain of one context with one arm."""

    speedup: Interval | None
    """None while too little was measured."""
    requests: int
    looped: int


@dataclass(frozen=True, slots=True)
class PlainSeconds:
    """Plain cycle seconds as measured."""

    cells: Mapping[int, BaselineCell]
    """By load."""
    mean_kv: Mapping[int, float]
    kv_token_seconds: float

    def total(self, load: int, tokens: float, weighted_kv: float) -> float:
        """Seconds that plain takes for `tokens` of one sequence at `load`; `weighted_kv` sums KV over the tokens."""
        at_mean = self.cells[load].seconds - self.kv_token_seconds * self.mean_kv[load]
        return tokens * at_mean + self.kv_token_seconds * weighted_kv


class Baseline:
    """Folds cycles and finished requests; not thread-safe."""

    def __init__(self) -> None:
        self._windows: deque[dict[int, _Sums]] = deque(maxlen=_WINDOWS_KEPT)
        self._window_id: int | None = None
        self._in_flight: dict[int, _Request] = {}
        self._finished: dict[Era, deque[_Request]] = {}
        self._requests: dict[Era, int] = {}
        self._looped: dict[Era, int] = {}
        self._served_seconds: dict[int, float] = {}
        self._throughput = Throughput()

    @property
    def throughput(self) -> Throughput:
        """Tokens and seconds of the requests that have finished. A cycle's seconds are divided among its sequences."""
        return self._throughput

    @property
    def looped(self) -> int:
        """Finished requests that looped."""
        return sum(self._looped.values())

    def fold_cycle(self, stats: CycleStats) -> None:
        """Count a cycle. The first after a switch, and killed ones, belong to neither side."""
        if stats.load == 0 or stats.killed or stats.first_after_switch or stats.cycle_seconds <= 0.0:
            return
        plain = stats.window.plain
        if plain:
            if stats.tokens != stats.load:
                return
            if stats.window.window_id != self._window_id:
                self._window_id = stats.window.window_id
                self._windows.append({})
            self._windows[-1].setdefault(stats.load, _Sums()).add(1.0, stats.kv_tokens, stats.cycle_seconds)
        share = stats.cycle_seconds / stats.load
        for sequence in stats.sequences:
            request = self._in_flight.get(sequence.request_key)
            if request is None:
                request = self._in_flight[sequence.request_key] = _Request()
                if len(self._in_flight) > _IN_FLIGHT:
                    # Their ends were lost with dropped telemetry.
                    del self._in_flight[next(iter(self._in_flight))]
            if plain:
                request.throughput = _add(request.throughput, Throughput(0, 0.0, sequence.emitted, share))
            else:
                request.throughput = _add(request.throughput, Throughput(sequence.emitted, share))
                sums = request.served.setdefault(stats.load, _Sums())
                sums.add(sequence.emitted, stats.kv_tokens, stats.cycle_seconds)

    def fold_request(self, stats: RequestStats) -> None:
        """Move a finished request to its context, unless it looped."""
        request = self._in_flight.pop(stats.request_key, None)
        context = stats.decision.context
        era = (context.route, context.language, stats.decision.drafter, stats.decision.forced)
        if stats.looped:
            self._looped[era] = self._looped.get(era, 0) + 1
            return
        self._requests[era] = self._requests.get(era, 0) + 1
        if request is None:
            return
        self._throughput = _add(self._throughput, request.throughput)
        for load in self._served_seconds:
            self._served_seconds[load] *= 0.5 ** (1.0 / _LATELY_REQUESTS)
        for load, sums in request.served.items():
            self._served_seconds[load] = self._served_seconds.get(load, 0.0) + sums.seconds
        if request.served:
            self._finished.setdefault(era, deque(maxlen=_REQUESTS_KEPT)).append(request)

    def plain_seconds(self) -> PlainSeconds:
        """Plain cycle seconds by load, over the windows that are kept; only loads measured often enough."""
        totals: dict[int, _Sums] = {}
        windows: dict[int, int] = {}
        for window in self._windows:
            for load, sums in window.items():
                total = totals.setdefault(load, _Sums())
                total.weight += sums.weight
                total.weighted_kv += sums.weighted_kv
                total.seconds += sums.seconds
                total.kv_squares += sums.kv_squares
                total.kv_seconds += sums.kv_seconds
                windows[load] = windows.get(load, 0) + 1
        measured = {
            load: sums
            for load, sums in sorted(totals.items())
            if sums.weight >= _CELL_CYCLES and windows[load] >= _CELL_WINDOWS
        }
        slope = _kv_slope(measured)
        mean_kv = {load: sums.weighted_kv / sums.weight for load, sums in measured.items()}
        means = {load: sums.seconds / sums.weight for load, sums in measured.items()}
        errors = self._relative_errors(means, mean_kv, slope)
        cells = {
            load: BaselineCell(load, round(sums.weight), means[load], errors[load]) for load, sums in measured.items()
        }
        return PlainSeconds(cells, mean_kv, slope)

    def _relative_errors(
        self, means: Mapping[int, float], mean_kv: Mapping[int, float], slope: float
    ) -> dict[int, float]:
        """Standard errors of the means with windows as clusters, as shares of the means.

        The variance of one window's mean is pooled over loads, since a load seen in few windows has no estimate of
        its own that could be trusted.
        """
        squares = 0.0
        clusters = 0
        weights: dict[int, list[float]] = {load: [] for load in means}
        for window in self._windows:
            for load, sums in window.items():
                if load in means:
                    residual = sums.seconds - sums.weight * means[load]
                    residual -= slope * (sums.weighted_kv - sums.weight * mean_kv[load])
                    squares += (residual / means[load]) ** 2 / sums.weight
                    clusters += 1
                    weights[load].append(sums.weight)
        freedom = clusters - len(means)
        if freedom <= 0:
            return {}
        # A window of n cycles has a mean with variance between v / n (independent cycles) and v (all alike).
        # `squares` estimates n times that variance, averaged over windows, which is right for windows of like length.
        variance = squares / freedom
        return {load: math.sqrt(variance / sum(counts)) for load, counts in weights.items()}

    def relative_error(self, plain: PlainSeconds) -> float | None:
        """Relative standard error of the baseline over the loads served of late; None before any was measured.

        A load that is served and not measured counts as if it were known to within `_UNMEASURED_ERROR`.
        """
        served = sum(self._served_seconds.values())
        if not plain.cells or served <= 0.0:
            return None
        variance = 0.0
        unmeasured = 0.0
        for load, seconds in self._served_seconds.items():
            if load in plain.cells:
                variance += (seconds / served * plain.cells[load].relative_error) ** 2
            else:
                unmeasured += seconds / served
        return math.sqrt(variance + (unmeasured * _UNMEASURED_ERROR) ** 2)

    def gain(self, era: Era, plain: PlainSeconds) -> Gain:
        """The measured gain of a context with an arm, at equal load, over its latest requests."""
        pairs: list[tuple[float, float]] = []
        by_load: dict[int, float] = {}
        served = 0.0
        for request in self._finished.get(era, ()):
            numerator = denominator = 0.0
            for load, sums in request.served.items():
                served += sums.seconds
                if load in plain.cells:
                    seconds = plain.total(load, sums.weight, sums.weighted_kv)
                    by_load[load] = by_load.get(load, 0.0) + seconds
                    numerator += seconds
                    denominator += sums.seconds
            if denominator > 0.0:
                pairs.append((numerator, denominator))
        speedup = None
        covered = sum(denominator for _, denominator in pairs)
        if len(pairs) >= _GAIN_REQUESTS and covered > _COVERED_SHARE * served:
            total = sum(by_load.values())
            baseline_variance = sum(
                (seconds / total * plain.cells[load].relative_error) ** 2 for load, seconds in by_load.items()
            )
            speedup = ratio_interval(pairs, baseline_variance)
        return Gain(speedup, self._requests.get(era, 0), self._looped.get(era, 0))


def ratio_interval(pairs: list[tuple[float, float]], relative_variance: float = 0.0) -> Interval:
    """sum of numerators / sum of denominators over independent clusters, with its 95 % interval.

    The interval is symmetric in the logarithm, so that it stays positive. `relative_variance` is added for an error
    that all numerators share.
    """
    count = len(pairs)
    numerator = sum(above for above, _ in pairs)
    denominator = sum(below for _, below in pairs)
    ratio = numerator / denominator
    squares = sum((above - ratio * below) ** 2 for above, below in pairs)
    variance = count / (count - 1) * squares / numerator**2 + relative_variance
    width = _student_t(count - 1) * math.sqrt(variance)
    return Interval(ratio, ratio * math.exp(-width), ratio * math.exp(width))


def _student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by its expansion around the normal one (Abramowitz and Stegun 26.7.5)."""
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _kv_slope(cells: Mapping[int, _Sums]) -> float:
    """Seconds per KV token, from the spread within each load; never negative."""
    squares = products = 0.0
    for sums in cells.values():
        squares += sums.kv_squares - sums.weighted_kv**2 / sums.weight
        products += sums.kv_seconds - sums.weighted_kv * sums.seconds / sums.weight
    return max(0.0, products / squares) if squares > 0.0 else 0.0


def _add(left: Throughput, right: Throughput) -> Throughput:
    return Throughput(
        left.tuned_tokens + right.tuned_tokens,
        left.tuned_seconds + right.tuned_seconds,
        left.plain_tokens + right.plain_tokens,
        left.plain_seconds + right.plain_seconds,
    )

"""Plain cycle seconds as measured: by load, with a slope for the context, and without each stretch of time in turn."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.jackknife import student_t
from tuner.snapshot import BaselineCell

_CELL_CYCLES = 8
_CELL_CLUSTERS = 2
ROUNDING = 1e-9
"""What is left of a difference of sums, as a share of them, when they are equal."""


@dataclass(slots=True)
class PlainSums:
    """Plain cycles at one load."""

    cycles: float = 0.0
    kv: float = 0.0
    seconds: float = 0.0
    kv_squares: float = 0.0
    kv_seconds: float = 0.0

    def add(self, other: "PlainSums", sign: float = 1.0) -> None:
        self.cycles += sign * other.cycles
        self.kv += sign * other.kv
        self.seconds += sign * other.seconds
        self.kv_squares += sign * other.kv_squares
        self.kv_seconds += sign * other.kv_seconds

    def count(self, kv_tokens: int, seconds: float) -> None:
        self.cycles += 1.0
        self.kv += kv_tokens
        self.seconds += seconds
        self.kv_squares += kv_tokens * kv_tokens
        self.kv_seconds += kv_tokens * seconds


@dataclass(slots=True)
class ServedSums:
    """Served sequence-cycles at one load."""

    tokens: float = 0.0
    weighted_kv: float = 0.0
    """KV tokens of the cycle, summed over the tokens emitted."""
    seconds: float = 0.0

    def add(self, other: "ServedSums") -> None:
        self.tokens += other.tokens
        self.weighted_kv += other.weighted_kv
        self.seconds += other.seconds

    def less(self, other: "ServedSums") -> "ServedSums":
        return ServedSums(
            self.tokens - other.tokens, self.weighted_kv - other.weighted_kv, self.seconds - other.seconds
        )


@dataclass(frozen=True, slots=True)
class Line:
    """Plain cycle seconds by load, and how they rise with the context."""

    at_no_kv: Mapping[int, float]
    kv_token_seconds: float

    def total(self, load: int, served: ServedSums) -> float:
        """Seconds that plain takes for the tokens of `served`."""
        return served.tokens * self.at_no_kv[load] + self.kv_token_seconds * served.weighted_kv


@dataclass(frozen=True, slots=True)
class PlainSeconds:
    """Plain cycle seconds as measured."""

    cells: Mapping[int, BaselineCell]
    """By load."""
    mean_kv: Mapping[int, float]
    line: Line
    without: Mapping[int, Line]
    """The line without each of the clusters."""
    weights: Mapping[int, Mapping[int, float]]
    """By cluster and load: its share of the plain cycles at that load."""
    joined: int
    """How often clusters had been joined when this was made."""

    def freedom(self, shares: Mapping[int, float]) -> float:
        """Degrees of freedom of the error of a mean over loads with `shares`."""
        above = below = 0.0
        for load, share in shares.items():
            squares = sum(weights.get(load, 0.0) ** 2 for weights in self.weights.values())
            part = share**2 * squares
            above += part
            below += part**2 / max(1.0 / squares - 1.0, 0.1)
        return above**2 / below

    @property
    def kv_token_seconds(self) -> float:
        """Seconds that a cycle takes longer for each context token more."""
        return self.line.kv_token_seconds


def plain_seconds(by_cluster: Mapping[int, Mapping[int, PlainSums]], joined: int) -> PlainSeconds:
    """From the cycles by cluster and load; only loads measured often enough."""
    totals: dict[int, PlainSums] = {}
    met: dict[int, int] = {}
    for cluster in by_cluster.values():
        for load, sums in cluster.items():
            totals.setdefault(load, PlainSums()).add(sums)
            met[load] = met.get(load, 0) + 1
    measured = {
        load: sums
        for load, sums in sorted(totals.items())
        if sums.cycles >= _CELL_CYCLES and met[load] >= _CELL_CLUSTERS
    }
    line = _line(measured)
    mean_kv = {load: sums.kv / sums.cycles for load, sums in measured.items()}
    means = {load: sums.seconds / sums.cycles for load, sums in measured.items()}
    without: dict[int, Line] = {}
    weights: dict[int, dict[int, float]] = {}
    for key, cluster in by_cluster.items():
        mine = {load: sums for load, sums in cluster.items() if load in measured}
        if mine:
            without[key] = _line(_less(measured, mine))
            weights[key] = {load: sums.cycles / measured[load].cycles for load, sums in mine.items()}
    errors = _relative_errors(by_cluster, means, mean_kv, line.kv_token_seconds)
    cells = {load: BaselineCell(load, round(sums.cycles), means[load], errors[load]) for load, sums in measured.items()}
    return PlainSeconds(cells, mean_kv, line, without, weights, joined)


def _relative_errors(
    by_cluster: Mapping[int, Mapping[int, PlainSums]],
    means: Mapping[int, float],
    mean_kv: Mapping[int, float],
    slope: float,
) -> dict[int, float]:
    """Standard errors of the means with windows as clusters, as shares of the means.

    The variance of one window's mean is pooled over loads, since a load seen in few windows has no estimate of
    its own that could be trusted. While there are few windows in all, the errors are wider, as Student's t is.
    """
    squares = 0.0
    clusters = 0
    weights: dict[int, list[float]] = {load: [] for load in means}
    for cluster in by_cluster.values():
        for load, sums in cluster.items():
            if load in means:
                residual = sums.seconds - sums.cycles * means[load]
                residual -= slope * (sums.kv - sums.cycles * mean_kv[load])
                squares += (residual / means[load]) ** 2 / sums.cycles
                clusters += 1
                weights[load].append(sums.cycles)
    freedom = clusters - len(means)
    if freedom <= 0:
        return {}
    # A window of n cycles has a mean with variance between v / n (independent cycles) and v (all alike).
    # `squares` estimates n times that variance, averaged over windows, which is right for windows of like length.
    variance = squares / freedom * (student_t(freedom) / student_t(math.inf)) ** 2
    return {load: math.sqrt(variance / sum(counts)) for load, counts in weights.items()}


def _less(measured: Mapping[int, PlainSums], mine: Mapping[int, PlainSums]) -> dict[int, PlainSums]:
    rest = dict(measured)
    for load, sums in mine.items():
        left = PlainSums()
        left.add(measured[load])
        left.add(sums, -1.0)
        rest[load] = left
    return rest


def _line(cells: Mapping[int, PlainSums]) -> Line:
    """Means by load and one slope from the spread within each load; the slope is never negative."""
    squares = products = noise = 0.0
    for sums in cells.values():
        squares += sums.kv_squares - sums.kv**2 / sums.cycles
        products += sums.kv_seconds - sums.kv * sums.seconds / sums.cycles
        noise += sums.kv_squares * ROUNDING
    slope = max(0.0, products / squares) if squares > noise else 0.0
    return Line({load: (sums.seconds - slope * sums.kv) / sums.cycles for load, sums in cells.items()}, slope)

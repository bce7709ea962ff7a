"""Counts, histograms and gauges of one table of metrics, and the Prometheus families that they make."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tuner.metric_table import PREFIX, Kind, Metric

Labels = tuple[str, ...]
"""Values, in the order of the table's labels."""


class Histogram:
    """Counts of values by upper bound, with their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` rise; what lies above the last is counted too."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """([(upper bound, values at or below it)], sum), +Inf last."""
        return cumulated(dict(zip((*self._bounds, math.inf), self._counts, strict=True))), self._sum

    def copy(self) -> "Histogram":
        twin = Histogram(self._bounds)
        twin._counts, twin._sum = self._counts.copy(), self._sum
        return twin


class Tally:
    """Names are without the prefix. Not thread-safe."""

    def __init__(self, table: Mapping[str, Metric]) -> None:
        self._table = table
        self._samples: defaultdict[str, defaultdict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: defaultdict[str, dict[Labels, Histogram]] = defaultdict(dict)

    def count(self, name: str, labels: Labels, amount: float) -> None:
        """Add to a counter; 0 lets its series begin."""
        self._samples[name][labels] += amount

    def set(self, name: str, labels: Labels, value: float) -> None:
        """What a gauge, or a counter that is kept elsewhere, says."""
        self._samples[name][labels] = float(value)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        histograms = self._histograms[name]
        if labels not in histograms:
            histograms[labels] = Histogram(self._table[PREFIX + name].buckets)
        histograms[labels].observe(value)

    def copy(self) -> "Tally":
        """One to add readings to that are not counted on."""
        twin = Tally(self._table)
        for name, values in self._samples.items():
            twin._samples[name].update(values)
        for name, histograms in self._histograms.items():
            twin._histograms[name] = {labels: histogram.copy() for labels, histogram in histograms.items()}
        return twin

    def families(self, unknown: frozenset[str] = frozenset()) -> list[Family]:
        """One for each metric of the table, in its order; one without samples, or of a name (in full) that is
        `unknown` here, has its HELP and TYPE only."""
        return [self._family(metric, known=metric.name not in unknown) for metric in self._table.values()]

    def _family(self, metric: Metric, *, known: bool) -> Family:
        name = metric.name.removeprefix(PREFIX)
        if metric.kind is Kind.HISTOGRAM:
            family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, histogram in self._histograms.get(name, {}).items() if known else ():
                buckets, total = histogram.cumulative()
                family.add_metric(labels, buckets, total)
            return family
        single = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        made = single(metric.name, metric.meaning, labels=metric.labels)
        for labels, value in self._samples.get(name, {}).items() if known else ():
            made.add_metric(labels, value)
        return made


def cumulated(counts: Mapping[float, int]) -> list[tuple[str, float]]:
    """[(upper bound, values at or below it)], +Inf last, of the values in each bucket."""
    buckets, total = [], 0
    for bound, count in sorted({math.inf: 0, **counts}.items()):
        total += count
        buckets.append(("+Inf" if bound == math.inf else str(bound), float(total)))
    return buckets


class _Page(Collector):
    """A collector over families that are already made."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def page(families: Iterable[Family]) -> bytes:
    """The Prometheus text format; nothing of it is kept."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(tuple(families)))
    return generate_latest(registry)

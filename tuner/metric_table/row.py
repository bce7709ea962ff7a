"""What a row of the table of metrics says."""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "paceline_"


class Kind(StrEnum):
    """The Prometheus type of a metric; an ``_info`` metric is a gauge that is always 1."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    """With prefix and suffix, as it is queried; a histogram adds ``_bucket``, ``_sum`` and ``_count``."""
    kind: Kind
    unit: str
    """``seconds``, ``tokens``, ``ratio`` and so on; ratios are between 0 and 1 unless the meaning says otherwise."""
    labels: tuple[str, ...]
    meaning: str
    """One sentence; also the HELP line."""
    action: str
    """What to do about it."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""


def counter(name: str, unit: str, labels: tuple[str, ...], meaning: str, action: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", Kind.COUNTER, unit, labels, meaning, action)


def gauge(name: str, unit: str, labels: tuple[str, ...], meaning: str, action: str) -> Metric:
    return Metric(f"{PREFIX}{name}", Kind.GAUGE, unit, labels, meaning, action)


def histogram(name: str, labels: tuple[str, ...], buckets: tuple[float, ...], meaning: str, action: str) -> Metric:
    return Metric(f"{PREFIX}{name}", Kind.HISTOGRAM, "seconds", labels, meaning, action, buckets)

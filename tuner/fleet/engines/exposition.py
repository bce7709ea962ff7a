"""Prometheus' text exposition: the samples of the names that are wanted.

`prometheus_client.parser` reads every line here, one by one. Over a whole page it would end at the first line that is
not as it should be, append ``_total`` to the names of old counters, and read a thousand lines of histograms that
nobody asked for; by itself it copes with colons in names, escapes in labels, exemplars and timestamps. Names are taken
as they stand on the page and never by a prefix, so that ``x_created`` is not taken for ``x`` (vllm#41916).
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]
"""Sorted by name."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """What a page tells."""

    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    """By name, then by labels; finite values only."""
    malformed: int = 0
    """Lines of wanted names that could not be read, or that tell the same series once more."""

    def of(self, name: str) -> Mapping[Labels, float]:
        """The samples of `name`; empty where the page has none, which is no data and not zero."""
        return self.samples.get(name, {})


def read_exposition(text: str, wanted: Container[str]) -> Exposition:
    """The samples of `text` whose names are in `wanted`. What else there is, is not looked at."""
    samples: dict[str, dict[Labels, float]] = {}
    malformed = 0
    for line in text.split("\n"):  # and not at what else ends a line, since a label may hold it
        name = _name(line)
        if name not in wanted:
            continue
        try:
            (family,) = text_string_to_metric_families(line)
            (sample,) = family.samples
            value = float(sample.value)
        except (ValueError, IndexError, OverflowError):  # what comes of lines that are none
            malformed += 1
            continue
        labels = tuple(sorted(sample.labels.items()))
        series = samples.setdefault(name, {})
        if labels in series:
            malformed += 1
        elif math.isfinite(value):
            series[labels] = value
    return Exposition(samples, malformed)


def _name(line: str) -> str:
    """The name that a line of a sample begins with; of a comment what no name is."""
    end = len(line)
    for stop in ("{", " ", "\t"):
        found = line.find(stop)
        if found >= 0:
            end = min(end, found)
    return line[:end]

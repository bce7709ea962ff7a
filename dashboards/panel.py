"""The values a dashboard is written in: boards, panels, queries, and the few shapes of PromQL that they use.

Counters are read with `rate` over ``$__rate_interval``, so that a restart or another time range changes nothing;
only shares over the whole range use ``$__range``. A ratio's denominator is filtered to be above zero: no traffic is
a gap and not a zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

INSTANCES = '{job=~"$job", instance=~"$instance"}'
ROUTES = '{job=~"$job", instance=~"$instance", route=~"$route"}'


class Form(StrEnum):
    """How a panel is drawn."""

    LINES = "lines"
    STACKED = "stacked"
    BARS = "bars"
    NUMBERS = "numbers"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression with ``$`` variables, and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Tables, bars and numbers ask for the present, lines for the whole range."""

    title: str
    description: str
    unit: str
    """A Grafana unit, e.g. ``s`` or ``percentunit``."""
    queries: tuple[Query, ...]
    form: Form = Form.LINES
    width: int = 8
    """Of the 24 columns."""
    threshold: float | None = None
    """A horizontal line; values below it are drawn as a warning."""
    columns: Mapping[str, str] | None = None
    """For a table: column title by label or ``Value #A`` (first query), ``Value #B`` and so on."""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """What its reader may choose; every value is chosen at first."""

    name: str
    label: str
    query: str
    """``label_values(...)``."""


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    file: str
    """Beside this module."""
    title: str
    uid: str
    description: str
    variables: tuple[Variable, ...]
    """Besides the data source."""
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """In their order."""
        return tuple(panel for row in self.rows for panel in row.panels)


def rate(metric: str, by: str = "", where: str = ROUTES) -> str:
    """Increase per second of a counter, summed over what `by` does not name."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{where}[$__rate_interval]))"


def quantile(fraction: float, metric: str, by: str, where: str = ROUTES) -> str:
    """A quantile of a histogram in seconds."""
    return f"histogram_quantile({fraction}, sum by ({by}, le) (rate({metric}_bucket{where}[$__rate_interval])))"


def share(above: str, below: str) -> str:
    """A ratio; a gap where there is nothing to divide by."""
    return f"{above} / ({below} > 0)"


def over_range(metric: str, by: str, where: str = INSTANCES) -> str:
    """Increase of a counter over the whole range shown."""
    return f"sum by ({by}) (increase({metric}{where}[$__range]))"

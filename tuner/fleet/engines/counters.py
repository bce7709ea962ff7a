"""Counters of a server that restarts now and then, with several engines behind one page.

A counter is a set of series that differ in their labels, such as one for each ``engine``. Each of them starts again by
itself: what it counted between two readings is its difference, or all that it tells if it began in between. That it
began is seen in a lower value, in a ``_created`` that moved or in another process; a series that was not there counts
from zero. Series of which the page has none are no data, and not zero.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuner.fleet.engines.exposition import Exposition, Labels


@dataclass(frozen=True, slots=True)
class Count:
    """One series at one moment."""

    value: float
    created: float | None = None
    """Unix seconds; None where the page does not tell."""


Counter = Mapping[Labels, Count]
"""By labels; empty where the page has no such counter."""


def read_counter(page: Exposition, name: str) -> Counter:
    """The counter `name`, which ends in ``_total`` or is a part of a histogram."""
    created = page.of(created_name(name))
    return {
        labels: Count(value, created.get(_without_bound(labels)))
        for labels, value in page.of(name).items()
        if value >= 0.0
    }


def created_name(name: str) -> str:
    """Of the series that tells when `name` began: a moment, never to be summed."""
    for end in ("_total", "_bucket", "_sum", "_count"):
        if name.endswith(end):
            return name.removesuffix(end) + "_created"
    return name + "_created"


def increases(before: Counter, after: Counter, *, restarted: bool) -> dict[Labels, float]:
    """What each series of `after` counted since `before`.

    Args:
        restarted: the process is another one; lower values and moved ``_created`` are seen without being told.
    """
    return {labels: _increase(before.get(labels), now, restarted) for labels, now in after.items()}


def increase(before: Counter, after: Counter, *, restarted: bool) -> float | None:
    """The sum of `increases`; None where `after` has no series."""
    return sum(increases(before, after, restarted=restarted).values()) if after else None


def increases_by(label: str, before: Counter, after: Counter, *, restarted: bool) -> dict[str, float]:
    """`increases`, summed over all other labels than `label`; series without it are left out."""
    sums: dict[str, float] = {}
    for labels, gained in increases(before, after, restarted=restarted).items():
        key = dict(labels).get(label)
        if key is not None:
            sums[key] = sums.get(key, 0.0) + gained
    return sums


def began_again(before: Iterable[Counter], after: Iterable[Counter]) -> bool:
    """Whether any series that both have began in between."""
    return any(
        _is_new(was, counter[labels])
        for old, counter in zip(before, after, strict=True)
        for labels, was in old.items()
        if labels in counter
    )


def _increase(was: Count | None, now: Count, restarted: bool) -> float:
    return now.value if was is None or restarted or _is_new(was, now) else now.value - was.value


def _is_new(was: Count, now: Count) -> bool:
    if was.created is not None and now.created is not None and was.created != now.created:
        return True
    return now.value < was.value


def _without_bound(labels: Labels) -> Labels:
    """Those of a histogram's bucket as its ``_created`` has them."""
    return tuple(one for one in labels if one[0] != "le")

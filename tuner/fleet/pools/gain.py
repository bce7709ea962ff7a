"""What a context gains over plain, measured: seconds per token of plain over seconds per token as served.

Plain is the context's own, on plain lanes, whether its requests were drawn to measure it or given plain for another
reason of ours; each counts by one over the chance that it had (Horvitz and Thompson 1952), since the share that is
drawn falls with time. It is compared at equal load: served tokens of each load are priced at what plain took there,

    gain = sum over loads of served_tokens * plain_seconds_per_token(load)  /  sum of served_seconds

with post-strata by the load's power of two, each drawn towards the context's plain at all loads by a few requests'
worth, and the context's plain curve in between. Loads at which the context had no plain are left out of both sums: what
other lanes do there is not what plain would have done. It is a ratio of sums, and it is at equal load, not at equal
arrivals: a faster pool also has fewer requests in progress.

Intervals are the delete-one jackknife over stretches of time: what slows a machine slows the requests of a moment
together, so requests are not independent and stretches nearly are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.types import Interval
from tuner.fleet.pools.counts import BINS, Part
from tuner.fleet.pools.mixed_model import summed
from tuner.fleet.pools.rows import PLAIN_KIND, Floats, Ints
from tuner.fleet.pools.speeds import Speeds
from tuner.jackknife import freedom, ratio_interval

_CLUSTERS = 24
_DRAWN_REQUESTS = 4.0
"""What a context's plain at all loads is worth at one of them."""
_LEAST_REQUESTS = 8.0
"""Of plain and of what is served, before anything is said."""
_LEAST_AT_LOAD = 4.0
"""Plain requests of a load that is compared."""
_COVERED_SHARE = 0.5
"""Of the served tokens that must be at loads that are compared."""
_SECONDS = 1e6
_LEFT = 1e-12


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison, (clusters, BINS)."""

    requests: Floats
    work: Floats
    """Tokens, each by the plain curve's seconds at its load."""
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Comparison:
    """One context's plain and what served it."""

    plain: Side
    served: Side


class Gains:
    """Gains by context, route and all together, from one reading of the counts."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        rows = speeds.rows
        self._plain = rows.kinds.index(PLAIN_KIND) if PLAIN_KIND in rows.kinds else None
        self._clusters = _clusters(rows.epoch, rows.of("tokens"), len(rows.epochs))

    @property
    def plain_known(self) -> bool:
        """Whether there is a plain lane: without one every gain is unknown."""
        return self._plain is not None

    def of(self, contexts: Sequence[int], parts: Sequence[Part], since: float = 0.0) -> Interval | None:
        """The gain over `contexts`, by their places, of what served as `parts`; None while it is unknown.

        `since`, in Unix seconds, leaves out what came before.
        """
        compared = [self._comparison(context, parts, since) for context in contexts]
        return gain([one for one in compared if one is not None])

    def _comparison(self, context: int, parts: Sequence[Part], since: float) -> Comparison | None:
        if self._plain is None:
            return None
        rows = self._speeds.rows
        here = rows.context == context
        if since:
            here &= np.array([epoch.started_at >= since for epoch in rows.epochs])[rows.epoch]
        is_plain = here & (rows.kind == self._plain)
        is_plain &= rows.is_part((Part.HELD, Part.LEARNED, Part.DEFAULT, Part.PINNED))
        curve = self._speeds.values[self._plain, context]
        return Comparison(
            self._side(curve, np.flatnonzero(is_plain), "weighted_tokens", "weighted_micros", 1000.0),
            self._side(curve, np.flatnonzero(here & rows.is_part(parts)), "tokens", "micros", 1.0),
        )

    def _side(self, curve: Floats, at: Ints, tokens: str, micros: str, scale: float) -> Side:
        rows = self._speeds.rows
        number = rows.of("tokens")[at]
        load = np.log2(np.maximum(rows.of("loads")[at] / np.maximum(number, _LEFT) / 1000.0, 1.0))
        price = np.exp(np.interp(load, np.arange(BINS), curve))
        place = self._clusters[rows.epoch[at]] * BINS + rows.bin[at]
        size = (int(self._clusters.max(initial=0)) + 1) * BINS

        def table(values: Floats) -> Floats:
            return summed(place, values, size).reshape(-1, BINS)

        return Side(
            table(rows.of("requests")[at]),
            table(rows.of(tokens)[at] / scale * price),
            table(rows.of(micros)[at] / scale / _SECONDS),
        )


def gain(compared: Sequence[Comparison]) -> Interval | None:
    """The gain over all of `compared`, whose clusters are the same; None while too little was measured."""
    compared = [found for one in compared if (found := _covered(one)) is not None]
    if not compared:
        return None
    clusters = len(compared[0].plain.work)
    expected, served = np.zeros(clusters + 1), np.zeros(clusters + 1)
    for one in compared:
        expected += _expected(one)
        served += _left_out(one.served.seconds).sum(axis=1)
    values = expected / np.maximum(served, _LEFT)
    if not values.min() > 0.0:
        return None
    free = min(
        freedom(list(sum(side.seconds.sum(axis=1) for side in sides)))
        for sides in ([one.plain for one in compared], [one.served for one in compared])
    )
    return ratio_interval(float(values[0]), list(values[1:]), free)


def _covered(one: Comparison) -> Comparison | None:
    """What of `one` can be compared; None where that is too little."""
    at = one.plain.requests.sum(axis=0) >= _LEAST_AT_LOAD
    plain, served = (Side(side.requests * at, side.work * at, side.seconds * at) for side in (one.plain, one.served))
    if min(plain.requests.sum(), served.requests.sum()) < _LEAST_REQUESTS:
        return None
    if served.work.sum() < _COVERED_SHARE * one.served.work.sum():
        return None
    return Comparison(plain, served)


def _expected(one: Comparison) -> Floats:
    """(clusters + 1,): what plain would have taken for what was served; first over all clusters, then without each."""
    work, seconds = _left_out(one.plain.work), _left_out(one.plain.seconds)
    requests = _left_out(one.plain.requests)
    all_work = np.maximum(work.sum(axis=1), _LEFT)
    pooled = seconds.sum(axis=1) / all_work
    drawn = _DRAWN_REQUESTS * all_work / np.maximum(requests.sum(axis=1), _LEFT)
    factors = (seconds + (drawn * pooled)[:, None]) / (work + drawn[:, None])
    return np.asarray((factors * _left_out(one.served.work)).sum(axis=1))


def _left_out(table: Floats) -> Floats:
    """(clusters + 1, BINS): the sums over all clusters, then over all but each."""
    total = table.sum(axis=0)
    return np.concatenate([total[None, :], np.maximum(total[None, :] - table, 0.0)])


def _clusters(epoch: Ints, tokens: Floats, epochs: int) -> Ints:
    """(epochs,): stretches of time joined to clusters of about the same number of tokens, in order."""
    if not epochs:
        return np.zeros(0, dtype=np.int64)
    before = np.cumsum(summed(epoch, tokens, epochs))
    place = np.floor(_CLUSTERS * (before - 1e-9) / max(float(before[-1]), _LEFT))
    return np.asarray(np.unique(np.maximum(place, 0.0), return_inverse=True)[1], dtype=np.int64)

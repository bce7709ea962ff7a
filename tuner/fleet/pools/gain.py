"""What a context gains over plain, measured: seconds per token of plain over seconds per token as served.

Plain is the context's own, on plain lanes, whether its requests were drawn to measure it or given plain for another
reason of ours; each counts by one over the chance that it had (Horvitz and Thompson 1952), since the share that is
drawn falls with time. It is compared at equal load: served tokens of each load are priced at what plain took there,

    gain = sum over loads of served_tokens * plain_seconds_per_token(load)  /  sum of served_seconds

with post-strata by the load's power of two, each drawn towards the context's plain at all loads by a few requests'
worth, and the plain curve in between. Loads at which the context had no plain are left out of both sums: what
other lanes do there is not what plain would have done. It is a ratio of sums, and it is at equal load, not at equal
arrivals: a faster pool also has fewer requests in progress.

Intervals are the delete-one jackknife over stretches of time: what slows a machine slows the requests of a moment
together, so requests are not independent and stretches nearly are. Loads that were served are taken as they came, so a
gain that differs by load is not taken for noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.types import Interval
from tuner.fleet.pools.counts import BINS, Part
from tuner.fleet.pools.mixed_model import summed
from tuner.fleet.pools.plain_curve import plain_curves
from tuner.fleet.pools.rows import PLAIN_KIND, Floats, Ints
from tuner.fleet.pools.speeds import Speeds
from tuner.jackknife import freedom, student_t, variance

_BASELINE = (Part.HELD, Part.LEARNED, Part.DEFAULT, Part.PINNED)
"""Requests on plain lanes that are like the others."""
_CLUSTERS = 24
_DRAWN_REQUESTS = 4.0
"""What a context's plain at all loads is worth at one of them."""
_LEAST_REQUESTS = 8.0
"""Of plain and of what is served, before anything is said."""
_LEAST_AT_LOAD = 8.0
"""Plain requests of a load that is compared."""
_COVERED_SHARE = 0.5
"""Of the served tokens that must be at loads that are compared."""
_SECONDS = 1e6
_LEFT = 1e-12
_ALONE = 1e-9
_LEAST_CLUSTERS = 1.5
_LENGTHS = 2.0
"""By so much a ratio of sums over requests of unequal lengths varies more than a mean (exponential lengths)."""
_LEAST_FREEDOM = 2.0
"""With less, Student's t is so wide that an interval says nothing."""


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
        if self._plain is not None:
            plain = np.flatnonzero((rows.kind == self._plain) & rows.is_part(_BASELINE))
            self._curves = plain_curves(rows, plain, speeds.noise**2)
        self._clusters = _clusters(rows.epoch, rows.of("tokens"), len(rows.epochs))

    @property
    def plain_known(self) -> bool:
        """Whether there is a plain lane: without one every gain is unknown."""
        return self._plain is not None

    def of(self, contexts: Sequence[int], parts: Sequence[Part], since: float = 0.0) -> Interval | None:
        """The gain over `contexts`, by their places, of what served as `parts`; None while it is unknown.

        `since`, in Unix seconds, leaves out what came before. Plain beside itself is no gain: None too where nothing
        but plain served.
        """
        rows = self._speeds.rows
        if not np.any(np.isin(rows.context, contexts) & rows.is_part(parts) & (rows.kind != self._plain)):
            return None
        compared = [self._comparison(context, parts, since) for context in contexts]
        return gain([one for one in compared if one is not None], self._speeds.noise)

    def _comparison(self, context: int, parts: Sequence[Part], since: float) -> Comparison | None:
        if self._plain is None:
            return None
        rows = self._speeds.rows
        here = rows.context == context
        if since:
            here &= np.array([epoch.started_at >= since for epoch in rows.epochs])[rows.epoch]
        is_plain = here & (rows.kind == self._plain)
        is_plain &= rows.is_part(_BASELINE)
        curve = self._curves[context]
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


def gain(compared: Sequence[Comparison], noise: float) -> Interval | None:
    """The gain over all of `compared`, whose clusters are the same; None while too little was measured.

    `noise` is the standard deviation of a request's ln(seconds per token): at a load that came in one cluster or two,
    leaving a cluster out tells nothing, and it stands in.
    """
    compared = [found for one in compared if (found := _covered(one)) is not None]
    if not compared:
        return None
    clusters = len(compared[0].plain.work)
    expected, served, unseen = np.zeros(clusters + 1), np.zeros(clusters + 1), 0.0
    for one in compared:
        # What was served at each load is as it was; left out is only what a cluster tells of the seconds there.
        work = one.served.work.sum(axis=0)
        plain, as_served = work * _factors(one.plain), work * _factors(one.served, drawn=0.0)
        expected += plain.sum(axis=1)
        served += as_served.sum(axis=1)
        unseen += float((plain[0] ** 2) @ _unseen(one.plain))
        unseen += float((as_served[0] ** 2) @ _unseen(one.served))
    if min(expected.min(), served.min()) <= 0.0:
        return None
    values = expected / served
    free = min(
        freedom(list(sum(side.seconds.sum(axis=1) for side in sides)))
        for sides in ([one.plain for one in compared], [one.served for one in compared])
    )
    if free < _LEAST_FREEDOM:
        return None
    spread = variance(float(values[0]), list(values[1:])) + _LENGTHS * noise**2 * unseen / float(served[0]) ** 2
    width = student_t(free) * math.sqrt(spread)
    return Interval(float(values[0]), float(values[0]) * math.exp(-width), float(values[0]) * math.exp(width))


def _covered(one: Comparison) -> Comparison | None:
    """What of `one` can be compared; None where that is too little."""
    at = one.plain.requests.sum(axis=0) >= _LEAST_AT_LOAD
    plain, served = (Side(side.requests * at, side.work * at, side.seconds * at) for side in (one.plain, one.served))
    if min(plain.requests.sum(), served.requests.sum()) < _LEAST_REQUESTS:
        return None
    if served.work.sum() < _COVERED_SHARE * one.served.work.sum():
        return None
    return Comparison(plain, served)


def _factors(side: Side, drawn: float = _DRAWN_REQUESTS) -> Floats:
    """(clusters + 1, BINS): seconds over those of the plain curve; first over all clusters, then without each.

    `drawn` is by how many requests each load is drawn to all of them. A load that a cluster alone has is as it is.
    """
    work, seconds, requests = _left_out(side.work), _left_out(side.seconds), _left_out(side.requests)
    all_work = np.maximum(work.sum(axis=1), _LEFT)
    pooled = seconds.sum(axis=1) / all_work
    worth = drawn * all_work / np.maximum(requests.sum(axis=1), _LEFT)
    with np.errstate(invalid="ignore", divide="ignore"):
        factors = (seconds + (worth * pooled)[:, None]) / (work + worth[:, None])
    alone = ~(work > _ALONE * work[0])
    return np.asarray(np.where(alone, np.where(work[0] > 0.0, factors[0], 0.0), factors))


def _unseen(side: Side) -> Floats:
    """(BINS,): one over the requests of a load, where too few clusters have it; else 0."""
    squares = (side.work**2).sum(axis=0)
    clusters = side.work.sum(axis=0) ** 2 / np.maximum(squares, _LEFT)
    requests = side.requests.sum(axis=0)
    return np.asarray(np.where((clusters < _LEAST_CLUSTERS) & (requests > 0.0), 1.0 / np.maximum(requests, 1.0), 0.0))


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

"""Seconds per token by lane, context and load, from counts: ratios of sums, pooled over what is alike.

A cell is (lane, context, load). Its seconds over its tokens are one ratio of means; `mixed_model` lets cells borrow
from their load, kind of lane, route, language and context. What a route does at a load on a kind of lane is a term of
its own, since drafts that are often kept fill a pass sooner: no route is taken to scale like the others for long.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from tuner.fleet.pools.change import LEAST_CHANGE, changed_at
from tuner.fleet.pools.counts import BINS
from tuner.fleet.pools.mixed_model import LEAST_NOISE, Fit, Term, fit, rising, summed, within_noise
from tuner.fleet.pools.rows import ContextKey, Floats, Ints, Kind, Rows

_START_SECONDS = 0.02
"""Seconds per token at load 1 while nothing is known; only ratios matter then."""
_START_SLOPE = 0.5
"""Of ln(seconds) over ln(load) beyond the loads that were served: between a server that has room and a full one."""
_START_NOISE = 0.3
_LOADS, _KINDS, _LANES, _ROUTES, _CONTEXTS = range(5)
_KIND_LOADS, _KIND_ROUTES, _KIND_LANGUAGES, _KIND_CONTEXTS, _CELLS = range(5, 10)
_SPREADS = (1.0, 0.3, 0.1, 0.2, 0.1, 0.2, 0.25, 0.15, 0.15, 0.1)
"""Guesses of how much each term varies, in the order above."""
_OF_A_KIND = (_KINDS, _KIND_LOADS, _KIND_ROUTES, _KIND_LANGUAGES, _KIND_CONTEXTS)
"""What tells kinds of lanes apart, and so is unsure when two of them are compared."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Something is not as fast as it was."""

    lane: str
    """Empty where `context` moved on every lane of a kind."""
    kind: Kind
    context: ContextKey | None
    at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """What is known; not edited once it is made."""

    rows: Rows
    lane_effects: Floats
    """(lanes,): of ln(seconds)."""
    curves: Floats
    """(kinds, BINS): ln(seconds per token) by the load's power of two, over all contexts; rises with the load."""
    values: Floats
    """(kinds, contexts, BINS): the same of a context, without `lane_effects`."""
    errors: Floats
    """(kinds, contexts, BINS): standard errors of `values`, as far as kinds differ in them."""
    new_errors: tuple[float, ...]
    """(kinds,): the same in a context that is new."""
    requests: Floats
    """(kinds, contexts): on which they rest, aged."""
    noise: float
    """Standard deviation of ln(seconds per token) between requests of one cell."""
    moved: tuple[Moved, ...]


def speeds_of(rows: Rows) -> Speeds:
    """Estimates from `rows`, of which what came before a change does not count."""
    cells = _Cells(rows)
    found = cells.fitted()
    moved: list[Moved] = []
    if len(rows.epoch):
        moved = cells.split_lanes(found)
        if moved:
            found = cells.fitted()
        since = cells.split_contexts(found)
        if since:
            found = cells.fitted()
            moved += since
    return cells.speeds(found, tuple(moved))


class _Cells:
    """Rows and what of them still counts."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        lanes, kinds, contexts = len(rows.lanes), len(rows.kinds), len(rows.contexts)
        self.sizes = (
            BINS,
            kinds,
            2 * lanes,
            len(rows.routes),
            contexts,
            kinds * BINS,
            kinds * len(rows.routes),
            kinds * len(rows.languages),
            kinds * contexts,
            kinds * contexts * BINS,
        )
        self.era: Ints = rows.lane.copy()
        """By row: the lane, or the lane plus their number where it was another thing then."""
        self.counted: Floats = np.ones(len(rows.epoch))
        self.requests = rows.of("requests")
        self.values: Floats = np.zeros(len(rows.epoch))
        self.noise = _START_NOISE**2

    def groups(self, lane: Ints, kind: Ints, context: Ints, load: Ints) -> tuple[Ints, ...]:
        """Of each term, in order, for cells given by parallel arrays."""
        rows = self.rows
        routes, languages = rows.context_routes[context], rows.context_languages[context]
        of_context = kind * len(rows.contexts) + context
        return (
            load,
            kind,
            lane,
            routes,
            context,
            kind * BINS + load,
            kind * len(rows.routes) + routes,
            kind * len(rows.languages) + languages,
            of_context,
            of_context * BINS + load,
        )

    def fitted(self) -> Fit:
        """Twice: the second time each row is read at the middle of its bin, along the slope that was found."""
        rows = self.rows
        tokens = np.maximum(rows.of("tokens"), 1e-9)
        raw = np.log(np.maximum(rows.of("micros"), 1e-9) / 1e6 / tokens)
        away = np.log(np.maximum(rows.of("loads") / tokens / 1000.0, 1.0)) - rows.bin * math.log(2.0)
        key = (self.era * max(len(rows.contexts), 1) + rows.context) * BINS + rows.bin
        _, first, cell = np.unique(key, return_index=True, return_inverse=True)
        at = tuple(each[first] for each in self.groups(self.era, rows.kind, rows.context, rows.bin))
        terms = [Term(group, size, spread) for group, size, spread in zip(at, self.sizes, _SPREADS, strict=True)]

        def total(column: Floats) -> Floats:
            return summed(cell, column * self.counted, len(first))

        requests = total(self.requests)
        milli = total(rows.of("logs")) / 1000.0
        noise = within_noise(requests, milli, total(rows.of("squares")) / 1e6)
        several = float(np.maximum(requests - 1.0, 0.0).sum())
        self.noise = max((several * noise + 10.0 * _START_NOISE**2) / (several + 10.0), LEAST_NOISE**2)
        found = Fit((), (), (), self.noise, np.zeros(0))
        slopes: Floats = np.full(BINS, _START_SLOPE)
        for _ in range(2):
            self.values = raw - slopes[rows.bin] * away
            seconds = np.exp(self.values) * tokens
            # A ratio of sums: seconds at the bin's middle over tokens.
            means = np.log(np.maximum(total(seconds), 1e-12) / np.maximum(total(tokens), 1e-12))
            means = np.where(requests > 0.0, means, 0.0)
            middle = float((means * requests).sum() / requests.sum()) if requests.sum() else math.log(_START_SECONDS)
            found = fit(means - middle, requests, terms, self.noise)
            curve = completed(found.effects[_LOADS] + middle, found.weights[_LOADS])
            slopes = np.gradient(curve) / math.log(2.0)
            found = replace(found, effects=(curve, *found.effects[1:]))
        self.left = self.values - self._predicted(found) if len(rows.epoch) else self.values
        return found

    def _predicted(self, found: Fit) -> Floats:
        groups = self.groups(self.era, self.rows.kind, self.rows.context, self.rows.bin)
        return np.asarray(sum(effect[group] for effect, group in zip(found.effects, groups, strict=True)))

    def split_lanes(self, found: Fit) -> list[Moved]:
        """Lanes that moved: what they were before is another lane, of the same kind."""
        rows = self.rows
        moved = []
        lanes = len(rows.lanes)
        for lane in range(lanes):
            since = self._changed(rows.lane == lane, found.noise)
            if since is not None and self._moved_as_one(lane, since):
                self.era[(rows.lane == lane) & (rows.epoch < since)] += lanes
                kind = rows.kinds[rows.lane_kinds[lane]]
                moved.append(Moved(rows.lanes[lane].name, kind, None, rows.epochs[since].started_at))
        return moved

    def split_contexts(self, found: Fit) -> list[Moved]:
        """Contexts that moved on a kind of lane: what they were before is forgotten."""
        rows = self.rows
        moved = []
        newest = rows.epoch >= rows.epoch.max() - 8
        pairs = np.unique(np.stack([rows.kind[newest], rows.context[newest]]), axis=1)
        for kind, context in pairs.T:
            here = (rows.kind == kind) & (rows.context == context)
            since = self._changed(here, found.noise)
            if since is not None:
                self.counted[here & (rows.epoch < since)] = 0.0
                key = rows.contexts[context]
                moved.append(Moved("", rows.kinds[kind], key, rows.epochs[since].started_at))
        return moved

    def _moved_as_one(self, lane: int, since: int) -> bool:
        """Whether most of what a lane serves moved, and in one direction: if one context did, it is no lane's doing."""
        rows, size = self.rows, len(self.rows.contexts)
        sides = []
        for part in (rows.epoch < since, rows.epoch >= since):
            here = (rows.lane == lane) & part
            weights = summed(rows.context[here], self.requests[here], size)
            sums = summed(rows.context[here], (self.requests * self.left)[here], size)
            sides.append((weights, sums / np.maximum(weights, 1e-9)))
        (before, old), (after, new) = sides
        both = np.minimum(before, after)
        order = np.argsort(new - old)
        place = int(np.searchsorted(np.cumsum(both[order]), both.sum() / 2))
        middle = float((new - old)[order[min(place, size - 1)]])
        mean = float(((new - old) * both).sum() / max(float(both.sum()), 1e-9))
        return abs(middle) > LEAST_CHANGE and middle * mean > 0.0

    def _changed(self, here: np.ndarray[tuple[int], np.dtype[np.bool_]], noise: float) -> int | None:
        """The number of the stretch of time since which the rows `here` are as they are now."""
        rows = self.rows
        counted = self.requests * self.counted
        weights = summed(rows.epoch[here], counted[here], len(rows.epochs))
        sums = summed(rows.epoch[here], (counted * self.left)[here], len(rows.epochs))
        seen = np.flatnonzero(weights > 0.0)
        split = changed_at(sums[seen] / weights[seen], weights[seen], noise)
        return None if split is None else int(seen[split])

    def speeds(self, found: Fit, moved: tuple[Moved, ...]) -> Speeds:
        """Every kind in every context at every load."""
        rows = self.rows
        kinds, contexts, lanes = len(rows.kinds), len(rows.contexts), len(rows.lanes)
        kind, context, load = (each.ravel() for each in np.indices((kinds, contexts, BINS)))
        groups = self.groups(np.zeros_like(kind), kind, context, load)
        shape = (kinds, contexts, BINS)
        values = sum(found.effects[term][groups[term]] for term in range(10) if term != _LANES)
        own = found.weights[_CELLS][groups[_CELLS]]
        before: Floats = np.full(len(own), found.noise / found.kappas[_CELLS])
        for term in _OF_A_KIND:
            others = np.maximum(found.weights[term][groups[term]] - own, 0.0)
            before = before + found.noise / (others + found.kappas[term])
        errors = np.sqrt(1.0 / (1.0 / before + own / found.noise))
        requests = found.weights[_KIND_CONTEXTS].reshape(kinds, contexts)
        # Of the same contexts at every load, so that what comes at high loads is not taken for what loads do.
        mix = (requests + 1e-3) / (requests + 1e-3).sum(axis=1, keepdims=True)
        of_kinds = (np.asarray(values).reshape(shape) * mix[:, :, None]).sum(axis=1)
        if not contexts:
            of_kinds = np.tile(found.effects[_LOADS], (kinds, 1))
        weights = found.weights[_KIND_LOADS].reshape(kinds, BINS)
        return Speeds(
            rows=rows,
            lane_effects=found.effects[_LANES][:lanes],
            curves=np.array([rising(row, weight) for row, weight in zip(of_kinds, weights, strict=True)]),
            values=np.asarray(values).reshape(shape),
            errors=np.asarray(errors).reshape(shape),
            new_errors=tuple(self._new_error(found, each) for each in range(kinds)),
            requests=requests,
            noise=math.sqrt(found.noise),
            moved=moved,
        )

    def _new_error(self, found: Fit, kind: int) -> float:
        """What a route and language of which nothing is known may be off, and what is not known of `kind` itself."""
        spreads = sum(found.noise / found.kappas[term] for term in (*_OF_A_KIND[1:], _CELLS))
        known = found.noise / (float(found.weights[_KINDS][kind]) + found.kappas[_KINDS])
        return math.sqrt(spreads + known)


def completed(curve: Floats, weights: Floats) -> Floats:
    """`curve` with the loads that were not served: between those that were, and going on with the last slope."""
    known = np.flatnonzero(weights > 0.0)
    step = math.log(2.0)
    if not len(known):
        return np.asarray(math.log(_START_SECONDS) + _START_SLOPE * step * np.arange(BINS))
    filled = np.interp(np.arange(BINS), known, rising(curve[known], weights[known]))
    last = int(known[-1])
    slope = _START_SLOPE if last == 0 else float(filled[last] - filled[last - 1]) / step
    beyond = np.arange(1, BINS - last)
    filled[last + 1 :] = filled[last] + max(slope, _START_SLOPE) * step * beyond
    return np.asarray(filled)

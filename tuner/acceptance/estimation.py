"""From the counts of one drafter's cells to their curves, for all of them at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from policies.cycle_policy import Survival
from policies.types import MAX_BLOCK_LENGTH
from tuner.acceptance.counts import BLOCKS, BUCKETS, SIZE, TOKENS
from tuner.acceptance.curves import Curve
from tuner.acceptance.hazards import (
    Counted,
    DesignEffects,
    buckets_used,
    counted,
    design_effects,
    logit_interval,
    mixture_variance,
    student,
    survivals,
)
from tuner.acceptance.moments import LENGTHS, Floats, Moments
from tuner.acceptance.pooling import Margins, Shrunk, Spread, chained, shrink, spread_of

ANY = "*"
"""Stands for the route or language of counts that only a margin still knows."""
_RATIO_TOKENS = 400.0
"""Re-blocked tokens that the correction of a margin's parent is worth (of all: no correction)."""
_RATIO_BLOCKS = 200.0
"""Blocks that a route's correction is worth to a cell."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one drafter, those of a context and those that only margins know (`ANY`)."""

    contexts: tuple[tuple[str, str], ...]
    """(route, language) of each row."""
    values: Floats
    """(rows, SIZE)"""
    moments: list[Moments | None]
    """None where no request has finished."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """The curves of one drafter as arrays, a row for each context that was asked for, and the pooled one last."""

    by_confidence: Floats
    """(rows, B, 16)"""
    shares: Floats
    """(rows, B)"""
    tables: Floats
    """(rows, 4, 16): unconditioned, its interval's low and high end, and offered."""
    emitted: Floats
    """(rows, 3, 17): emitted, low, high."""
    blocks: Floats
    """(rows,)"""
    spread: Spread

    def curves(self, rows: Sequence[int]) -> Iterator[Curve]:
        """Some rows as values."""
        chosen = list(rows)
        parts = (self.by_confidence, self.shares, self.tables, self.emitted, self.blocks)
        for survival, shares, table, emitted, blocks in zip(*(part[chosen].tolist() for part in parts), strict=True):
            unconditioned, low, high, offered = map(tuple, table)
            expected, expected_low, expected_high = map(tuple, emitted)
            yield Curve(
                survival=Survival(tuple(map(tuple, survival))),
                shares=tuple(shares),
                unconditioned=unconditioned,
                offered=offered,
                emitted=expected,
                low=low,
                high=high,
                emitted_low=expected_low,
                emitted_high=expected_high,
                blocks=blocks,
            )


def estimate(counts: Counts, contexts: Sequence[tuple[str, str]], strength: float, fall: float) -> Estimates:
    """The curves of `contexts`, counted or not, and the pooled one.

    Args:
        strength: effective blocks that relatives are worth until the data say.
        fall: what a position's hazard is worth to the next one where nothing is known of it.
    """
    rows = {context: row for row, context in enumerate(counts.contexts)}
    nothing = len(counts.contexts)
    values = np.concatenate((counts.values, np.zeros((1, SIZE))))
    chosen = np.array([rows.get(context, nothing) for context in contexts], dtype=np.int64)
    routes, languages = _places(contexts, 0), _places(contexts, 1)
    route_of = np.array([routes[route] for route, _ in contexts], dtype=np.int64)
    language_of = np.array([languages[language] for _, language in contexts], dtype=np.int64)

    buckets = buckets_used(values)
    moments = [counts.moments[row] if row < nothing else None for row in chosen.tolist()]
    effects = design_effects([*moments, _total(counts)])
    every = _effective(counted(values, buckets), effects)
    # One group more takes what is of no route, or language, that was asked for; one row more is of no context.
    in_route = _summed(every, [routes.get(route, -1) for route, _ in counts.contexts], len(routes) + 1)
    in_language = _summed(every, [languages.get(language, -1) for _, language in counts.contexts], len(languages) + 1)
    apart = [-1 if route == ANY and language != ANY else 0 for route, language in counts.contexts]
    everything = _summed(every, apart, 2)[:1]
    cells = every[chosen]
    margins = Margins(everything - cells, in_route[route_of] - cells, in_language[language_of] - cells)
    chain = chained(
        np.concatenate((margins.everything.at, everything.at)),
        np.concatenate((margins.everything.accepted, everything.accepted)),
        strength,
        fall,
    )
    spread = spread_of(cells, margins, chain[:-1], strength)
    shrunk = _with_all(shrink(cells, margins, chain[:-1], spread, strength, fall), everything, chain[-1:])

    curves = survivals(shrunk.hazards)
    offered = curves[:, 0].copy()
    curves[:, 0] = 0.0
    unconditioned = np.einsum("cb,cbj->cj", shrunk.shares, curves)
    raw = shrunk.blocks * effects.hazards
    variance = effects.survivals * mixture_variance(
        shrunk.shares, shrunk.hazards, raw, shrunk.share_blocks * effects.hazards[0]
    )
    factor = student(effects.freedom)[:, None]
    deviation = np.sqrt(variance)
    low, high = logit_interval(unconditioned, factor * deviation)
    low, high = np.minimum.accumulate(low, axis=1), np.minimum.accumulate(high, axis=1)
    tables = np.stack((unconditioned, np.minimum(low, unconditioned), np.maximum(high, unconditioned), offered), axis=1)

    total = values[:nothing][np.array(apart, dtype=np.int64) == 0].sum(axis=0, keepdims=True)
    sums = np.concatenate((values[chosen], total))
    seen = sums[:, :BUCKETS].sum(axis=1)
    emitted = _emitted(sums, [*moments, _total(counts)], route_of, len(routes), unconditioned, deviation, factor)
    return Estimates(curves, shrunk.shares, tables, emitted, seen, spread)


def _places(contexts: Sequence[tuple[str, str]], part: int) -> dict[str, int]:
    return {name: place for place, name in enumerate(dict.fromkeys(context[part] for context in contexts))}


def _total(counts: Counts) -> Moments:
    total = Moments()
    for moments in counts.moments:
        if moments is not None:
            total.add(moments)
    return total


def _effective(counts: Counted, effects: DesignEffects) -> Counted:
    return Counted(counts.at / effects.hazards, counts.accepted / effects.hazards, counts.shares / effects.hazards[0])


def _summed(counts: Counted, group_of: list[int], groups: int) -> Counted:
    """Sums of all but the last row over groups; group -1 is the last one."""
    places = np.array(group_of, dtype=np.int64) % groups
    order = np.argsort(places, kind="stable")
    present, firsts = np.unique(places[order], return_index=True)
    parts = []
    for part in (counts.at, counts.accepted, counts.shares):
        sums = np.zeros((groups, *part.shape[1:]))
        if len(present):
            sums[present] = np.add.reduceat(part[order], firsts, axis=0)
        parts.append(sums)
    return Counted(*parts)


def _with_all(cells: Shrunk, everything: Counted, hazards: Floats) -> Shrunk:
    """The cells, and the drafter over everything, with its `hazards`, as a last row, which borrows from nothing."""
    buckets = everything.shares.shape[1]
    total = everything.shares.sum(axis=1)
    shares = (everything.shares + 1.0 / buckets) / (total + 1.0)[:, None]
    return Shrunk(
        np.concatenate((cells.hazards, hazards)),
        np.concatenate((cells.blocks, everything.at + 1.0)),
        np.concatenate((cells.shares, shares)),
        np.concatenate((cells.share_blocks, total + 1.0)),
    )


def _emitted(
    sums: Floats,
    moments: list[Moments | None],
    route_of: np.ndarray[tuple[int], np.dtype[np.int64]],
    routes: int,
    unconditioned: Floats,
    deviation: Floats,
    factor: Floats,
) -> Floats:
    """(rows, 3, 17): tokens a cycle by block length, corrected by re-blocking, with the ends of the interval.

    A cell's own re-blocked text is shrunk to 1 + S_1 + ... + S_K times the correction of its route, and that to the
    correction over everything, and that to none.
    """
    cut = np.ones((len(sums), LENGTHS))
    cut[:, 1:] += unconditioned.cumsum(axis=1)
    tokens, blocks = sums[:, TOKENS : TOKENS + LENGTHS], sums[:, BLOCKS : BLOCKS + LENGTHS]
    predicted = blocks * cut
    cells = slice(0, len(sums) - 1)
    in_route, predicted_in_route = np.zeros((routes, LENGTHS)), np.zeros((routes, LENGTHS))
    np.add.at(in_route, route_of, tokens[cells])
    np.add.at(predicted_in_route, route_of, predicted[cells])
    ratio_all = np.ones(LENGTHS)
    for length in range(1, LENGTHS):
        # Of a length that was never re-blocked whole, the length before it tells.
        ratio_all[length] = (in_route[:, length].sum() + _RATIO_TOKENS * ratio_all[length - 1]) / (
            predicted_in_route[:, length].sum() + _RATIO_TOKENS
        )
    ratio = np.empty_like(cut)
    ratio[cells] = ((in_route + _RATIO_TOKENS * ratio_all) / (predicted_in_route + _RATIO_TOKENS))[route_of]
    ratio[-1] = ratio_all
    expected = (tokens + _RATIO_BLOCKS * ratio * cut) / (blocks + _RATIO_BLOCKS)
    # One position more is at least none and at most one token more.
    steps = np.clip(np.diff(expected, axis=1), 0.0, 1.0)
    expected[:, 0] = 1.0
    expected[:, 1:] = 1.0 + steps.cumsum(axis=1)

    nobody = Moments()
    known = [one or nobody for one in moments]
    squares = np.array([one.emitted for one in known])
    totals = np.array([one.emitted_sums for one in known])
    requests = np.array([one.cross[0, 0] for one in known])[:, None]
    counted_blocks = np.maximum(totals[:, 1], 1.0)
    mean = totals[:, 0] / counted_blocks
    spread = squares[:, 0] - 2.0 * mean * squares[:, 1] + mean * mean * squares[:, 2]
    own = np.sqrt(np.maximum(spread, 0.0) * requests / np.maximum(requests - 1.0, 1.0)) / counted_blocks
    # Faded blocks count in part, so what is left of them is less sure.
    own *= np.sqrt(np.maximum(counted_blocks / np.maximum(blocks, 1.0), 1.0))
    weight = np.where(requests > 1.0, blocks / (blocks + _RATIO_BLOCKS), 0.0)
    borrowed = np.zeros_like(own)
    borrowed[:, 1:] = deviation.cumsum(axis=1) * ratio[:, 1:]
    half = factor * (weight * own + (1.0 - weight) * borrowed)
    half[:, 0] = 0.0
    longest = np.arange(1.0, MAX_BLOCK_LENGTH + 2.0)
    return np.stack((expected, np.maximum(expected - half, 1.0), np.minimum(expected + half, longest)), axis=1)

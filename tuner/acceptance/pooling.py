"""What a cell borrows from its relatives, and how much.

A hazard of a cell is shrunk to m = sigmoid(logit m_route + logit m_language - logit m_all), and the margins to the
rate over everything (the project's notes, 5.5). A cell's own blocks are taken out of what it borrows from, so that
nothing is counted twice and a cell without relatives is not sure of itself. The strength is learned: with phi the share
of m (1 - m) that true hazards vary by around m, a cell's squared distance from m in units of its binomial variance is
1 + (n - 1) phi on average (a beta-binomial by the method of moments, Kleinman 1973), and n_0 = 1 / phi - 1 blocks is
what m is worth, less what m itself is unsure of.
"""

from dataclasses import dataclass

import numpy as np

from policies.types import MAX_BLOCK_LENGTH
from tuner.acceptance.hazards import Counted
from tuner.acceptance.moments import Floats

_SURE = 1e-4
"""Hazards are kept this far from 0 and 1, so that their logits exist."""
_PRIOR_TERMS = 16.0
"""Hazards of cells that have to be compared before their spread outweighs the prior's: about two cells of eight."""
_COMPARED = 6
"""Positions whose hazards are compared to learn how much they vary."""
_START = 0.5
"""The first hazard of a drafter of which nothing is known; it is worth two blocks."""
_START_BLOCKS = 2.0
_CHAIN_BLOCKS = 5.0
"""What a position is worth to the next one in a cell without relatives."""
HEAD_FALL = 0.5
"""What a feature head's position is worth over the one before it, while nothing is known of it anywhere."""


@dataclass(frozen=True, slots=True)
class Margins:
    """What a cell borrows from, its own counts taken out; counts of each of the cells, in effective blocks."""

    everything: Counted
    route: Counted
    language: Counted


@dataclass(frozen=True, slots=True)
class Spread:
    """How much true hazards vary, as a share of m (1 - m); what is offered varies otherwise than what is kept."""

    cells: Floats
    """(B,): of cells around what their margins say."""
    margins: Floats
    """(B,): of routes and languages around all."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """Posterior means, and the effective blocks that they rest on, borrowed ones included."""

    hazards: Floats
    """(cells, B, 16)"""
    blocks: Floats
    """(cells, B, 16)"""
    shares: Floats
    """(cells, B)"""
    share_blocks: Floats
    """(cells,)"""


def chained(at: Floats, accepted: Floats, strength: float, fall: float) -> Floats:
    """Hazards over everything, (cells, B, 16): each position's prior is the position before it (times `fall`)."""
    hazards = np.empty_like(at)
    before: Floats = np.full(at.shape[:-1], _START)
    worth = _START_BLOCKS
    for position in range(at.shape[-1]):
        before = (worth * before + accepted[..., position]) / (worth + at[..., position])
        hazards[..., position] = before
        before = before * fall
        worth = strength
    return hazards


def spread_of(cells: Counted, margins: Margins, everything: Floats, strength: float) -> Spread:
    """By the method of moments, from cells and their margins; `strength` is the prior worth of relatives.

    `everything` has the hazards over all that is not the cell's, as `chained` makes them.
    """
    prior = 1.0 / (1.0 + strength)
    known = np.full(cells.at.shape[1], prior)
    cells, margins = (
        _first_positions(cells),
        Margins(*map(_first_positions, (margins.everything, margins.route, margins.language))),
    )
    everything = everything[..., :_COMPARED]
    by_route = _posterior(margins.route, everything, known)
    by_language = _posterior(margins.language, everything, known)
    middle = _joined(by_route, by_language, everything)
    support = margins.everything.at
    of_cells = _phis(cells, middle, support, prior)
    of_routes, of_languages = (_phis(part, everything, support, prior) for part in (margins.route, margins.language))
    return Spread(of_cells, (of_routes + of_languages) / 2.0)


def shrink(
    cells: Counted, margins: Margins, everything: Floats, spread: Spread, strength: float, fall: float
) -> Shrunk:
    """Every cell's hazards and shares; counts are effective ones, and `everything` is as in `spread_of`."""
    by_route = _posterior(margins.route, everything, spread.margins)
    by_language = _posterior(margins.language, everything, spread.margins)
    relatives = _joined(by_route, by_language, everything)
    around = (1.0 / spread.margins - 1.0)[:, None]
    unsure = 1.0 / (around + margins.route.at) + 1.0 / (around + margins.language.at)
    unsure += 1.0 / (_START_BLOCKS + margins.everything.at)
    worth = np.maximum(1.0 / (spread.cells[:, None] + unsure) - 1.0, 1e-12)
    # Where relatives never came to a position, the cell's own position before it says more.
    trust = margins.everything.at / (margins.everything.at + strength)
    worth[..., 1:] = np.maximum(worth, (1.0 - trust) * min(strength, _CHAIN_BLOCKS))[..., 1:]

    hazards = np.empty_like(cells.at)
    before = relatives[..., 0]
    for position in range(MAX_BLOCK_LENGTH):
        known = trust[..., position] if position else 1.0
        prior = known * relatives[..., position] + (1.0 - known) * before
        own, at = cells.accepted[..., position], cells.at[..., position]
        hazards[..., position] = (worth[..., position] * prior + own) / (worth[..., position] + at)
        before = hazards[..., position] * fall

    share_worth, prior_shares = _shares_of_relatives(margins, spread)
    total = cells.shares.sum(axis=-1)
    shares = (share_worth[:, None] * prior_shares + cells.shares) / (share_worth + total)[:, None]
    return Shrunk(hazards, worth + cells.at, shares, share_worth + total)


def _shares_of_relatives(margins: Margins, spread: Spread) -> tuple[Floats, Floats]:
    """(worth in blocks, mean shares): the margins' shares multiply, over those of all."""
    everything = margins.everything.shares
    buckets = everything.shape[-1]
    around = 1.0 / spread.margins[0] - 1.0
    mean = (everything + 1.0 / buckets) / (everything.sum(axis=-1, keepdims=True) + 1.0)
    route, language = margins.route.shares, margins.language.shares
    in_route, in_language = route.sum(axis=-1), language.sum(axis=-1)
    by_route = (around * mean + route) / (around + in_route)[..., None]
    by_language = (around * mean + language) / (around + in_language)[..., None]
    shares = by_route * by_language / mean
    shares /= shares.sum(axis=-1, keepdims=True)
    unsure = 1.0 / (around + in_route) + 1.0 / (around + in_language) + 1.0 / (1.0 + everything.sum(axis=-1))
    return np.maximum(1.0 / (spread.cells[0] + unsure) - 1.0, 1e-12), shares


def _first_positions(counts: Counted) -> Counted:
    """Those at which most is known; the spread of the others is taken to be the same."""
    return Counted(counts.at[..., :_COMPARED], counts.accepted[..., :_COMPARED], counts.shares)


def _posterior(counts: Counted, mean: Floats, spread: Floats) -> Floats:
    worth = (1.0 / spread - 1.0)[:, None]
    return np.asarray((worth * mean + counts.accepted) / (worth + counts.at))


def _phis(counts: Counted, mean: Floats, support: Floats, prior: float) -> Floats:
    """(B,): the spread around `mean` of what is offered (row 0), and of the hazards of all buckets."""
    spread = np.empty(mean.shape[1])
    for rows in (slice(0, 1), slice(1, None)):
        spread[rows] = _phi(counts.at[:, rows], counts.accepted[:, rows], mean[:, rows], support[:, rows], prior)
    return spread


def _phi(at: Floats, accepted: Floats, mean: Floats, support: Floats, prior: float) -> float:
    """The spread of hazards around `mean`, where that rests on enough blocks (`support`) to compare with."""
    usable = (at > 1.5) & (support > 20.0)
    if not usable.any():
        return prior
    at, accepted, inside = at[usable], accepted[usable], np.clip(mean[usable], 0.02, 0.98)
    squared = (accepted - at * inside) ** 2 / (at * inside * (1.0 - inside))
    spread = prior
    for _ in range(2):
        weight = (at - 1.0) / (1.0 + (at - 1.0) * spread) ** 2
        # The prior counts as hazards that are known well, whose weight times (n - 1) is 1 / phi^2.
        held = _PRIOR_TERMS / spread**2
        spread = (np.sum(weight * (squared - 1.0)) + held * prior) / (np.sum(weight * (at - 1.0)) + held)
        spread = float(np.clip(spread, 1e-3, 1.0 - 1e-9))
    return spread


def _joined(route: Floats, language: Floats, everything: Floats) -> Floats:
    return _sigmoid(_logit(route) + _logit(language) - _logit(everything))


def _logit(share: Floats) -> Floats:
    inside = np.clip(share, _SURE, 1.0 - _SURE)
    return np.asarray(np.log(inside / (1.0 - inside)))


def _sigmoid(value: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-value)))

"""Expected tokens per second of every block length of a drafter, for many contexts at once.

At load B every one of B sequences of a context asks for K drafts and verifies those of them whose survival, given the
proposal's confidence, is at least a cut. The rows of the pass are then random, since drafters may stay silent, and the
cost of a pass has steps: its mean is taken over the mean of the rows and sqrt(3) standard deviations to either side,
with weights 2/3 and 1/6 (Gauss-Hermite quadrature with three nodes, Abramowitz and Stegun 25.4.46).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.cycle_policy import DraftCost, PassCost
from tuner.acceptance import Curve

CUTS = (0.0, 0.15, 0.3, 0.5, 0.7)
"""Least survival of what is verified. The first verifies whatever is offered: a fixed block length."""
_NODES = ((-(3.0**0.5), 1 / 6), (0.0, 2 / 3), (3.0**0.5, 1 / 6))

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Profiles:
    """What one sequence brings to a cycle, by drafter and context: a row for each. Lengths are 0..cap."""

    emitted: Array
    """(rows, 3, cuts, lengths): mean tokens, as expected and at the lower and upper end of what is known."""
    rows: Array
    """(rows, cuts, lengths): mean drafts verified."""
    variance: Array
    """(rows, cuts, lengths): of the drafts verified."""
    most: Array
    """(rows, lengths): of which there are never more."""
    offered: Array
    """(rows, lengths): mean drafts offered, verified or not."""
    asked: Array
    """(rows, cap): the share of blocks in which so many are offered, from 1 on."""


def profiles(curves: Sequence[Curve], cap: int) -> Profiles:
    """A row for each of `curves`.

    What a cut takes away from a block of any length is taken from the survivals by confidence, in proportion.
    """
    survival, shares = _by_bucket(curves, cap)
    asked = np.array([curve.offered[:cap] for curve in curves])
    offered = _offered_if_any(asked, shares)[:, None, :] * (np.arange(survival.shape[1]) > 0)[:, None]
    verified = _verified(survival)
    lengths = np.cumsum(verified * offered[:, None], axis=3)
    rows = np.einsum("cb,ckbj->ckj", shares, lengths)
    squares = np.einsum("cb,ckbj->ckj", shares, lengths**2)
    gains = np.einsum("cbj,ckbj->ckj", shares[:, :, None] * survival, verified).cumsum(axis=2)
    of_whole = gains / np.maximum(gains[:, :1], 1e-9)
    ends = np.array(
        [(one.emitted[: cap + 1], one.emitted_low[: cap + 1], one.emitted_high[: cap + 1]) for one in curves]
    )
    return Profiles(
        emitted=1.0 + _from_zero(of_whole[:, None] * (ends[:, :, None, 1:] - 1.0)),
        rows=_from_zero(rows),
        variance=_from_zero(np.maximum(squares - rows**2, 0.0)),
        most=np.tile(np.arange(cap + 1.0), (len(curves), 1)),
        offered=_from_zero(np.cumsum(asked, axis=1)),
        asked=asked,
    )


def preceded(found: Profiles, copiers: Sequence[Curve | None]) -> Profiles:
    """Of blocks that a copier's proposal takes the place of where it promises more, as `policies.copying` does.

    `copiers` has a curve, or None, for each row of `found`.
    """
    places = [place for place, curve in enumerate(copiers) if curve is not None]
    if not places:
        return found
    cap = found.asked.shape[1]
    survival, shares = _by_bucket([curve for curve in copiers if curve is not None], cap)
    asked = np.array([curve.offered[:cap] for curve in copiers if curve is not None])
    verified = _verified(survival)
    kept = (verified * survival[:, None]).sum(axis=3)
    lengths = (verified * _offered_if_any(asked, shares)[:, None, None]).sum(axis=3)
    taken = np.where(kept > found.emitted[places, 0, :, -1, None] - 1.0, shares[:, None], 0.0)
    taken[:, :, 0] = 0.0
    share = np.zeros((len(copiers), len(CUTS), 1))
    mean, square, brought = np.zeros_like(share), np.zeros_like(share), np.zeros_like(share)
    share[places, :, 0] = taken.sum(axis=2)
    mean[places, :, 0] = (taken * lengths).sum(axis=2)
    square[places, :, 0] = (taken * lengths**2).sum(axis=2)
    brought[places, :, 0] = (taken * (1.0 + kept)).sum(axis=2)
    left = 1.0 - share
    rows = mean + left * found.rows
    squares = square + left * (found.variance + found.rows**2)
    emitted = brought[:, None] + left[:, None] * found.emitted
    variance = np.maximum(squares - rows**2, 0.0)
    # A copied proposal is as long as it comes, however short the other drafter's blocks are.
    most = found.most.copy()
    most[places] = cap
    for array, plain in ((emitted, 1.0), (rows, 0.0), (variance, 0.0), (most, 0.0)):
        array[..., 0] = plain
    return Profiles(emitted, rows, variance, most, left[:, 0] * found.offered, left[:, 0] * found.asked)


def rates(
    found: Profiles, drafting: Sequence[DraftCost | None], cost: PassCost, loads: Sequence[int], kv_each: float
) -> Array:
    """(loads, rows, 3, cuts, lengths): tokens per second.

    Args:
        drafting: for each row of `found`; None where it is free.
        kv_each: mean context of a sequence, in tokens.
    """
    load = np.array(loads, dtype=np.float64)[:, None, None, None]
    rows, spread = load * found.rows, np.sqrt(load * found.variance)
    most = load * found.most[:, None]
    seconds = np.zeros_like(rows) + load * (cost.sequence_seconds + cost.kv_token_seconds * kv_each)
    for offset, weight in _NODES:
        seconds += weight * pass_seconds(cost, load + np.minimum(np.maximum(rows + offset * spread, 0.0), most))
    prices = np.array([_terms(price) for price in drafting])
    call, sequence, step, row = prices.T[:, :, None]
    at = load[..., 0]
    silent = np.minimum(np.maximum(1.0 - found.asked, 0.0), 1.0) ** at
    steps = np.cumsum(1.0 - silent, axis=2)
    spent = call + sequence * at + step * steps + row * at * found.offered[:, 1:]
    seconds[..., 1:] += spent[:, :, None]
    return load[..., None] * found.emitted / seconds[:, :, None]


def pass_seconds(cost: PassCost, tokens: Array) -> Array:
    """`PassCost.seconds` without the terms for sequences and context."""
    knots, values = cost.token_knots, cost.knot_seconds
    found = np.interp(tokens, knots, values)
    if len(knots) > 1:
        slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
        found += slope * np.maximum(tokens - knots[-1], 0.0)
    return found


def _from_zero(values: Array) -> Array:
    """With block length 0 in front, at which there is nothing."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), values], axis=-1)


def _terms(price: DraftCost | None) -> tuple[float, float, float, float]:
    if price is None:
        return 0.0, 0.0, 0.0, 0.0
    return price.call_seconds, price.sequence_seconds, price.step_seconds, price.row_seconds


def _by_bucket(curves: Sequence[Curve], cap: int) -> tuple[Array, Array]:
    """Survivals (curves, B, cap) and shares (curves, B); a curve with fewer buckets than others has none of those."""
    buckets = max(len(curve.shares) for curve in curves)
    nothing = ((0.0,) * len(curves[0].offered),)
    rows = [curve.survival.by_confidence + nothing * (buckets - len(curve.shares)) for curve in curves]
    shares = [curve.shares + (0.0,) * (buckets - len(curve.shares)) for curve in curves]
    return np.array(rows)[:, :, :cap], np.array(shares)


def _verified(survival: Array) -> NDArray[np.bool_]:
    """(rows, cuts, B, cap): the drafts that are verified, if so many are offered."""
    return np.logical_and.accumulate(survival[:, None] >= np.array(CUTS)[:, None, None], axis=3)


def _offered_if_any(asked: Array, shares: Array) -> Array:
    """(rows, cap): the share of blocks in which so many are offered, of those in which any is."""
    return np.minimum(asked / np.maximum(1.0 - shares[:, :1], 1e-9), 1.0)

"""Expected tokens per second of every block length of a drafter, for many contexts at once.

At load B every one of B sequences of a context asks for K drafts and verifies those of them whose survival, given the
proposal's confidence, is at least a cut. The rows of the pass are then random, since drafters may stay silent, and the
cost of a pass has steps: its mean is taken over the mean of the rows and sqrt(3) standard deviations to either side,
with weights 2/3 and 1/6 (Gauss-Hermite quadrature with three nodes, Abramowitz and Stegun 25.4.46).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policies.cycle_policy import DraftCost, PassCost
from tuner.acceptance import Curve

CUTS = (0.0, 0.15, 0.3, 0.5, 0.7)
"""Least survival of what is verified. The first verifies whatever is offered: a fixed block length."""
_NODES = ((-(3.0**0.5), 1 / 6), (0.0, 2 / 3), (3.0**0.5, 1 / 6))

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Profile:
    """What one sequence of a context brings to a cycle with one drafter; arrays over [cut, block length 0..cap]."""

    emitted: Array
    """Mean tokens."""
    rows: Array
    """Mean drafts verified."""
    variance: Array
    """Of the drafts verified."""
    offered: Array
    """[block length]: mean drafts offered, verified or not."""
    asked: Array
    """[position 1..cap]: the share of blocks in which so many are offered."""


def profiles(curve: Curve, cap: int) -> tuple[Profile, Profile, Profile]:
    """Of `curve`: by its mean, and by the lower and the upper end of its interval.

    What a cut takes away from a block of any length is taken from the survivals by confidence, in proportion.
    """
    survival = np.array([row[:cap] for row in curve.survival.by_confidence])
    shares = np.array(curve.shares)[:, None]
    asked = np.array(curve.offered[:cap])
    proposing = max(1.0 - curve.shares[0], 1e-9)
    offered = np.minimum(asked / proposing, 1.0) * (np.arange(len(survival)) > 0)[:, None]
    verified = survival[None] >= np.array(CUTS)[:, None, None]
    verified = np.logical_and.accumulate(verified, axis=2)
    lengths = np.cumsum(verified * offered[None], axis=2)
    rows = np.sum(shares * lengths, axis=1)
    squares = np.sum(shares * lengths**2, axis=1)
    gains = np.cumsum(np.sum(shares * survival * verified, axis=1), axis=1)
    shares_of_whole = gains / np.maximum(gains[0], 1e-9)
    ends = np.array([end[1 : cap + 1] for end in (curve.emitted, curve.emitted_low, curve.emitted_high)]) - 1.0
    mean, low, high = 1.0 + _from_zero(shares_of_whole[None] * ends[:, None, :])
    found = Profile(
        emitted=mean,
        rows=_from_zero(rows),
        variance=_from_zero(np.maximum(squares - rows**2, 0.0)),
        offered=_from_zero(np.cumsum(asked)),
        asked=asked,
    )
    return found, replace(found, emitted=low), replace(found, emitted=high)


def preceded(found: Profile, copier: Curve) -> Profile:
    """Of blocks that a copier's proposal takes the place of where it promises more, as `policies.copying` does."""
    cap = found.emitted.shape[1] - 1
    shares = np.array(copier.shares)
    whole = np.array([sum(row[:cap]) for row in copier.survival.by_confidence])
    taken = whole > found.emitted[0, -1] - 1.0
    taken[0] = False
    share = float(shares[taken].sum())
    length = float(np.minimum(np.array(copier.offered[:cap]) / max(1.0 - copier.shares[0], 1e-9), 1.0).sum())
    rows = share * length + (1.0 - share) * found.rows
    squares = share * length**2 + (1.0 - share) * (found.variance + found.rows**2)
    made = Profile(
        emitted=share + float((shares * whole)[taken].sum()) + (1.0 - share) * found.emitted,
        rows=rows,
        variance=np.maximum(squares - rows**2, 0.0),
        offered=(1.0 - share) * found.offered,
        asked=(1.0 - share) * found.asked,
    )
    for array, plain in ((made.emitted, 1.0), (made.rows, 0.0), (made.variance, 0.0)):
        array[:, 0] = plain
    return made


def rates(profiles: Sequence[Profile], drafting: DraftCost | None, cost: PassCost, load: int, kv_each: float) -> Array:
    """Tokens per second at `load`, as [profile, cut, block length]; `kv_each` is the mean context of a sequence."""
    emitted = np.stack([one.emitted for one in profiles])
    rows = load * np.stack([one.rows for one in profiles])
    spread = np.sqrt(load * np.stack([one.variance for one in profiles]))
    most = load * np.arange(emitted.shape[2])
    fixed = cost.sequence_seconds * load + cost.kv_token_seconds * load * kv_each
    seconds = np.full_like(emitted, fixed)
    for offset, weight in _NODES:
        seconds += weight * pass_seconds(cost, load + np.clip(rows + offset * spread, 0.0, most))
    if drafting is not None:
        offered = np.stack([one.offered for one in profiles])
        silent = (1.0 - np.clip(np.stack([one.asked for one in profiles]), 0.0, 1.0)) ** load
        steps = np.cumsum(1.0 - silent, axis=1)
        spent = np.zeros_like(offered)
        spent[:, 1:] = (
            drafting.call_seconds
            + drafting.sequence_seconds * load
            + drafting.step_seconds * steps
            + drafting.row_seconds * load * offered[:, 1:]
        )
        seconds += spent[:, None, :]
    return load * emitted / seconds


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

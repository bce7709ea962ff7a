"""Hazards by the product limit, how far their variance exceeds that of independent blocks, and intervals.

    h_j = ac_j / at_j      S_j = h_1 * ... * h_j                                        (Kaplan and Meier 1958)
    Var log S_j = sum over i <= j of (at_i - ac_i) / (at_i ac_i)                        (Greenwood 1926)

Blocks of one request are alike, so these variances are too small. With e_r = ac_r - h at_r, what request r had more
than expected, the sums of e_r e_r' give the variance over requests (linearised ratio estimates, Woodruff 1971); its
ratio to the one above is the design effect. Arrays have cells first and positions last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.types import MAX_BLOCK_LENGTH
from tuner.acceptance.counts import BUCKETS, ROW, RUNS
from tuner.acceptance.moments import LENGTHS, Floats, Moments

Ints = NDArray[np.int64]

_PRIOR_EFFECT = 1.5
"""Design effect before any request has finished."""
_PRIOR_REQUESTS = 5.0
"""Requests that it is worth."""
_POOL_REQUESTS = 10.0
"""Requests that the design effect of the drafter is worth to a cell of its own."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of cells as sums by position; B confidence buckets, of which row 0 counts what is offered."""

    at: Floats
    """(cells, B, 16)"""
    accepted: Floats
    """(cells, B, 16)"""
    shares: Floats
    """(cells, B): blocks by bucket."""

    def __sub__(self, other: "Counted") -> "Counted":
        """What is left of counts that hold `other`; faded counts leave no more than a rounding error under 0."""
        at, accepted = self.at - other.at, self.accepted - other.accepted
        return Counted(np.maximum(at, 0.0), np.maximum(accepted, 0.0), np.maximum(self.shares - other.shares, 0.0))

    def __getitem__(self, rows: Ints | slice) -> "Counted":
        return Counted(self.at[rows], self.accepted[rows], self.shares[rows])


def counted(values: Floats, buckets: int) -> Counted:
    """`values` of shape (cells, SIZE), as `Cell.values` gives them, of the first `buckets` buckets."""
    rows = values[:, RUNS : RUNS + buckets * ROW].reshape(len(values), buckets, 2, LENGTHS)
    kept = rows.sum(axis=2)[..., ::-1].cumsum(axis=-1)[..., ::-1]
    accepted = kept[..., 1:]
    return Counted(accepted + rows[:, :, 0, :MAX_BLOCK_LENGTH], accepted, values[:, :buckets])


def buckets_used(values: Floats) -> int:
    """The number of buckets up to the last one counted; at least 2."""
    used = np.flatnonzero(values[:, :BUCKETS].any(axis=0))
    return max(2, int(used[-1]) + 1 if len(used) else 2)


@dataclass(frozen=True, slots=True)
class DesignEffects:
    """Variance over that of as many independent blocks, never under 1."""

    hazards: Floats
    """(16,): of each hazard, over all cells of the drafter."""
    survivals: Floats
    """(cells, 16): of each S_j."""
    freedom: Floats
    """(cells,): degrees of freedom that they are known with."""


def design_effects(moments: Sequence[Moments | None]) -> DesignEffects:
    """Over requests, for each of the cells; those with few requests rely on the others.

    None stands for no request. The last of `moments` is that of everything together, and has no part in what the cells
    share: contexts differ.
    """
    nobody = Moments()
    cross = np.array([(one or nobody).cross for one in moments])
    requests = cross[:, 0, 0]
    at, accepted = cross[:, 0, 1 : MAX_BLOCK_LENGTH + 1], cross[:, 0, MAX_BLOCK_LENGTH + 1 :]
    hazards = accepted / np.maximum(at, 1.0)
    at_at = cross[:, 1 : MAX_BLOCK_LENGTH + 1, 1 : MAX_BLOCK_LENGTH + 1]
    at_accepted = cross[:, 1 : MAX_BLOCK_LENGTH + 1, MAX_BLOCK_LENGTH + 1 :]
    accepted_accepted = cross[:, MAX_BLOCK_LENGTH + 1 :, MAX_BLOCK_LENGTH + 1 :]
    mixed = hazards[:, :, None] * at_accepted
    excess = accepted_accepted - mixed - mixed.swapaxes(1, 2)
    excess += hazards[:, :, None] * hazards[:, None, :] * at_at
    degrees = np.maximum(requests - 1.0, 0.0)
    # A mean taken from the same requests makes their spread too small.
    spread = np.where(requests > 1.0, requests / np.maximum(degrees, 1.0), 0.0)

    found = excess.diagonal(axis1=1, axis2=2) * spread[:, None]
    found[-1] = 0.0
    expected = at * hazards * (1.0 - hazards) * (requests > 1.0)[:, None]
    expected[-1] = 0.0
    shared = degrees[:-1].sum()
    prior = _PRIOR_REQUESTS * expected.sum(axis=0) / max(shared, 1.0)
    by_hazard = (found.sum(axis=0) + _PRIOR_EFFECT * prior) / np.maximum(expected.sum(axis=0) + prior, 1e-12)
    by_hazard = _carried(np.where(expected.sum(axis=0) > 0.0, by_hazard, np.nan)[None])[0]

    inverse = np.where(accepted > 0.0, 1.0 / np.maximum(accepted, 1.0), 0.0)
    relative = excess * inverse[:, :, None] * inverse[:, None, :]
    variance = relative.cumsum(axis=1).cumsum(axis=2).diagonal(axis1=1, axis2=2) * spread[:, None]
    independent = ((at - accepted) * inverse / np.maximum(at, 1.0)).cumsum(axis=1)
    known = (independent > 0.0) & (accepted > 0.0) & (requests > 1.0)[:, None]
    ratio = np.where(known, variance / np.maximum(independent, 1e-12), 0.0)
    weight = degrees[:, None] * known
    pool = np.sum((weight * ratio)[:-1], axis=0) + _PRIOR_REQUESTS * _PRIOR_EFFECT
    pool /= weight[:-1].sum(axis=0) + _PRIOR_REQUESTS
    survivals = (weight * ratio + _POOL_REQUESTS * pool) / (weight + _POOL_REQUESTS)
    freedom = degrees + np.clip(shared - degrees, 0.0, _POOL_REQUESTS)
    return DesignEffects(np.maximum(by_hazard, 1.0), np.maximum(survivals, 1.0), np.maximum(freedom, 3.0))


def survivals(hazards: Floats) -> Floats:
    """S_1, S_2, ... of hazards along the last axis."""
    return np.multiply.accumulate(hazards, axis=-1)


def mixture_variance(shares: Floats, hazards: Floats, at: Floats, blocks: Floats) -> Floats:
    """Variance of sum over buckets of share * S_j if blocks were independent; shape (cells, 16).

    Args:
        shares: (cells, B), from bucket 0 on.
        hazards: (cells, B, 16).
        at: (cells, B, 16): blocks that each hazard rests on.
        blocks: (cells,): blocks that the shares rest on.
    """
    curves = survivals(hazards[:, 1:])
    weights = shares[:, 1:, None]
    greenwood = ((1.0 - hazards[:, 1:]) / np.maximum(hazards[:, 1:] * at[:, 1:], 1e-9)).cumsum(axis=-1)
    within = np.sum((weights * curves) ** 2 * greenwood, axis=1)
    mean = np.sum(weights * curves, axis=1)
    between = np.sum(weights * curves**2, axis=1) - mean**2
    return np.asarray(within + np.maximum(between, 0.0) / np.maximum(blocks, 1e-9)[:, None])


def student(freedom: Floats) -> Floats:
    """The 97.5 % point of Student's t (Cornish-Fisher series, Abramowitz and Stegun 26.7.5)."""
    z = 1.959963984540054
    first = (z**3 + z) / 4.0
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
    return np.asarray(z + first / freedom + second / freedom**2 + third / freedom**3)


def logit_interval(share: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """Ends of an interval of `deviation` (standard error times its factor) around `share`, straight on the logit."""
    inside = np.clip(share, 1e-9, 1.0 - 1e-9)
    centre = np.log(inside / (1.0 - inside))
    half = np.minimum(deviation / (inside * (1.0 - inside)), 30.0)
    return 1.0 / (1.0 + np.exp(half - centre)), 1.0 / (1.0 + np.exp(-half - centre))


def _carried(values: Floats) -> Floats:
    """NaN becomes the last number before it, or the prior effect where there is none."""
    filled = values.copy()
    before = np.full(len(values), _PRIOR_EFFECT)
    for position in range(values.shape[1]):
        before = np.where(np.isnan(filled[:, position]), before, filled[:, position])
        filled[:, position] = before
    return filled

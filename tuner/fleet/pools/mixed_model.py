"""Logarithms of seconds per token as a sum of effects, each shrunk by what its kind is seen to vary.

    ln(seconds / tokens) = sum over terms of effect[term][group] + noise

Every effect is a posterior mean under a normal prior around 0: the residual mean of its group times n / (n + kappa),
with kappa = sigma^2 / tau^2. tau^2, how much the groups of a term truly vary, is learned by expectation and
maximisation (Laird and Ware 1982) from a prior guess; sigma^2 is how much requests of one cell vary. So what is seen
once borrows from its relatives, and what is seen often stands for itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.fleet.pools.rows import Floats, Ints

_ROUNDS = 40
_STILL = 1e-3
"""Effects that move by less from round to round have been found."""
_PRIOR_GROUPS = 3.0
"""What the guess of a term's spread is worth, in groups that are known exactly."""
LEAST_NOISE = 0.03
"""Standard deviation of ln(seconds per token) between requests that is taken at least."""


@dataclass(frozen=True, slots=True)
class Term:
    """One set of groups; every cell is in one of them."""

    group: Ints
    """(cells,)"""
    size: int
    spread: float
    """The guess of tau."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit` found."""

    effects: tuple[Floats, ...]
    """By term, (size,)."""
    weights: tuple[Floats, ...]
    """By term, (size,): requests of each group."""
    kappas: tuple[float, ...]
    """By term: what the prior is worth, in requests."""
    noise: float
    """sigma^2."""
    residuals: Floats
    """(cells,)"""


def fit(values: Floats, weights: Floats, terms: Sequence[Term], noise: float) -> Fit:
    """Effects of `terms` on `values` (cells,), which rest on `weights` requests each; `noise` is sigma^2."""
    noise = max(noise, LEAST_NOISE**2)
    effects = [np.zeros(term.size) for term in terms]
    totals: list[Floats] = [summed(term.group, weights, term.size) for term in terms]
    kappas = [noise / term.spread**2 for term in terms]
    left = values.copy()
    for _ in range(_ROUNDS):
        moved = 0.0
        for place, term in enumerate(terms):
            step = (summed(term.group, weights * left, term.size) - kappas[place] * effects[place]) / (
                totals[place] + kappas[place]
            )
            effects[place] = effects[place] + step
            left -= step[term.group]
            moved = max(moved, float(np.abs(step).max(initial=0.0)))
        if moved < _STILL:
            break
        for place, term in enumerate(terms):
            seen = totals[place] > 0.0
            squares = np.sum(effects[place][seen] ** 2 + noise / (totals[place][seen] + kappas[place]))
            spread = (squares + _PRIOR_GROUPS * term.spread**2) / (np.count_nonzero(seen) + _PRIOR_GROUPS)
            kappas[place] = noise / spread
    return Fit(tuple(effects), tuple(totals), tuple(kappas), noise, left)


def summed(group: Ints, values: Floats, size: int) -> Floats:
    """(size,): the sum of `values` in each group."""
    return np.asarray(np.bincount(group, values, size), dtype=np.float64)


def within_noise(requests: Floats, logs: Floats, squares: Floats) -> float:
    """sigma^2 from cells' requests, and sums of logarithms and of their squares; 0.0 where no cell has two requests."""
    several = requests > 1.0
    if not several.any():
        return 0.0
    spare = squares[several] - logs[several] ** 2 / requests[several]
    return float(max(0.0, spare.sum()) / (requests[several] - 1.0).sum())


def rising(values: Floats, weights: Floats) -> Floats:
    """The nearest values that never fall, by weighted least squares (pool adjacent violators, Ayer et al. 1955)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, np.maximum(weights, 1e-9), strict=True):
        blocks.append((float(value), float(weight), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (first, first_weight, first_count), (second, second_weight, second_count) = blocks[-2:]
            weight_of_both = first_weight + second_weight
            mean = (first * first_weight + second * second_weight) / weight_of_both
            blocks[-2:] = [(mean, weight_of_both, first_count + second_count)]
    return np.concatenate([np.full(count, mean) for mean, _, count in blocks])

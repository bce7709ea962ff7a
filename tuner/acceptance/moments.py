"""What finished requests brought, and the sums over them that say how unsure a mean over requests is."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.types import MAX_BLOCK_LENGTH
from tuner.acceptance.change import PRIOR_CORRELATION

Floats = NDArray[np.float64]

LENGTHS = MAX_BLOCK_LENGTH + 1
"""Block lengths, and numbers of drafts kept: 0..16."""
MOMENTS = 1 + 2 * MAX_BLOCK_LENGTH
_PRIOR_REQUESTS = 5.0
"""Requests that the prior correlation is worth."""
_LEAST_CORRELATION = 0.03


@dataclass(frozen=True, slots=True)
class Finished:
    """What one request brought of one drafter."""

    drafter: str
    route: str
    language: str
    at: Floats
    """at_1..at_16 over its blocks of every confidence."""
    accepted: Floats
    """ac_1..ac_16."""
    tokens: Floats
    """By block length 0..16, of its re-blocked text; all zeros where the drafter's proposals depend on its blocks."""
    blocks: Floats

    @property
    def first_drafts(self) -> tuple[float, float]:
        """(blocks, first drafts kept), of blocks of one draft, or as they were served where there are none."""
        if self.blocks[1]:
            return float(self.blocks[1]), float(self.tokens[1] - self.blocks[1])
        return float(self.at[0]), float(self.accepted[0])


class Moments:
    """Sums over finished requests of the squares and products of what each brought; additive too.

    ``cross`` is the sum of v v' with v = (1, at_1..at_16, ac_1..ac_16) of a request over all its blocks; ``emitted`` of
    shape (3, 17) the sums of tokens^2, tokens * blocks and blocks^2 of its re-blocked text, by block length, and
    ``emitted_blocks`` (2, 17) those of tokens and blocks.
    """

    __slots__ = ("cross", "emitted", "emitted_sums")

    def __init__(self) -> None:
        self.cross: Floats = np.zeros((MOMENTS, MOMENTS))
        self.emitted: Floats = np.zeros((3, LENGTHS))
        self.emitted_sums: Floats = np.zeros((2, LENGTHS))

    def add_request(self, at: Floats, accepted: Floats, tokens: Floats, blocks: Floats) -> None:
        vector = np.empty(MOMENTS)
        vector[0] = 1.0
        vector[1 : MAX_BLOCK_LENGTH + 1] = at
        vector[MAX_BLOCK_LENGTH + 1 :] = accepted
        self.cross += vector[:, None] * vector
        self.emitted[0] += tokens * tokens
        self.emitted[1] += tokens * blocks
        self.emitted[2] += blocks * blocks
        self.emitted_sums[0] += tokens
        self.emitted_sums[1] += blocks

    @property
    def correlation(self) -> float:
        """Of first drafts within a request, as blocks of one draft or as they were served, from the design effect
        1 + (n - 1) * correlation of clusters of n blocks (Kish 1965)."""
        requests = float(self.cross[0, 0])
        if self.emitted_sums[1, 1]:
            tokens, blocks = self.emitted_sums[:, 1].tolist()
            kept = tokens - blocks
            squares, products, sizes = self.emitted[:, 1].tolist()
            squares, products = squares - 2.0 * products + sizes, products - sizes
        else:
            first = MAX_BLOCK_LENGTH + 1
            blocks, kept = self.cross[0, [1, first]].tolist()
            squares, products, sizes = self.cross[[first, 1, 1], [first, first, 1]].tolist()
        if requests < 2.0 or sizes <= 2.0 * blocks or not 0.0 < kept < blocks:
            return PRIOR_CORRELATION
        mean = kept / blocks
        spread = (squares - 2.0 * mean * products + mean * mean * sizes) * requests / (requests - 1.0)
        found = (spread / (blocks * mean * (1.0 - mean)) - 1.0) / (sizes / blocks - 1.0)
        blend = (found * (requests - 1.0) + PRIOR_CORRELATION * _PRIOR_REQUESTS) / (requests - 1.0 + _PRIOR_REQUESTS)
        return float(min(max(blend, _LEAST_CORRELATION), 1.0))

    def add(self, other: "Moments", times: float = 1.0) -> None:
        self.cross += times * other.cross
        self.emitted += times * other.emitted
        self.emitted_sums += times * other.emitted_sums

    @property
    def order(self) -> tuple[float, bytes]:
        """A version with more requests is the newer one; the bytes only break ties that no honest replica makes."""
        return float(self.cross[0, 0]), self.cross.tobytes() + self.emitted.tobytes()

    def state(self) -> list[list[list[float]]]:
        """JSON-able: the upper triangle of `cross`, `emitted` and `emitted_sums`."""
        return [_packed(self.cross), self.emitted.tolist(), self.emitted_sums.tolist()]

    @classmethod
    def of_state(cls, cross: Any, emitted: Any, sums: Any) -> "Moments":
        """Raises TypeError or ValueError where they are damaged."""
        moments = cls()
        moments.cross = _unpacked(cross)
        moments.emitted = _sums(emitted, moments.emitted.shape)
        moments.emitted_sums = _sums(sums, moments.emitted_sums.shape)
        return moments


def _packed(cross: Floats) -> list[list[float]]:
    """Rows of the upper triangle up to the last place that is not 0."""
    return [_trimmed(row[index:].tolist()) for index, row in enumerate(cross)]


def _trimmed(values: list[float]) -> list[float]:
    end = len(values)
    while end and not values[end - 1]:
        end -= 1
    return values[:end]


def _unpacked(rows: Any) -> Floats:
    cross = np.zeros((MOMENTS, MOMENTS))
    for index, row in enumerate(rows):
        values = np.array(row, dtype=np.float64)
        if values.ndim != 1 or index + len(values) > MOMENTS or not np.isfinite(values).all():
            raise ValueError(f"row {index} of an acceptance cell's moments is not up to {MOMENTS - index} numbers")
        cross[index, index : index + len(values)] = values
    return cross + np.triu(cross, 1).T


def _sums(rows: Any, shape: tuple[int, ...]) -> Floats:
    values = np.array(rows, dtype=np.float64)
    if values.shape != shape or not np.isfinite(values).all() or (values < 0.0).any():
        raise ValueError(f"the re-blocked sums of an acceptance cell are not {shape} numbers from 0 on")
    return values

"""Whether the acceptance of first drafts has changed: a generalised likelihood ratio test on one cell's blocks.

With mu the mean over t blocks, mu_1 that of the first s and mu_2 that of the rest, a change is found when

    max over s of [s kl(mu_1, mu) + (t - s) kl(mu_2, mu)] / deff  >=  log(3 (t / deff)^(3/2) / delta)

(Bernoulli GLR with the threshold of Besson, Kaufmann, Maillard and Seznec 2022 as the project's notes, 5.7, give it;
counts are divided by the design effect of blocks that share a request). Splits are tried on a grid that is fine near
the end and geometric before it, kept as an exponential histogram (Datar et al. 2002), so memory grows as log t.
"""

import math
from dataclasses import dataclass

DELTA = 0.01
"""Probability, over the whole life of a cell whose acceptance does not change, that a change is found."""
_CHUNK = 32
"""Blocks between two tests, and of the finest pieces."""
_EQUAL_PIECES = 6
"""Pieces of one size before the oldest two of them become one."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """The acceptance of first drafts changed."""

    drafter: str
    route: str
    language: str
    before: float
    """Share of first drafts kept before the change, silent blocks included."""
    after: float
    """The same since."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was found."""

    before: float
    after: float
    blocks: int
    """Blocks since."""


class ChangeTest:
    """The first drafts of one cell, in order."""

    __slots__ = ("_blocks", "_kept", "_pieces")

    def __init__(self, blocks: int = 0, kept: int = 0) -> None:
        """`blocks` that were seen before, in no known order, of which `kept` had their first draft kept."""
        self._pieces: list[tuple[int, int]] = [(blocks, kept)] if blocks else []
        """(blocks, kept), oldest first."""
        self._blocks = 0
        self._kept = 0

    def add(self, kept: bool) -> bool:
        """Count one block; True when it is time for `find`."""
        self._blocks += 1
        self._kept += kept
        if self._blocks < _CHUNK:
            return False
        self._pieces.append((self._blocks, self._kept))
        self._blocks = self._kept = 0
        self._merge()
        return True

    def find(self, design_effect: float, delta: float = DELTA) -> Change | None:
        """The change that explains the blocks best, if it is beyond chance; then what came before is forgotten."""
        total = sum(blocks for blocks, _ in self._pieces)
        kept = sum(good for _, good in self._pieces)
        if kept in (0, total):
            return None
        mean = kept / total
        threshold = design_effect * math.log(3.0 * max(total / design_effect, 1.0) ** 1.5 / delta)
        best, split = threshold, 0
        blocks = good = 0
        for index, (more, more_kept) in enumerate(self._pieces[:-1], start=1):
            blocks += more
            good += more_kept
            gain = _distance(blocks, good, mean) + _distance(total - blocks, kept - good, mean)
            if gain >= best:
                best, split = gain, index
        if split == 0:
            return None
        before_blocks = sum(blocks for blocks, _ in self._pieces[:split])
        before_kept = sum(good for _, good in self._pieces[:split])
        del self._pieces[:split]
        after = total - before_blocks
        return Change(before_kept / before_blocks, (kept - before_kept) / after, after)

    def _merge(self) -> None:
        """Where too many pieces are of one size, the oldest two of them become one."""
        end = len(self._pieces)
        while end:
            size = self._pieces[end - 1][0]
            first = end - 1
            while first > 0 and self._pieces[first - 1][0] == size:
                first -= 1
            if end - first <= _EQUAL_PIECES:
                return
            older, newer = self._pieces[first], self._pieces[first + 1]
            self._pieces[first : first + 2] = [(older[0] + newer[0], older[1] + newer[1])]
            end = first + 1


def _distance(blocks: int, kept: int, mean: float) -> float:
    """blocks * kl(kept / blocks, mean)."""
    lost = blocks - kept
    value = 0.0
    if kept:
        value += kept * math.log(kept / (blocks * mean))
    if lost:
        value += lost * math.log(lost / (blocks * (1.0 - mean)))
    return value

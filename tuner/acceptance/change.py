"""Whether acceptance has changed, in one cell or in a whole drafter; one observation for each finished request.

What is watched is how often a first draft is kept when every block has one draft (re-blocked): that does not depend on
the block lengths that happen to be served, as the share of logged blocks does where acceptance comes in bursts. A
request of n such blocks counts as n / (1 + (n - 1) rho) independent ones, rho being the correlation of blocks within a
request (Kish 1965): a single request that loops is one strange request and not a hundred blocks.

One cell: with mu the mean over t blocks, mu_1 that of the first s and mu_2 that of the rest, a change is found when

    max over s of  s kl(mu_1, mu) + (t - s) kl(mu_2, mu)  >=  log(3 t^(3/2) / delta)

(Bernoulli GLR, Besson, Kaufmann, Maillard and Seznec 2022; the threshold as the project's notes, 5.7, give it).

A drafter: what its latest requests brought, t kl(kept / t, expected / t), against what their own cells' means say that
they should have; so a shift between contexts is no change. It finds in a few dozen requests what no cell has seen often
enough.

Splits are tried on a grid that is fine near the end and geometric before it, kept as an exponential histogram (Datar
et al. 2002), so memory grows as log t.
"""

import math
from dataclasses import dataclass

DELTA = 0.01
"""Probability, over the whole life of a cell or drafter that does not change, that a change is found."""
PRIOR_CORRELATION = 0.2
"""Of blocks within a request, before it has been learned."""
_TEST_EVERY = 2
"""Requests."""
_LEAST_REQUESTS = 3
"""On either side of a change."""
_EQUAL_PIECES = 6
"""Pieces of one size before the oldest two of them become one."""
_LEAST_BLOCKS = 20.0
"""Effective blocks of a cell before what its requests bring beyond its mean says anything."""
_MEAN_DOUBT = 2.0
"""What that is divided by, since the means are estimates."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Acceptance changed. Where a whole drafter's did, route and language are ``*``."""

    drafter: str
    route: str
    language: str
    before: float
    """Share of first drafts kept before the change, of blocks of one draft, silent ones included."""
    after: float
    """The same since."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was found."""

    before: float
    after: float
    mark: int
    """The mark of the last request before it."""


_Sums = tuple[float, float, float]


@dataclass(slots=True)
class _Piece:
    requests: int
    mark: int
    """Of its last request."""
    sums: _Sums


class _Pieces:
    """Sums over requests in order, in few pieces."""

    __slots__ = ("due", "pieces")

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []
        self.due = 0

    def add(self, mark: int, sums: _Sums, requests: int = 1) -> bool:
        """Whether it is time for a test."""
        self.pieces.append(_Piece(requests, mark, sums))
        end = len(self.pieces)
        while end:
            size = self.pieces[end - 1].requests
            first = end - 1
            while first > 0 and self.pieces[first - 1].requests == size:
                first -= 1
            if end - first <= _EQUAL_PIECES:
                break
            older, newer = self.pieces[first], self.pieces[first + 1]
            sums = _added(older.sums, newer.sums)
            self.pieces[first : first + 2] = [_Piece(older.requests + newer.requests, newer.mark, sums)]
            end = first + 1
        self.due += 1
        return self.due % _TEST_EVERY == 0

    def total(self) -> _Sums:
        total = (0.0, 0.0, 0.0)
        for piece in self.pieces:
            total = _added(total, piece.sums)
        return total


def _added(left: _Sums, right: _Sums) -> _Sums:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


class CellTest:
    """The requests of one cell, in the order in which they finished."""

    __slots__ = ("_pieces", "blocks", "kept")

    def __init__(self) -> None:
        self._pieces = _Pieces()
        self.blocks = 0.0
        """Effective ones, of all requests."""
        self.kept = 0.0

    def add(self, blocks: float, kept: float, mark: int, requests: int = 1) -> bool:
        """Count one request (or what is known of several); True when it is time for `find`."""
        self.blocks += blocks
        self.kept += kept
        return self._pieces.add(mark, (blocks, kept, 0.0), requests)

    @property
    def known_mean(self) -> float | None:
        """Share of first drafts kept, kept away from 0 and 1; None while too little is known."""
        if self.blocks < _LEAST_BLOCKS:
            return None
        return (self.kept + 0.5) / (self.blocks + 1.0)

    def find(self, delta: float) -> Change | None:
        """The change that explains the requests best, if it is beyond chance; then what came before is forgotten."""
        total, kept = self.blocks, self.kept
        if kept <= 0.0 or kept >= total:
            return None
        pieces = self._pieces.pieces
        mean = kept / total
        best = math.log(3.0 * max(total, 1.0) ** 1.5 / delta)
        split, requests, later = 0, 0, sum(piece.requests for piece in pieces)
        blocks = good = 0.0
        before = (0.0, 0.0)
        for index, piece in enumerate(pieces[:-1], start=1):
            requests += piece.requests
            later -= piece.requests
            blocks += piece.sums[0]
            good += piece.sums[1]
            if requests < _LEAST_REQUESTS:
                continue
            if later < _LEAST_REQUESTS:
                break
            gain = _distance(blocks, good, mean) + _distance(total - blocks, kept - good, mean)
            if gain >= best:
                best, split, before = gain, index, (blocks, good)
        if split == 0:
            return None
        mark = pieces[split - 1].mark
        del pieces[:split]
        self.blocks, self.kept, *_ = self._pieces.total()
        return Change(before[1] / before[0], self.kept / self.blocks, mark)


class DrafterTest:
    """The requests of one drafter against the means of their cells, in the order in which they finished."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces = _Pieces()

    def add(self, blocks: float, kept: float, mean: float, mark: int) -> bool:
        """Count one request of a cell of that `mean`; True when it is time for `find`."""
        return self._pieces.add(mark, (blocks, kept, blocks * mean))

    def find(self, delta: float) -> Change | None:
        """As `CellTest.find`. Before and after are shares over the mix of contexts since the change."""
        pieces = self._pieces.pieces
        sums = (0.0, 0.0, 0.0)
        requests = 0
        best = math.log(3.0 * max(sum(piece.requests for piece in pieces), 1) ** 1.5 / delta)
        change = None
        for index in range(len(pieces) - 1, 0, -1):
            sums = _added(sums, pieces[index].sums)
            requests += pieces[index].requests
            blocks, kept, expected = sums
            if requests < _LEAST_REQUESTS or blocks <= 0.0:
                continue
            gain = _distance(blocks, kept, expected / blocks) / _MEAN_DOUBT
            if gain >= best:
                best, change = gain, Change(expected / blocks, kept / blocks, pieces[index - 1].mark)
        return change


def effective(blocks: float, correlation: float) -> float:
    """What `blocks` of one request are worth in independent ones."""
    return blocks / (1.0 + max(blocks - 1.0, 0.0) * correlation)


def _distance(blocks: float, kept: float, mean: float) -> float:
    """blocks * kl(kept / blocks, mean)."""
    lost = blocks - kept
    value = 0.0
    if kept > 0.0:
        value += kept * math.log(kept / (blocks * mean))
    if lost > 0.0:
        value += lost * math.log(lost / (blocks * (1.0 - mean)))
    return value

"""Whether acceptance has changed, in one cell or in a whole drafter; one observation for each finished request.

What is watched is how often a first draft is kept when every block has one draft (re-blocked): that does not depend on
the block lengths that happen to be served, as the share of logged blocks does where acceptance comes in bursts. A
request of n such blocks counts as n / (1 + (n - 1) rho) independent ones, rho being the correlation of blocks within a
request (Kish 1965): a single request that loops is one strange request and not a hundred blocks.

One cell: with mu the mean over t blocks, mu_1 that of the first s and mu_2 that of the rest, a change is found when

    max over s of  s kl(mu_1, mu) + (t - s) kl(mu_2, mu)  >=  log(3 t^(3/2) / delta)

(Bernoulli GLR, Besson, Kaufmann, Maillard and Seznec 2022; the threshold as the project's notes, 5.7, give it).

Many cells, those of a drafter or all there are: what the latest requests brought against what their own cells' means
say that they should have, so that a shift between contexts is no change. It finds in a few dozen requests what no cell
has seen often enough. With D = t kl(kept / t, expected / t) over the requests of a drafter in a language, divided by
what the means' own errors add to it, a change is found when

    D of everything together,  or  log of the Chernoff bound on P(chi^2_m >= 2 sum of D over the m groups)

is beyond the same threshold: the first finds what moves everything one way, the second what is better here and worse
there, as when drafters change places. When the text changes, every drafter shows it a little, and all together soon.

Splits are tried on a grid that is fine near the end and geometric before it, kept as an exponential histogram (Datar
et al. 2002), so memory grows as log t.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[str, str, str]
"""Of a cell: drafter, route, language."""

DELTA = 0.01
"""Probability, over the whole life of what is tested and does not change, that a change is found."""
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
_SPLITS = frozenset((3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128))
"""Of the latest requests of a drafter, how many are held against what was known before them. What is older, its cells
have found."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Acceptance changed. Where it did so in more than one cell, route and language are ``*``, and so is the drafter
    where it is not one's alone."""

    drafter: str
    route: str
    language: str
    before: float
    """Share of first drafts kept before the change, of blocks of one draft, silent ones included."""
    after: float
    """The same since."""
    returned: bool = False
    """Everything is as it was once before, and what was known then holds again."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was found."""

    before: float
    after: float
    mark: int
    """The mark of the last request before it."""


@dataclass(slots=True)
class _Piece:
    requests: int
    mark: int
    """Of its last request."""
    blocks: float
    kept: float


class CellTest:
    """The requests of one cell, in the order in which they finished, in few pieces."""

    __slots__ = ("_due", "_pieces", "blocks", "kept")

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._due = 0
        self.blocks = 0.0
        """Effective ones, of all requests."""
        self.kept = 0.0

    def add(self, blocks: float, kept: float, mark: int, requests: int = 1) -> bool:
        """Count one request (or what is known of several); True when it is time for `find`."""
        self.blocks += blocks
        self.kept += kept
        pieces = self._pieces
        pieces.append(_Piece(requests, mark, blocks, kept))
        end = len(pieces)
        while end:
            size = pieces[end - 1].requests
            first = end - 1
            while first > 0 and pieces[first - 1].requests == size:
                first -= 1
            if end - first <= _EQUAL_PIECES:
                break
            older, newer = pieces[first], pieces[first + 1]
            joined = _Piece(2 * size, newer.mark, older.blocks + newer.blocks, older.kept + newer.kept)
            pieces[first : first + 2] = [joined]
            end = first + 1
        self._due += 1
        return self._due % _TEST_EVERY == 0

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
        pieces = self._pieces
        mean = kept / total
        best = math.log(3.0 * max(total, 1.0) ** 1.5 / delta)
        split, requests, later = 0, 0, sum(piece.requests for piece in pieces)
        blocks = good = 0.0
        before = (0.0, 0.0)
        for index, piece in enumerate(pieces[:-1], start=1):
            requests += piece.requests
            later -= piece.requests
            blocks += piece.blocks
            good += piece.kept
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
        self.blocks = sum([piece.blocks for piece in pieces])
        self.kept = sum([piece.kept for piece in pieces])
        return Change(before[1] / before[0], self.kept / self.blocks, mark)


class _Request(NamedTuple):
    cell: Key
    """Its drafter and language are what counts together."""
    blocks: float
    kept: float
    mean: float
    """Of its cell before it, which rests on `known` effective blocks."""
    known: float
    mark: int


@dataclass(slots=True)
class _Latest:
    """The latest requests of one group: effective blocks, first drafts kept, and what their cells led to expect."""

    blocks: float = 0.0
    kept: float = 0.0
    expected: float = 0.0
    doubt: float = 0.0
    """What errors of the cells' means add to the variance, in blocks: n^2 / N for a cell of n blocks since and N
    before."""

    @property
    def excess(self) -> float:
        if self.blocks <= 0.0:
            return 0.0
        return _distance(self.blocks, self.kept, self.expected / self.blocks) / (1.0 + self.doubt / self.blocks)


class CellsTest:
    """The latest requests of many cells against the means of those."""

    __slots__ = ("_requests", "_seen")

    def __init__(self) -> None:
        self._requests: deque[_Request] = deque(maxlen=max(_SPLITS))
        self._seen = 0

    def add(self, cell: Key, blocks: float, kept: float, mean: float, known: float, mark: int) -> bool:
        """Count one request of a `cell` whose `mean` rests on `known` effective blocks; True when it is time for
        `find`."""
        self._requests.append(_Request(cell, blocks, kept, mean, known, mark))
        self._seen += 1
        return self._seen % _TEST_EVERY == 0

    def find(self, delta: float) -> Change | None:
        """As `CellTest.find`. Before and after are shares over the mix of cells since the change."""
        best = math.log(6.0 * self._seen**1.5 / delta)
        change = None
        cells: dict[Key, tuple[float, float, float]] = {}
        groups: dict[tuple[str, str], _Latest] = {}
        nothing = 0.0, 0.0, 0.0
        for count, (cell, more, kept, mean, known, _) in enumerate(reversed(self._requests), start=1):
            place = cell[0], cell[2]
            group = groups.get(place)
            if group is None:
                group = groups[place] = _Latest()
            blocks, expected, doubt = cells.get(cell, nothing)
            blocks += more
            # The older the mean, the less of the change is in it already.
            now = cells[cell] = blocks, blocks * mean, blocks**2 / known
            group.blocks += more
            group.kept += kept
            group.expected += now[1] - expected
            group.doubt += now[2] - doubt
            if count not in _SPLITS:
                continue
            found = list(groups.values())
            every = _Latest(
                sum([each.blocks for each in found]),
                sum([each.kept for each in found]),
                sum([each.expected for each in found]),
                sum([each.doubt for each in found]),
            )
            apart = sum([each.excess for each in found])
            gain = max(every.excess, _chi_square_bound(2.0 * apart, len(found)))
            if gain >= best and count < len(self._requests):
                mark = self._requests[-count - 1].mark
                best, change = gain, Change(every.expected / every.blocks, every.kept / every.blocks, mark)
        return change


def _chi_square_bound(value: float, freedom: int) -> float:
    """-log of Chernoff's bound on the probability that chi-square with `freedom` reaches `value`."""
    if value <= freedom:
        return 0.0
    return 0.5 * (value - freedom - freedom * math.log(value / freedom))


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

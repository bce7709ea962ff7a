"""How acceptance was before it changed: what comes back is known at once.

Traffic turns with day and night, a deployment is rolled back, a drafter is swapped and swapped again. So when a change
is found that is more than one cell's, what was known up to it is kept as a regime, and every request that finishes is
weighed: does that regime, or what has been learned since, say better what the request brought? With n effective blocks
of which k were kept, in a cell that had N of which K were kept, and in the regime N' and K',

    S = max(0, S + log BB(k; n, K' + 1/2, N' - K' + 1/2) - log BB(k; n, K + 1/2, N - K + 1/2))

over the requests of all drafters and contexts, BB being the beta-binomial: a cumulative sum (Page 1954) of what either
predicts. Both alternatives are known, so it needs a few requests where a test against anything else needs dozens; and
while what has been learned since is right, S passes h less often than once in exp(h) requests (Lorden 1971).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner.acceptance.change import Key
from tuner.acceptance.counts import Remembered

_KEPT = 3
"""Regimes."""
_BARRIER = 11.5
"""Of the sum: once in 100,000 requests."""
_BARRIER_OF_A_CHANGE = 5.0
"""The same once it is certain that what has been learned is wrong: that it is like this needs less proof."""
_MOST_OF_A_REQUEST = 3.0
"""A single strange request proves nothing."""
_LEAST_BLOCKS = 20.0
"""Effective blocks on which both sides of a comparison have to rest."""


@dataclass(frozen=True, slots=True)
class Return:
    """A regime is in force again."""

    cells: Mapping[Key, Remembered]
    mark: int
    """Of the last request before it."""
    drafter: str
    """The one that says so most clearly."""
    before: float
    """Share of its first drafts that would have been kept as it was, over the requests since `mark`."""
    after: float
    """The share that was kept."""


@dataclass(slots=True)
class _Witness:
    """What one drafter says, since the sum was last 0."""

    evidence: float = 0.0
    blocks: float = 0.0
    kept: float = 0.0
    expected: float = 0.0


class _Regime:
    __slots__ = ("cells", "mark", "sum", "witnesses")

    def __init__(self, cells: dict[Key, Remembered]) -> None:
        self.cells = cells
        self.sum = 0.0
        self.mark = 0
        self.witnesses: dict[str, _Witness] = {}


class Regimes:
    """Those that were in force once, newest last; not thread-safe."""

    def __init__(self) -> None:
        self._regimes: list[_Regime] = []

    def keep(self, cells: dict[Key, Remembered]) -> None:
        """`cells` are as they were up to now, and are no more."""
        self._regimes = [*self._regimes, _Regime(cells)][-_KEPT:]
        for regime in self._regimes:
            regime.sum = 0.0

    def forget(self, drafter: str) -> None:
        """Another version of it was loaded."""
        for regime in self._regimes:
            regime.cells = {key: cell for key, cell in regime.cells.items() if key[0] != drafter}

    def weigh(self, key: Key, blocks: float, kept: float, known: float, known_kept: float, mark: int) -> None:
        """Count a request of `blocks` effective blocks, in a cell that had `known` of them before it."""
        if known < _LEAST_BLOCKS or not self._regimes:
            return
        now = predicted(blocks, kept, known, known_kept)
        for regime in self._regimes:
            then = regime.cells.get(key)
            if then is None or then.blocks < _LEAST_BLOCKS:
                continue
            if regime.sum <= 0.0:
                regime.mark, regime.witnesses = mark - 1, {}
            evidence = min(predicted(blocks, kept, then.blocks, then.kept) - now, _MOST_OF_A_REQUEST)
            regime.sum = max(0.0, regime.sum + evidence)
            witness = regime.witnesses.setdefault(key[0], _Witness())
            witness.evidence += evidence
            witness.blocks += blocks
            witness.kept += kept
            witness.expected += blocks * known_kept / known

    def take_returned(self, current: Callable[[int], dict[Key, Remembered]], *, changed: bool) -> Return | None:
        """The regime that is in force again, if one is; what `current` makes of the cells up to a mark takes its place
        among those that were. `changed`: something is known to be no longer as it was learned."""
        regime = max(self._regimes, key=lambda one: one.sum, default=None)
        if regime is None or regime.sum < (_BARRIER_OF_A_CHANGE if changed else _BARRIER):
            return None
        self._regimes.remove(regime)
        self.keep(current(regime.mark))
        drafter, most = max(regime.witnesses.items(), key=lambda pair: pair[1].evidence)
        return Return(regime.cells, regime.mark, drafter, most.expected / most.blocks, most.kept / most.blocks)


def predicted(blocks: float, kept: float, known: float, known_kept: float) -> float:
    """log of the beta-binomial probability that `kept` of `blocks` are, where `known_kept` of `known` were; but for a
    term that does not depend on what is known."""
    good, bad = known_kept + 0.5, known - known_kept + 0.5
    lost = blocks - kept
    return (
        math.lgamma(good + kept)
        + math.lgamma(bad + lost)
        - math.lgamma(good + bad + blocks)
        - math.lgamma(good)
        - math.lgamma(bad)
        + math.lgamma(good + bad)
    )

"""The full oracle: it knows what every drafter and block length emits in every context and phase, and what cycles take.

It plans each cycle for the composition that runs (`tuner.replay.composition`), with no margin and no bound on
neighbours, from the trace's own requests cut into blocks: the truth of its context and of its stretch of time, not of
the request itself, which nobody can know before it has run. Regret is measured against it.

`tuner.replay.copying_oracle` is the other reference: it looks at proposals too.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import Any

import numpy as np

from policies.types import PLAIN
from tuner.replay.composition import Choice, Composer
from tuner.replay.player import Running, World
from tuner.replay.reblock import Ints, Reblocked
from tuner.replay.trace import Costs, Trace

STRETCH_REQUESTS = 1000
"""Between two changes, a phase has no fewer requests, and less than twice as many, so that slow shifts are followed.
Shorter phases know the luck of their few requests: of 400, the oracle was 0.4 to 0.9 % faster where nothing changes."""

_KV_STEP = 1.3
"""Context tokens are told apart by this factor."""


class Truth:
    """A trace's cells, one for each context and phase, and the best choices for whatever runs together."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.blocks = Reblocked(trace)
        self.cell_of, self.cells = _cells(trace)
        self.tables = self.blocks.tables(self.cell_of, self.cells)
        epochs = [(0, trace.costs), *trace.later_costs]
        self._epochs = [first for first, _ in epochs]
        self._costs = [costs for _, costs in epochs]
        self._composers = [Composer(self.tables, costs, trace.drafters, trace.slots) for costs in self._costs]
        self._known: dict[tuple[int, int, tuple[int, ...]], tuple[Choice, ...]] = {}
        self._cell_of: list[int] = self.cell_of.tolist()

    def epoch(self, request: int) -> int:
        """Which of the trace's costs are in force once `request` has been admitted."""
        return bisect_right(self._epochs, request) - 1

    def cell(self, request: int) -> int:
        """The cell of a request."""
        return self._cell_of[request]

    def costs(self, epoch: int) -> Costs:
        """What cycles take in an epoch."""
        return self._costs[epoch]

    def choose(self, indices: Sequence[int], epoch: int, kv_tokens: int) -> dict[int, Choice]:
        """What each request of `indices` does while they run together."""
        members = sorted((self._cell_of[index], index) for index in indices)
        cells = tuple(cell for cell, _ in members)
        step = round(log(kv_tokens) / log(_KV_STEP))
        found = self._known.get((epoch, step, cells))
        if found is None:
            found = self._composers[epoch].choose(cells, round(_KV_STEP**step))
            self._known[epoch, step, cells] = found
        return {index: choice for (_, index), choice in zip(members, found, strict=True)}


def _cells(trace: Trace) -> tuple[Ints, int]:
    """The cell of each request, and how many there are."""
    count = len(trace.requests)
    bounds = [0, *sorted({change for change in trace.changes if 0 < change < count}), count]
    starts: list[int] = []
    for first, last in pairwise(bounds):
        pieces = max(1, (last - first) // STRETCH_REQUESTS)
        starts.extend(first + (last - first) * piece // pieces for piece in range(pieces))
    places: dict[tuple[str, str, int], int] = {}
    cells = [
        places.setdefault((one.route, one.language, bisect_right(starts, index)), len(places))
        for index, one in enumerate(trace.requests)
    ]
    return np.array(cells, dtype=np.int64), len(places)


class Oracle:
    """Plays the truth."""

    name = "oracle"

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._drafters = truth.trace.drafters
        self._epoch = 0
        self._changed = True

    def start(self, world: World, memory: Any) -> None:
        """It knows all there is to know already."""
        self._changed = True

    def save(self) -> Any:
        """A restart takes nothing from it."""
        return None

    def admit(self, one: Running, load: int) -> None:
        """What runs together has changed."""
        self._changed = True
        self._epoch = max(self._epoch, self._truth.epoch(one.index))

    def plan(self, running: list[Running]) -> None:
        """The best choices for what runs together."""
        if self._changed:
            kv_tokens = sum(one.kv_tokens for one in running)
            choices = self._truth.choose([one.index for one in running], self._epoch, kv_tokens)
            for one in running:
                place, one.cap = choices[one.index]
                one.drafter = self._drafters[place] if one.cap else PLAIN
            self._changed = False
        for one in running:
            one.requested = one.cap

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """There is nothing to learn."""

    def finish(self, one: Running) -> None:
        """What runs together has changed."""
        self._changed = True

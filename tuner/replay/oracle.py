"""The full oracle: it knows what every drafter and block length emits in every context and phase, and what cycles take.

It plans each cycle for the composition that runs (`tuner.replay.composition`), with no margin and no bound on
neighbours, from the trace's own requests cut into blocks: the truth of its context and of its stretch of time, not of
the request itself, which nobody can know before it has run. Regret is measured against it.

`ConfidentOracle` also looks at the proposals before it verifies them: what it gains over the other is what confidence
is worth.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf, log
from typing import Any

import numpy as np

from policies.allocate import Candidate, allocate
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.replay.composition import Choice, Composer
from tuner.replay.player import Running, World
from tuner.replay.reblock import Ints, Reblocked
from tuner.replay.trace import Costs, Trace

STRETCH_REQUESTS = 1000
"""Between two changes, a phase has no fewer requests, and less than twice as many, so that slow shifts are followed.
Shorter phases know the luck of their few requests: of 400, the oracle was 0.4 to 0.9 % faster where nothing changes."""

_KV_STEP = 1.3
"""Context tokens are told apart by this factor."""


_LATELY = 0.05
"""Weight of the last cycle in the rate of late."""
_SILENT = Candidate(0, (), False)


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

    def survivals(self) -> list[dict[str, list[tuple[float, ...]]]]:
        """S_1..S_16 of each drafter by cell and confidence bucket: ``[cell][drafter][bucket]``."""
        found: list[dict[str, list[tuple[float, ...]]]] = [{} for _ in range(self.cells)]
        for place, drafter in enumerate(self.trace.drafters):
            buckets = self.trace.confidence_buckets[drafter] + 1
            curves = self.blocks.survival(place, self.cell_of, self.cells, buckets).tolist()
            for cell, by_bucket in enumerate(curves):
                found[cell][drafter] = [tuple(curve) for curve in by_bucket]
        return found

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

    def verify(self, running: list[Running]) -> None:
        """All that was drafted."""

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """There is nothing to learn."""

    def finish(self, one: Running) -> None:
        """What runs together has changed."""
        self._changed = True


class ConfidentOracle(Oracle):
    """Plays the truth, and verifies of each proposal what its confidence says is worth it.

    A drafter that takes no steps is asked for all that it can offer, and by sequences that would be plain as well:
    what it offers then costs next to nothing where it is not verified.
    """

    name = "oracle-confidence"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._survivals = truth.survivals()
        costs = truth.trace.costs.drafters
        self._copying = [drafter for drafter in self._drafters if costs[drafter].step_seconds <= 0.0]
        self._mean_tokens = self._mean_seconds = 0.0

    def plan(self, running: list[Running]) -> None:
        """The best choices, and longer proposals where they cost nothing."""
        super().plan(running)
        for one in running:
            if one.cap == 0 and self._copying:
                one.drafter = self._copying[-1]
            if one.drafter in self._copying:
                one.requested = MAX_BLOCK_LENGTH

    def verify(self, running: list[Running]) -> None:
        """What is worth it at the rate of late."""
        candidates = [
            Candidate(one.proposed, self._survivals[self._truth.cell(one.index)][one.drafter][one.confidence], False)
            if one.proposed
            else _SILENT
            for one in running
        ]
        kv_tokens = sum(one.kv_tokens for one in running)
        rate = self._mean_tokens / self._mean_seconds if self._mean_seconds else 0.0
        lengths = allocate(candidates, self._truth.costs(self._epoch).target, kv_tokens, 0.0, inf, rate)
        for one, length in zip(running, lengths, strict=True):
            one.verified = length

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """Tokens per second of late, a ratio of means."""
        self._mean_tokens += _LATELY * (sum(one.emitted for one in running) - self._mean_tokens)
        self._mean_seconds += _LATELY * (seconds - self._mean_seconds)

"""Runs in which every request has one drafter and one block length for all its life: the same as `simulate.play` gives
for a player that does that, without a loop over cycles, since there are many of them.

A request's blocks then do not depend on its neighbours, they are those that `tuner.replay.reblock` has cut already, and
requests are admitted by counting, not by the clock.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from policies.types import PLAIN
from tuner.replay.played import Played
from tuner.replay.reblock import Reblocked

Arm = tuple[str, int]
"""(drafter, block length)"""


class FixedRuns:
    """Every fixed run over one trace."""

    def __init__(self, blocks: Reblocked) -> None:
        self._blocks = blocks
        self._trace = blocks.trace

    def play(self, drafter: str, block_length: int) -> Played:
        """One arm for all requests. Raises ValueError for a drafter that the trace does not have."""
        return self.play_arms([(drafter, block_length)] * len(self._trace.requests))

    def play_arms(self, arms: Sequence[Arm]) -> Played:
        """An arm for each request."""
        blocks, requests = self._blocks, len(arms)
        owners_of: dict[Arm, list[int]] = {}
        for index, (drafter, block_length) in enumerate(arms):
            arm = (drafter, block_length) if drafter != PLAIN and block_length > 0 else (PLAIN, 0)
            owners_of.setdefault(arm, []).append(index)
        parts = []
        for (drafter, block_length), owners in owners_of.items():
            place = self._trace.drafters.index(drafter) if block_length else 0
            at = blocks.starts[place][block_length]
            if len(owners_of) > 1:
                has_it = np.zeros(requests, dtype=np.bool_)
                has_it[owners] = True
                at = at[has_it[blocks.owner[at]]]
            requested = np.minimum(block_length, blocks.left[at] - 1)
            proposed = np.minimum(blocks.offered[place][at], requested)
            emitted = np.minimum(blocks.kept[place][at], proposed) + 1
            parts.append(np.stack((at, np.where(requested > 0, place + 1, 0), proposed, emitted)))
        rows = np.concatenate(parts, axis=1)
        if len(parts) > 1:
            rows = rows[:, np.argsort(rows[0])]
        at, drafters, drafts, tokens = rows
        counts = np.bincount(blocks.owner[at], minlength=requests)
        firsts, cycles = _admissions(counts.tolist(), self._trace.loads)
        return Played(np.array(firsts, dtype=np.int64), counts, drafters, drafts, drafts, tokens, np.zeros(cycles))


def _admissions(counts: Sequence[int], loads: Sequence[int]) -> tuple[list[int], int]:
    """The cycle in which each request is admitted, given how many cycles each takes; and the number of cycles."""
    firsts: list[int] = []
    ends: list[int] = []
    cycle = last = 0
    for count, load in zip(counts, loads, strict=True):
        while len(ends) >= load:
            cycle = max(cycle, heapq.heappop(ends))
        firsts.append(cycle)
        heapq.heappush(ends, cycle + count)
        last = max(last, cycle + count)
    return firsts, last

"""Runs in which every request has one drafter and one block length for all its life: the same as `simulate.play` gives
for a player that does that, without a loop over cycles, since there are many of them.

A request's blocks then do not depend on its neighbours, and requests are admitted by counting, not by the clock.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from policies.types import PLAIN
from tuner.replay.played import Ints, Played
from tuner.replay.trace import Trace


class FixedRuns:
    """Every fixed run over one trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        requests = trace.requests
        self._lengths: Ints = np.array([one.output_tokens for one in requests], dtype=np.int64)
        self._firsts: Ints = np.cumsum(self._lengths) - self._lengths
        self._drafts: dict[str, tuple[Ints, Ints]] = {
            name: (
                _flat([one.drafts[name].offered for one in requests]),
                _flat([one.drafts[name].kept for one in requests]),
            )
            for name in trace.drafters
        }

    def play(self, drafter: str, block_length: int) -> Played:
        """One arm for all requests. Raises KeyError for a drafter that the trace does not have."""
        return self.play_arms([(drafter, block_length)] * len(self._lengths))

    def play_arms(self, arms: Sequence[tuple[str, int]]) -> Played:
        """An arm (drafter, block length) for each request."""
        asked = np.zeros(len(self._lengths), dtype=np.int64)
        place = np.zeros(len(self._lengths), dtype=np.int64)
        for index, (drafter, block_length) in enumerate(arms):
            if drafter != PLAIN and block_length > 0:
                asked[index] = block_length
                place[index] = 1 + self._trace.drafters.index(drafter)
        step_rows = []
        step_owners = []
        owners = np.arange(len(self._lengths))
        at = self._firsts.copy()
        left = self._lengths.copy()
        tables = [(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)), *self._drafts.values()]
        groups = [which for which in range(len(tables)) if (place == which).any()]
        while len(owners):
            requested = np.minimum(asked[owners], left - 1)
            proposed = np.zeros(len(owners), dtype=np.int64)
            accepted = np.zeros(len(owners), dtype=np.int64)
            for which in groups:
                if which == 0:
                    continue
                offered, kept = tables[which]
                here = place[owners] == which if len(groups) > 1 else slice(None)
                proposed[here] = np.minimum(offered[at[here]], requested[here])
                accepted[here] = np.minimum(kept[at[here]], proposed[here])
            emitted = accepted + 1
            used = np.where(requested > 0, place[owners], 0)
            step_rows.append(np.stack((used, proposed, proposed, emitted)))
            step_owners.append(owners)
            at = at + emitted
            left = left - emitted
            alive = left > 0
            owners, at, left = owners[alive], at[alive], left[alive]
        all_owners = np.concatenate(step_owners)
        order = np.argsort(all_owners, kind="stable")
        rows = np.concatenate(step_rows, axis=1)[:, order]
        counts = np.bincount(all_owners, minlength=len(self._lengths))
        firsts, cycles = _admissions(counts.tolist(), self._trace.loads)
        return Played(np.array(firsts, dtype=np.int64), counts, rows[0], rows[1], rows[2], rows[3], np.zeros(cycles))


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


def _flat(parts: list[bytes]) -> Ints:
    return np.frombuffer(b"".join(parts), dtype=np.uint8).astype(np.int64)

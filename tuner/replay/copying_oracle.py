"""What the oracle's knowledge is worth to a controller that may look at proposals: a second reference.

`tuner.replay.oracle.Oracle` gives each request one drafter and one block length for as long as the same sequences run.
This one starts from its choices, and knows besides, for every context and stretch of time, how far a proposal goes that
is so sure. In each cycle a drafter that copies proposes first, where that is worth its cost. Its proposal takes the
place of the chosen block where it promises more (`policies.copying`, by the true curves); and where the oracle chose
copying and there is nothing to copy, a learned drafter's block is asked for if it pays for itself. Then as much is
verified as is worth it (`policies.allocate`, by the true curves and costs, with no margin and no bound for neighbours).
"""

from math import inf
from typing import NamedTuple

import numpy as np

from policies.allocate import Candidate, allocate
from policies.copying import CopyingChoice
from policies.cycle_policy import DraftCost, Outlook
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.replay.oracle import Oracle, Truth
from tuner.replay.player import Running
from tuner.replay.reblock import Floats
from tuner.replay.trace import Costs

_LATELY = 0.05
"""Weight of the last cycle in the rate of late."""
_SILENT = Candidate(0, (), False)
_CERTAIN = (1.0,) * MAX_BLOCK_LENGTH


class _Block(NamedTuple):
    """What a sequence is to draft unless something is copied, while the same sequences run."""

    drafter: str
    length: int
    outlook: Outlook
    cost: DraftCost | None


_NOTHING = _Block(PLAIN, 0, Outlook((), ()), None)


class _Proposals:
    """A drafter's proposals in one cell, by confidence bucket. B buckets."""

    def __init__(self, offered: Floats, kept: Floats, kept_anywhere: Floats) -> None:
        """Counts of blocks, (B, 17), and, where this cell never saw a bucket, S_0..S_16 of all cells, (B, 17)."""
        seen = offered[:, :1]
        survival = np.where(seen > 0.0, kept / np.maximum(offered, 1.0), kept_anywhere)[:, 1:]
        # Longer proposals are the surer ones: what is offered further on is no worse for that.
        self.survivals = [tuple(curve) for curve in np.minimum.accumulate(survival, axis=1).tolist()]
        """By bucket, S_1..S_16 of what is offered."""
        self.copied = [Outlook(curve, _CERTAIN) for curve in self.survivals]
        blocks = max(1.0, float(seen.sum()))
        self._share = seen[:, 0] / blocks
        self._tokens = kept[:, 1:].cumsum(axis=1) / np.maximum(seen, 1.0)
        self._rows = offered[:, 1:].cumsum(axis=1) / np.maximum(seen, 1.0)

    def gain(self, row_price: float, other: float) -> float:
        """Tokens a block that they bring in place of what is worth `other`, where they are worth more."""
        worth = (self._tokens - row_price * self._rows).max(axis=1)
        return float(self._share @ np.maximum(worth - other, 0.0))


class CopyingOracle(Oracle):
    """Plays the truth, copied proposals first, and verifies what its confidence says is worth it."""

    name = "oracle-copying"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        costs, tables = truth.trace.costs.drafters, truth.tables
        copying = [drafter for drafter in self._drafters if costs[drafter].step_seconds <= 0.0]
        self._copying = frozenset(copying)
        self._learned = [drafter for drafter in self._drafters if drafter not in self._copying]
        self._proposals: list[dict[str, _Proposals]] = [{} for _ in range(truth.cells)]
        for place, drafter in enumerate(self._drafters):
            buckets = truth.trace.confidence_buckets[drafter] + 1
            offered, kept = truth.blocks.by_confidence(place, truth.cell_of, truth.cells, buckets)
            anywhere = kept.sum(axis=0) / np.maximum(offered.sum(axis=0), 1.0)
            for cell in range(truth.cells):
                self._proposals[cell][drafter] = _Proposals(offered[cell], kept[cell], anywhere)
        emitted, longest = tables.emitted, tables.chances[:, :, MAX_BLOCK_LENGTH]
        self._copiers = [
            max(copying, key=lambda name: float(tokens[self._drafters.index(name), MAX_BLOCK_LENGTH]), default="")
            for tokens in emitted
        ]
        self._outlooks = [
            {name: _outlook(*parts) for name, *parts in zip(self._drafters, *by_drafter, strict=True)}
            for by_drafter in zip(emitted, longest, strict=True)
        ]
        self._mean_tokens = self._mean_seconds = 0.0

    def ask(self, running: list[Running]) -> None:
        """Copiers, and what is drafted where they have nothing; until something else runs."""
        if not self._changed:
            return
        super().plan(running)
        costs = self._truth.costs(self._epoch)
        longest: dict[str, int] = {}
        for one in running:
            longest[one.drafter] = max(longest.get(one.drafter, 0), one.cap)
        load, kv_tokens = len(running), sum([one.kv_tokens for one in running])
        plain_seconds = costs.target.seconds(load, load, kv_tokens)
        rate = load / plain_seconds
        # As in `CopyingChoice`: between a few rows and many.
        row_price = rate * (costs.target.seconds(3 * load, load, kv_tokens) - plain_seconds) / (2 * load)
        choice = CopyingChoice(costs.target, load, kv_tokens)
        for one in running:
            cell, drafter = self._truth.cell(one.index), one.drafter
            if drafter in self._learned:
                block = _Block(drafter, one.cap, self._outlooks[cell][drafter], costs.drafters[drafter])
            else:
                block = self._instead(cell, costs, rate, row_price, longest)
            one.notes = block
            one.copier = drafter if drafter in self._copying else self._copiers[cell]
            if one.copier and drafter not in self._copying:
                # In this company a block may be chosen that would be worth nothing alone.
                other = max(0.0, choice.other(block.outlook, block.length, block.cost)) if block.length else 0.0
                gain = self._proposals[cell][one.copier].gain(row_price, other)
                if gain < choice.price(costs.drafters[one.copier]):
                    one.copier = ""

    def _instead(self, cell: int, costs: Costs, rate: float, row_price: float, longest: dict[str, int]) -> _Block:
        """The block of a learned drafter that is worth most where nothing is copied, at a price of a row in tokens. The
        call and the steps of the `longest` block that others ask of it are paid already."""
        best, most = _NOTHING, 0.0
        for drafter in self._learned:
            outlook, cost = self._outlooks[cell][drafter], costs.drafters[drafter]
            paid = longest.get(drafter, 0)
            call = rate * (cost.sequence_seconds + (0.0 if paid else cost.call_seconds))
            row, step = row_price + rate * cost.row_seconds, rate * cost.step_seconds
            for length in range(1, MAX_BLOCK_LENGTH + 1):
                worth = outlook.tokens[length] - row * outlook.rows[length] - call - step * max(0, length - paid)
                if worth > most:
                    best, most = _Block(drafter, length, outlook, cost), worth
        return best

    def plan(self, running: list[Running]) -> None:
        """What is copied, where it promises more; else what was chosen."""
        choice = None
        for one in running:
            drafter, length, outlook, cost = one.notes
            if one.copied:
                takes = not length
                if length:
                    if choice is None:
                        target = self._truth.costs(self._epoch).target
                        choice = CopyingChoice(target, len(running), sum([other.kv_tokens for other in running]))
                    copied = self._proposals[self._truth.cell(one.index)][one.copier].copied[one.copied_confidence]
                    takes = choice.takes(copied, one.copied, outlook, length, cost)
                if takes:
                    drafter, length = one.copier, MAX_BLOCK_LENGTH
            one.drafter, one.requested = drafter, length

    def verify(self, running: list[Running]) -> None:
        """What is worth it at the rate of late."""
        candidates: list[Candidate] = []
        work: dict[str, tuple[int, int, int]] = {}
        for one in running:
            if not one.requested:
                candidates.append(_SILENT)
                continue
            proposed = one.proposed
            asked, steps, drafts = work.get(one.drafter, (0, 0, 0))
            work[one.drafter] = asked + 1, proposed if proposed > steps else steps, drafts + proposed
            survivals = self._proposals[self._truth.cell(one.index)][one.drafter].survivals
            candidates.append(Candidate(proposed, survivals[one.confidence], False))
        if not work:
            return
        costs = self._truth.costs(self._epoch)
        drafting = sum([costs.drafters[drafter].seconds(*done) for drafter, done in work.items()])
        rate = self._mean_tokens / self._mean_seconds if self._mean_seconds else 0.0
        kv_tokens = sum([one.kv_tokens for one in running])
        lengths = allocate(candidates, costs.target, kv_tokens, 0.0, inf, rate, drafting)
        for one, verified in zip(running, lengths, strict=True):
            one.verified = verified

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """Tokens per second of late, a ratio of means."""
        self._mean_tokens += _LATELY * (sum([one.emitted for one in running]) - self._mean_tokens)
        self._mean_seconds += _LATELY * (seconds - self._mean_seconds)


def _outlook(emitted: Floats, chances: Floats) -> Outlook:
    """Of a drafter in a cell, from its tokens a block by length, (17,), and how much the longest proposes, (17,)."""
    survival = np.minimum.accumulate(np.clip(np.diff(np.maximum.accumulate(emitted)), 0.0, 1.0))
    offered = chances[::-1].cumsum()[::-1][1:]
    return Outlook(tuple(survival.tolist()), tuple(np.clip(offered, survival, 1.0).tolist()))

"""HedgeSpec, "Not-a-Bandit" (arXiv 2510.20064, ICLR 2026).

Published: for each query, what was verified is read by all N drafters, which tells what each of them would have had
accepted: full information instead of a bandit's. The loss of drafter i is ``1 - A_i / (K + 1)``, A_i being the expected
length of a block of K; the drafter is drawn by NormalHedge (Chaudhuri, Freund and Hsu 2009): with cumulative regrets
R_i, weights ``[R_i]+ / c * exp([R_i]+^2 / (2 c))``, c such that the mean of ``exp([R_i]+^2 / (2 c))`` is e; a round
whose outcome is not known yet is learned from later (Joulani et al. 2013). No drafter is plain, and load is not
considered.

What the simulator forces: what a drafter would have had accepted is read from the trace, at the positions where blocks
of the sequence began and only as far as the text has come: a position is learned from once its outcome is known to all
drafters. That is free of charge here, generous: the paper's drafters read 7 chunks and take 0.41 ms for the weights.
The indicator takes the place of the expectation. Each drafter has its own best fixed block length in hindsight, and K
is the largest of them: generous, since blocks then cost about the same, which the loss does not see.
"""

import random
from collections.abc import Mapping
from math import exp, log
from typing import Any

from tuner.replay.player import Running, World
from tuner.replay.trace import DraftTrace

NEWTON_STEPS = 8
NEWTON_TOLERANCE = 1e-4
"""Steps square the error: after one from here it is gone."""


def normal_hedge(regrets: list[float]) -> list[float]:
    """Weights that add up to 1, by the cumulative regrets; all the same where none is above 0."""
    count = len(regrets)
    above = [regret for regret in regrets if regret > 0.0]
    if not above:
        return [1.0 / count] * count
    if len(above) == 1:
        return [1.0 if regret > 0.0 else 0.0 for regret in regrets]
    squares = [regret * regret for regret in above]
    largest = max(squares)
    zeros = float(count - len(above))
    # x = 1 / (2 c) solves mean(exp(squares * x)) = e. The log of the mean is convex, so Newton's steps from the right
    # never pass the root: at x = (1 + log N) / largest it is at least 1.
    scale = (1.0 + log(count)) / largest
    for _ in range(NEWTON_STEPS):
        total, rise = zeros, 0.0
        for square in squares:
            term = exp(square * scale)
            total += term
            rise += square * term
        excess = log(total / count) - 1.0
        scale -= excess * total / rise
        if excess < NEWTON_TOLERANCE:
            break
    weights = [regret * exp((regret * regret - largest) * scale) if regret > 0.0 else 0.0 for regret in regrets]
    total = sum(weights)
    return [weight / total for weight in weights]


class _Query:
    """What is known of one query."""

    __slots__ = ("chances", "drafts", "pending", "regrets")

    def __init__(self, drafts: list[tuple[DraftTrace, int]]) -> None:
        """`drafts`: of each drafter, with its block length."""
        self.drafts = drafts
        self.regrets = [0.0] * len(drafts)
        self.chances = [1.0 / len(drafts)] * len(drafts)
        self.pending: list[tuple[int, list[float], list[float]]] = []
        """Of blocks whose outcome is not known yet: the position at which it is, the chances that were played, and each
        drafter's loss."""


class HedgeSpec:
    """Full information over drafters, a draw by NormalHedge."""

    name = "hedgespec"

    def __init__(self, lengths: Mapping[str, int]) -> None:
        """`lengths`: the block length of each drafter."""
        self._lengths = lengths
        longest = max(lengths.values())
        self._losses = [1.0 - (accepted + 1) / (longest + 1) for accepted in range(longest + 1)]
        self._drafters: tuple[str, ...] = ()
        self._random = random.Random(0)

    def start(self, world: World, memory: Any) -> None:
        """Nothing outlives a query; chance comes from the run's seed."""
        self._drafters = world.drafters
        self._random = random.Random(world.seed)

    def save(self) -> Any:
        """Nothing outlives a query."""
        return None

    def admit(self, one: Running, load: int) -> None:
        """No regret yet."""
        one.notes = _Query([(one.request.drafts[drafter], self._lengths[drafter]) for drafter in self._drafters])

    def plan(self, running: list[Running]) -> None:
        """Each sequence's own draw."""
        choose, drafters = self._random.choices, self._drafters
        for one in running:
            query: _Query = one.notes
            query.pending.append(self._block(query, one.position))
            one.drafter = choose(drafters, query.chances)[0]
            one.requested = self._lengths[one.drafter]

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """All outcomes that the text has reached."""
        for one in running:
            query: _Query = one.notes
            position = one.position
            known = [block for block in query.pending if block[0] <= position]
            if known:
                query.pending = [block for block in query.pending if block[0] > position]
                regrets = query.regrets
                for _, chances, losses in known:
                    mean = sum([chance * loss for chance, loss in zip(chances, losses, strict=True)])
                    for drafter, loss in enumerate(losses):
                        regrets[drafter] += mean - loss
                query.chances = normal_hedge(regrets)

    def _block(self, query: _Query, start: int) -> tuple[int, list[float], list[float]]:
        """What `_Query.pending` keeps of blocks of all drafters at `start`."""
        reached = 0
        losses = []
        for draft, length in query.drafts:
            accepted, end = draft.kept[start], draft.offered[start]
            if end > length:
                end = length
            # The text tells of a rejection at its position, and of a block that ends by itself at its last draft.
            known = accepted + 1
            if accepted >= end:
                accepted = known = end
            if known > reached:
                reached = known
            losses.append(self._losses[accepted])
        return start + reached, query.chances, losses

    def finish(self, one: Running) -> None:
        """Nothing outlives a query."""

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
    squares = [max(0.0, regret) ** 2 for regret in regrets]
    largest = max(squares)
    count = len(regrets)
    if largest <= 0.0:
        return [1.0 / count] * count
    # x = 1 / (2 c) solves mean(exp(squares * x)) = e. The log of the mean is convex, so Newton's steps from the right
    # never pass the root: at x = (1 + log N) / largest it is at least 1.
    scale = (1.0 + log(count)) / largest
    for _ in range(NEWTON_STEPS):
        terms = [exp(square * scale) for square in squares]
        total = sum(terms)
        slope = sum([square * term for square, term in zip(squares, terms, strict=True)]) / total
        excess = log(total / count) - 1.0
        scale -= excess / slope
        if excess < NEWTON_TOLERANCE:
            break
    weights = [
        regret * exp((square - largest) * scale) if regret > 0.0 else 0.0
        for regret, square in zip(regrets, squares, strict=True)
    ]
    total = sum(weights)
    return [weight / total for weight in weights]


class _Query:
    """What is known of one query."""

    __slots__ = ("chances", "drafts", "pending", "regrets")

    def __init__(self, drafts: list[DraftTrace]) -> None:
        self.drafts = drafts
        self.regrets = [0.0] * len(drafts)
        self.chances = [1.0 / len(drafts)] * len(drafts)
        self.pending: list[tuple[int, list[float]]] = []
        """Where blocks began whose outcome is not known yet, and the chances that were played there."""


class HedgeSpec:
    """Full information over drafters, a draw by NormalHedge."""

    name = "hedgespec"

    def __init__(self, lengths: Mapping[str, int]) -> None:
        """`lengths`: the block length of each drafter."""
        self._lengths = lengths
        self._longest = max(lengths.values())
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
        one.notes = _Query([one.request.drafts[drafter] for drafter in self._drafters])

    def plan(self, running: list[Running]) -> None:
        """Each sequence's own draw."""
        for one in running:
            query: _Query = one.notes
            query.pending.append((one.position, query.chances))
            one.drafter = self._random.choices(self._drafters, query.chances)[0]
            one.requested = self._lengths[one.drafter]

    def verify(self, running: list[Running]) -> None:
        """All that was drafted."""

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """All outcomes that the text has reached."""
        for one in running:
            query: _Query = one.notes
            waiting = []
            learned = False
            for start, chances in query.pending:
                outcome = self._outcome(query.drafts, start, one.position)
                if outcome is None:
                    waiting.append((start, chances))
                    continue
                learned = True
                losses = [1.0 - (accepted + 1) / (self._longest + 1) for accepted in outcome]
                mean = sum([chance * loss for chance, loss in zip(chances, losses, strict=True)])
                for drafter, loss in enumerate(losses):
                    query.regrets[drafter] += mean - loss
            query.pending = waiting
            if learned:
                query.chances = normal_hedge(query.regrets)

    def _outcome(self, drafts: list[DraftTrace], start: int, position: int) -> list[int] | None:
        """What each drafter's block at `start` would have had accepted; None while one's is not known at `position`."""
        known = position - start
        outcome = []
        for drafter, draft in zip(self._drafters, drafts, strict=True):
            length = self._lengths[drafter]
            accepted = min(draft.kept[start], length)
            # The text tells of a rejection at its position, and of a block that ends by itself at its last draft.
            if accepted >= known and accepted < min(draft.offered[start], length):
                return None
            if accepted > known:
                return None
            outcome.append(accepted)
        return outcome

    def finish(self, one: Running) -> None:
        """Nothing outlives a query."""

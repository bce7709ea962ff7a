"""BanditSpec (arXiv 2505.15141, ICML 2025), as published and as coded.

`UcbPaper` (UCBSpec): for each prompt every arm once, then the arm with the largest mean of Y plus `radius`, where Y is
what a block emitted, 1 to L + 1. `Exp3` (EXP3Spec): arms are drawn with probabilities in proportion to ``exp(-eta_t *
sum of losses)``, ``eta_t = sqrt(log K / (t K))``, a loss being ``(L + 1 - Y) / (L p)``. Both with drafters as arms, all
of one block length, anew for each prompt, at batch 1; no arm is plain.

`UcbRepo`: sail-sg/BanditSpec ``generate_utils.py``, which differs: its arms are the block lengths 1 to 4 of one
drafter, its reward is a step's tokens per second over the batch, and its bonus ``sqrt(6 log(t) / sum of all pulls)`` is
the same for all arms, so after two rounds of each arm it takes the largest mean. (For whole calls of ``generate``; the
drafters and EXP3 of the paper are not in it.)

What the simulator forces: with many sequences, every one has a bandit of its own, and they share cycles. Each drafter
has its own best fixed block length in hindsight in the first two, and L is the largest of them: generous, since blocks
then cost about the same, which their reward does not see. A call of ``generate`` has no counterpart where requests come
and go, so `UcbRepo` is never reset: generous, since 8 steps of each call are its warm-up. It gets the best single
drafter in hindsight. The confidence of `radius` is 0.05 (the paper gives none).
"""

import random
from collections.abc import Mapping
from math import exp, log, sqrt
from typing import Any

from tuner.replay.baselines.batchwise import Batchwise
from tuner.replay.player import Running, World

CONFIDENCE = 0.05
REPO_LENGTHS = 4
REPO_ROUNDS = 2


def radius(length: int, arms: int, pulls: int, rounds: int, confidence: float = CONFIDENCE) -> float:
    """Tokens by which the mean of an arm may be off after so many `pulls` in so many `rounds`: the paper's ``cr``."""
    inner = 1.0 + 2.0 * log(arms * rounds**2 * sqrt(1.0 + pulls) / confidence)
    return length / 2.0 * sqrt((1.0 + pulls) / pulls**2 * inner)


class _Arms:
    """One prompt's bandit."""

    __slots__ = ("arm", "losses", "probabilities", "pulls", "rounds", "totals")

    def __init__(self, arms: int) -> None:
        self.arm = 0
        self.rounds = 0
        self.pulls = [0] * arms
        self.totals = [0.0] * arms
        self.losses = [0.0] * arms
        self.probabilities = [1.0 / arms] * arms


class UcbPaper:
    """UCBSpec."""

    name = "ucbspec-paper"

    def __init__(self, lengths: Mapping[str, int]) -> None:
        """`lengths`: the block length of each drafter."""
        self._lengths = lengths
        self._longest = max(lengths.values())
        self._drafters: tuple[str, ...] = ()
        self._radius: dict[tuple[int, int], float] = {}

    def start(self, world: World, memory: Any) -> None:
        """Nothing outlives a prompt."""
        self._drafters = world.drafters

    def save(self) -> Any:
        """Nothing outlives a prompt."""
        return None

    def admit(self, one: Running, load: int) -> None:
        """A bandit for this prompt."""
        one.notes = _Arms(len(self._drafters))

    def plan(self, running: list[Running]) -> None:
        """Each sequence's own arm."""
        for one in running:
            arms: _Arms = one.notes
            arms.arm = self.choose(arms)
            one.drafter = self._drafters[arms.arm]
            one.requested = self._lengths[one.drafter]

    def choose(self, arms: _Arms) -> int:
        """The arm of the next round."""
        arms.rounds += 1
        if arms.rounds <= len(arms.pulls):
            return arms.rounds - 1
        best, best_score = 0, 0.0
        for arm, pulls in enumerate(arms.pulls):
            known = self._radius.get((pulls, arms.rounds))
            if known is None:
                known = radius(self._longest, len(arms.pulls), pulls, arms.rounds)
                self._radius[pulls, arms.rounds] = known
            score = arms.totals[arm] / pulls + known
            if score > best_score:
                best, best_score = arm, score
        return best

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """Y of the arm that was played."""
        for one in running:
            arms: _Arms = one.notes
            arms.pulls[arms.arm] += 1
            arms.totals[arms.arm] += one.accepted + 1

    def finish(self, one: Running) -> None:
        """Nothing outlives a prompt."""


class Exp3(UcbPaper):
    """EXP3Spec."""

    name = "exp3spec"

    def start(self, world: World, memory: Any) -> None:
        """Chance comes from the run's seed."""
        super().start(world, memory)
        self._random = random.Random(world.seed)

    def choose(self, arms: _Arms) -> int:
        """A draw."""
        arms.rounds += 1
        count = len(arms.losses)
        rate = sqrt(log(count) / (arms.rounds * count))
        least = min(arms.losses)
        weights = [exp(-rate * (loss - least)) for loss in arms.losses]
        total = sum(weights)
        arms.probabilities = [weight / total for weight in weights]
        drawn = self._random.random() * total
        for arm, weight in enumerate(weights):
            drawn -= weight
            if drawn < 0.0:
                return arm
        return count - 1

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """The loss of the arm that was played, over its chance."""
        for one in running:
            arms: _Arms = one.notes
            arms.losses[arms.arm] += (self._longest - one.accepted) / (self._longest * arms.probabilities[arms.arm])


class UcbRepo(Batchwise):
    """``generate_utils.py`` of the authors."""

    name = "ucbspec-repo"

    def begin(self, world: World) -> None:
        """No arm has been played."""
        self._round = 0
        self._means = [0.0] * REPO_LENGTHS
        self._pulls = [0] * REPO_LENGTHS
        self._arm = 0

    def length(self, load: int) -> int:
        """In turn at first, then the largest mean: the bonus is the same for all."""
        self._round += 1
        if self._round < REPO_LENGTHS * REPO_ROUNDS:
            self._arm = (self._round - 1) % REPO_LENGTHS
        else:
            self._arm = self._means.index(max(self._means))
        return self._arm + 1

    def learn(self, running: list[Running], seconds: float) -> None:
        """The mean of a step's tokens per second."""
        reward = sum([one.emitted for one in running]) / seconds
        self._pulls[self._arm] += 1
        self._means[self._arm] += (reward - self._means[self._arm]) / self._pulls[self._arm]

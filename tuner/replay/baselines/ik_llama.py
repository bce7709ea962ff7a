"""ik_llama.cpp's ``--spec-autotune``: ikawrakow/ik_llama.cpp ``common/spec-tuner.cpp`` (PR 1595).

Published: an epsilon-greedy bandit for the whole server over ``n_max`` 1..16, epsilon 0.15, drawn for every draft call;
the reward is the step's tokens per second, its mean by arm without forgetting; it begins with the first arm. Where 30
calls in a row are 30 % under an exponential mean (0.05 of the new one) the task is thought to have changed: all scores
are forgotten, the configured length is played, and 50 calls pass before it looks for a change again. Later versions add
an arm without drafts for one kind of drafter; ``p_min`` and ``n_min`` are coordinates of their own.

What the simulator forces: a call is a cycle, its reward all tokens of the cycle. The arm without drafts is there,
generous; the other two coordinates are not, since our drafters stop by themselves. The configured length is the best
fixed one in hindsight, as is the drafter: generous.
"""

import random

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.baselines.batchwise import Batchwise
from tuner.replay.player import Running, World

EPSILON = 0.15
EMA_WEIGHT = 0.05
DROP = 0.30
RESET_AFTER = 30
COOL_DOWN = 50
FIRST_LENGTH = 1


class EpsilonGreedy(Batchwise):
    """`spec_tuner` with its coordinate ``n_max``."""

    name = "ik-llama"

    def begin(self, world: World) -> None:
        """No scores."""
        self._random = random.Random(world.seed)
        self._forget(FIRST_LENGTH)
        self._cool_down = 0

    def _forget(self, length: int) -> None:
        self._means = [0.0] * (MAX_BLOCK_LENGTH + 1)
        self._pulls = [0] * (MAX_BLOCK_LENGTH + 1)
        self.best = self.played = length
        self._recent = 0.0
        self._low = 0

    def length(self, load: int) -> int:
        """A draw for every call."""
        explores = self._random.random() < EPSILON
        self.played = self._random.randrange(MAX_BLOCK_LENGTH + 1) if explores else self.best
        return self.played

    def learn(self, running: list[Running], seconds: float) -> None:
        """The mean of the arm, and whether the task has changed."""
        reward = sum([one.emitted for one in running]) / seconds
        means, pulls, played = self._means, self._pulls, self.played
        pulls[played] += 1
        means[played] += (reward - means[played]) / pulls[played]
        # No reward is 0, so an arm that was never played is not the best.
        self.best = means.index(max(means))
        if self._cool_down > 0:
            self._cool_down -= 1
        elif self._recent > 0.0:
            if reward < self._recent * (1.0 - DROP):
                self._low += 1
                if self._low >= RESET_AFTER:
                    self._forget(self.single.block_length)
                    self._cool_down = COOL_DOWN
                    return
            else:
                self._low = 0
        self._recent = reward if self._recent <= 0.0 else self._recent + EMA_WEIGHT * (reward - self._recent)

"""Nightjar (arXiv 2512.22420): ADA-BINGREEDY with the batch size as context.

Published: one block length 0..G for the whole batch. For each batch size, the mean g of a step's tokens per second of
each length; a decision minimises ``1 / g + [the last length was 0 and this one is not] * C_switch / length``. Steps at
a batch size come in blocks of 2^(j-1), these in bins of about the root of that, in which the length stays; in bin b of
a block it is drawn at random with probability 1 / b (1 / sqrt(b) in other accounts of it), else the best is taken.

What the simulator forces: G is 8 (not given). C_switch is the cost of building the drafter's KV cache again, which
drafters that stay loaded do not have here: 0. The hand-set weights for batch sizes under 60 and over 80 that are in its
code do not apply to ours. Of 1 / b and 1 / sqrt(b) the one that explores less is taken, and means outlive their block:
both generous. It gets the best single drafter in hindsight.
"""

import random
from math import isqrt

from tuner.replay.baselines.batchwise import Batchwise
from tuner.replay.player import Running, World

LARGEST = 8


class _Context:
    """One batch size."""

    def __init__(self) -> None:
        self.pulls = [0] * (LARGEST + 1)
        self.means = [0.0] * (LARGEST + 1)
        self.block = 0
        self.left_in_block = 0
        self.bin = 0
        self.left_in_bin = 0
        self.length = 0


class Nightjar(Batchwise):
    """ADA-BINGREEDY."""

    name = "nightjar"

    def begin(self, world: World) -> None:
        """No batch size has been seen."""
        self._random = random.Random(world.seed)
        self._contexts: dict[int, _Context] = {}

    def length(self, load: int) -> int:
        """The length of the bin."""
        context = self._contexts.get(load)
        if context is None:
            context = self._contexts[load] = _Context()
        self._context = context
        if context.left_in_block == 0:
            context.block += 1
            context.left_in_block = 2 ** (context.block - 1)
            context.bin = context.left_in_bin = 0
        if context.left_in_bin == 0:
            context.bin += 1
            context.left_in_bin = isqrt(2 ** (context.block - 1))
            if self._random.random() < 1.0 / context.bin:
                context.length = self._random.randrange(LARGEST + 1)
            else:
                context.length = max(range(LARGEST + 1), key=context.means.__getitem__)
        context.left_in_block -= 1
        context.left_in_bin -= 1
        return context.length

    def learn(self, running: list[Running], seconds: float) -> None:
        """The mean of a step's tokens per second."""
        context = self._context
        reward = sum([one.emitted for one in running]) / seconds
        context.pulls[context.length] += 1
        context.means[context.length] += (reward - context.means[context.length]) / context.pulls[context.length]

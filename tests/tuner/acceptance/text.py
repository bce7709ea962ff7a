"""Requests whose text is known as a 0/1 sequence: where a drafter would be right, and the cycles that serve them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from policies.stats import BlockEnd, CycleStats, SequenceStats
from policies.types import Context
from tests.tuner.simulated_engine import cycle

CHAT = Context("m", "chat", "en")


@dataclass
class Text:
    """One request. Every block asks for one of `lengths` drafts; a block may be silent, short, or verified in part."""

    key: int
    seed: int
    tokens: int
    lengths: Sequence[int] = (2, 4, 8)
    silent: float = 0.2
    short: float = 0.2
    right: list[bool] | None = None
    context: Context = CHAT
    drafter: str = "ngram"
    position: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        if self.right is None:
            ease = self.chance.uniform(0.3, 0.9)
            self.right = [self.chance.random() < ease for _ in range(self.tokens)]

    def step(self) -> SequenceStats:
        """Serve one block."""
        assert self.right is not None
        left = self.tokens - self.position
        requested = min(self.chance.choice(self.lengths), left - 1)
        proposed = requested
        if self.chance.random() < self.silent:
            proposed = 0
        elif self.chance.random() < self.short:
            proposed = self.chance.randint(min(1, requested), requested)
        accepted = 0
        while accepted < proposed and self.right[self.position + accepted]:
            accepted += 1
        end = BlockEnd.PLAIN if not proposed else BlockEnd.FULL if accepted == proposed else BlockEnd.REJECTED
        self.position += accepted + 1
        return SequenceStats(
            request_key=self.key,
            context=self.context,
            drafter=self.drafter,
            requested=requested,
            proposed=proposed,
            verified=proposed,
            accepted=accepted,
            emitted=accepted + 1,
            confidence=1 + (self.seed + self.position) % 3 if proposed else 0,
            end=end,
        )


def cycles_of(texts: Sequence[Text]) -> list[CycleStats]:
    """All of them served together, in numbered cycles."""
    cycles: list[CycleStats] = []
    running = list(texts)
    while running:
        sequences = [text.step() for text in running]
        stats = cycle(load=len(running), tokens=1, kv_tokens=1, seconds=0.01, sequences=sequences)
        cycles.append(replace(stats, cycle=len(cycles)))
        running = [text for text in running if text.position < text.tokens]
    return cycles

"""Requests whose text is known as a 0/1 sequence: where a drafter would be right, and the cycles that serve them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.stats import CycleStats, SequenceStats, ShadowStats
from policies.types import Context
from tests.tuner.simulated_engine import cycle as full_cycle
from tests.tuner.simulated_engine import sequence

CHAT = Context("m", "chat", "en")


def cycle(number: int, sequences: Sequence[SequenceStats], shadows: Sequence[ShadowStats] = ()) -> CycleStats:
    """A cycle of which only what was kept matters."""
    load = len(sequences)
    return full_cycle(
        number=number, load=load, tokens=load, kv_tokens=0, seconds=0.01, sequences=sequences, shadows=shadows
    )


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
        self.position += accepted + 1
        return sequence(
            self.context,
            key=self.key,
            requested=requested,
            proposed=proposed,
            verified=proposed,
            accepted=accepted,
            confidence=1 + (self.seed + self.position) % 3 if proposed else 0,
            drafter=self.drafter,
        )


def bursts(chance: random.Random) -> list[bool]:
    """Two states that are kept with 0.9, in which drafts are right with 0.95 and 0.3."""
    good = chance.random() < 0.5
    right = []
    for _ in range(216):
        if chance.random() >= 0.9:
            good = not good
        right.append(chance.random() < (0.95 if good else 0.3))
    return right


def cycles_of(texts: Sequence[Text], load: int = 8) -> list[CycleStats]:
    """All of them served in numbered cycles, `load` at a time."""
    cycles: list[CycleStats] = []
    waiting = list(texts)
    running: list[Text] = []
    while waiting or running:
        while waiting and len(running) < load:
            running.append(waiting.pop(0))
        cycles.append(cycle(len(cycles), [text.step() for text in running]))
        running = [text for text in running if text.position < text.tokens]
    return cycles

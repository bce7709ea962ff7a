"""A player that decides by chance, and keeps what it decided and what came of it."""

import random
from dataclasses import dataclass, field
from typing import Any

from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.replay.player import Running, World


@dataclass
class Row:
    """One sequence in one cycle."""

    request: int
    drafter: str
    requested: int
    proposed: int
    verified: int
    accepted: int
    emitted: int


@dataclass
class Restless:
    """Any drafter, any block length, any part of what was proposed, for each sequence in each cycle."""

    seed: int
    name: str = "restless"
    cycles: list[list[Row]] = field(default_factory=list)
    told_seconds: list[float] = field(default_factory=list)
    admitted: list[tuple[int, int, int]] = field(default_factory=list)
    """(cycle, request, load)"""
    finished: list[int] = field(default_factory=list)
    memories: list[Any] = field(default_factory=list)

    def start(self, world: World, memory: Any) -> None:
        self.world = world
        self.memories.append(memory)
        self.chance = random.Random(self.seed)

    def save(self) -> Any:
        return len(self.cycles)

    def admit(self, one: Running, load: int) -> None:
        self.admitted.append((len(self.cycles), one.index, load))

    def plan(self, running: list[Running]) -> None:
        for one in running:
            one.drafter = self.chance.choice((*self.world.drafters, PLAIN))
            one.requested = self.chance.randint(0, MAX_BLOCK_LENGTH + 2)

    def verify(self, running: list[Running]) -> None:
        for one in running:
            one.verified = self.chance.randint(0, one.proposed)

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        self.told_seconds.append(seconds)
        self.cycles.append(
            [
                Row(
                    one.index,
                    one.drafter,
                    one.requested,
                    one.proposed,
                    one.verified,
                    one.accepted,
                    one.emitted,
                )
                for one in running
            ]
        )

    def finish(self, one: Running) -> None:
        self.finished.append(one.index)

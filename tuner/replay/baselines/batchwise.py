"""What most published controllers have in common: one drafter, and one block length for all that runs together."""

from abc import ABC, abstractmethod
from typing import Any

from policies.cycle_policy import DraftCost
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.replay.hindsight import Single
from tuner.replay.player import Running, World
from tuner.replay.trace import Costs


class Batchwise(ABC):
    """`tuner.replay.player.Player` with one drafter; a subclass says how far it goes in each cycle."""

    name: str

    def __init__(self, single: Single) -> None:
        self.single = single

    @abstractmethod
    def begin(self, world: World) -> None:
        """Forget everything: the engine starts, or starts again."""

    @abstractmethod
    def length(self, load: int) -> int:
        """The block length of this cycle, with `load` sequences."""

    @abstractmethod
    def learn(self, running: list[Running], seconds: float) -> None:
        """From what the cycle brought, in `seconds`."""

    def start(self, world: World, memory: Any) -> None:
        """None of them keeps anything over a restart."""
        self.begin(world)

    def save(self) -> Any:
        """None of them keeps anything over a restart."""
        return None

    def admit(self, one: Running, load: int) -> None:  # noqa: B027 - nothing to do
        """A request is not told apart from others."""

    def plan(self, running: list[Running]) -> None:
        """The same for all."""
        length = self.length(len(running))
        drafter = self.single.drafter if length else PLAIN
        for one in running:
            one.drafter = drafter
            one.requested = length

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """What the cycle brought."""
        self.learn(running, seconds)

    def finish(self, one: Running) -> None:  # noqa: B027 - nothing to do
        """A request is not told apart from others."""


def profiled(costs: Costs, single: Single, slots: int) -> list[list[float]]:
    """Seconds of a cycle by load (1..slots at 0..slots - 1) and block length (0..16), as a profile at start would
    measure it on this very traffic: with the trace's mean context, and with as many drafts as are proposed in the
    mean. Published profiles take synthetic prompts."""
    draft: DraftCost = costs.drafters[single.drafter]
    table = []
    for load in range(1, slots + 1):
        row = []
        for length in range(MAX_BLOCK_LENGTH + 1):
            drafts = load * single.proposed[length]
            tokens = load + drafts
            below = int(tokens)
            kv_tokens = round(load * single.kv_tokens)
            lower = costs.target.seconds(below, load, kv_tokens)
            seconds = lower + (costs.target.seconds(below + 1, load, kv_tokens) - lower) * (tokens - below)
            if length:
                # Among many sequences one proposes all that it may.
                seconds += draft.seconds(load, length if load > 1 else single.proposed[length], drafts)
            row.append(seconds)
        table.append(row)
    return table

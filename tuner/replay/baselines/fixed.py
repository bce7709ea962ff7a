"""One drafter with one block length for everybody, whatever comes: the launch flags of an engine."""

from typing import Any

from policies.types import PLAIN
from tuner.replay.player import Running, World


class Fixed:
    """Plays one arm; plain serving with a block length of 0."""

    def __init__(self, drafter: str, block_length: int) -> None:
        self.name = f"{drafter}:{block_length}" if block_length else "plain"
        self._drafter = drafter if block_length else PLAIN
        self._block_length = block_length

    def start(self, world: World, memory: Any) -> None:
        """It learns nothing."""

    def save(self) -> Any:
        return None

    def admit(self, one: Running, load: int) -> None:
        one.drafter = self._drafter

    def plan(self, running: list[Running]) -> None:
        for one in running:
            one.requested = self._block_length

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """It learns nothing."""

    def finish(self, one: Running) -> None:
        """It keeps nothing."""

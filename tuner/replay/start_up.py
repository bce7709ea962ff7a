"""A fixed arm that starts up as an engine's does: a learned drafter reads a new text before it drafts, some tokens a
cycle."""

from typing import Any

from policies.types import PLAIN
from tuner.replay.player import Running, World

READ_TOKENS = 256
"""Tokens of text that a learned drafter reads in one cycle, over all sequences (`engine.drafter_plan`)."""


class StartingArm:
    """`tuner.replay.player.Player`: one drafter and block length for every request."""

    def __init__(self, drafter: str, block_length: int, *, reads: bool) -> None:
        """`reads`: the drafter has layers of its own, and so to read the text."""
        self.name = drafter if drafter == PLAIN else f"{drafter}:{block_length}"
        self._drafter = drafter
        self._block_length = block_length
        self._reads = reads
        self._unread: dict[int, int] = {}
        self.read_tokens = 0
        """Of all texts, what was read before drafting began."""

    def start(self, world: World, memory: Any) -> None:
        self._unread.clear()

    def save(self) -> Any:
        return None

    def admit(self, one: Running, load: int) -> None:
        one.drafter = self._drafter
        if self._reads:
            self._unread[one.index] = one.kv_tokens

    def plan(self, running: list[Running]) -> None:
        budget = READ_TOKENS
        for one in running:
            one.requested = self._block_length
            unread = self._unread.get(one.index, 0)
            # One that has a single token left is asked for nothing, and nothing is read for it.
            if unread and one.output_tokens - one.position > 1:
                read = min(unread, budget)
                budget -= read
                self.read_tokens += read
                if read < unread:
                    # The text grows by the token of this cycle, which is plain.
                    self._unread[one.index] = unread - read + 1
                    one.requested = 0
                else:
                    del self._unread[one.index]

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """Nothing is learned."""

    def finish(self, one: Running) -> None:
        self._unread.pop(one.index, None)

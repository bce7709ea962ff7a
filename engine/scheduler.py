"""Who runs: first come, first served, as soon as a slot and the blocks are there."""

from collections import deque

from engine.blocks import Blocks
from engine.request import RunningSequence


class Scheduler:
    """Waiting and running sequences. A sequence is `prefilling` until its whole prompt is in the cache."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.waiting: deque[RunningSequence] = deque()
        self.prefilling: list[RunningSequence] = []
        self.decoding: list[RunningSequence] = []
        self._by_key: dict[int, RunningSequence] = {}

    def find(self, request_key: int) -> RunningSequence | None:
        return self._by_key.get(request_key)

    def add(self, sequence: RunningSequence) -> None:
        self._by_key[sequence.key] = sequence
        self.waiting.append(sequence)

    def admit(self, now: float) -> list[RunningSequence]:
        """Move sequences from waiting to prefilling while there is room; returns those that were moved."""
        admitted: list[RunningSequence] = []
        while self.waiting and self.blocks.can_admit(self.waiting[0].context_tokens):
            sequence = self.waiting.popleft()
            sequence.slot = self.blocks.admit(sequence.key, sequence.context_tokens)
            sequence.admitted_at = now
            self.prefilling.append(sequence)
            admitted.append(sequence)
        return admitted

    def start_decoding(self, sequence: RunningSequence) -> None:
        """The prompt is in the cache and the first token is chosen."""
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)
        self.decoding.sort(key=lambda other: other.slot)

    def remove(self, sequence: RunningSequence) -> None:
        """Forget a sequence, wherever it is, and free what it held."""
        del self._by_key[sequence.key]
        if sequence.slot < 0:
            self.waiting.remove(sequence)
            return
        (self.decoding if sequence in self.decoding else self.prefilling).remove(sequence)
        self.blocks.release(sequence.key)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.prefilling or self.decoding)

"""Who runs, in order of arrival, and with which blocks.

Admission reserves what a sequence needs at once: its text, its block length and one. Afterwards its table grows block
by block. When blocks run out, first the block lengths shrink to what is free; then the latest sequence gives all its
blocks back and waits at the front (preemption). Its text so far is kept and computed again when it returns, so that
what it emits does not change. The first of those that run is never preempted while another runs, and alone each of
them fits: somebody always gets on.
"""

from collections import deque
from collections.abc import Sequence

from engine.blocks import BLOCK_TOKENS, Blocks, blocks_for
from engine.request import RunningSequence


class Scheduler:
    """Waiting and running sequences. A sequence is `prefilling` until all its text but the last token is computed.

    Whoever decodes arrived before whoever is prefilled, and they before whoever waits; each of the three is in order of
    arrival.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.waiting: deque[RunningSequence] = deque()
        self.prefilling: list[RunningSequence] = []
        self.decoding: list[RunningSequence] = []
        self.preemptions = 0
        """Since the start."""
        self._by_key: dict[int, RunningSequence] = {}

    def find(self, request_key: int) -> RunningSequence | None:
        return self._by_key.get(request_key)

    @property
    def sequences(self) -> tuple[RunningSequence, ...]:
        """Waiting and running, in order of arrival."""
        return tuple(self._by_key.values())

    def add(self, sequence: RunningSequence) -> None:
        self._by_key[sequence.key] = sequence
        self.waiting.append(sequence)

    def admit(self, now: float) -> list[RunningSequence]:
        """Move sequences from waiting to prefilling while there is room; returns those that were moved."""
        admitted: list[RunningSequence] = []
        while self.waiting:
            sequence = self.waiting[0]
            # A block for each of the others that can still grow: nobody is admitted to be preempted at once.
            spare = sum(
                blocks_for(other.context_tokens) > len(other.blocks) for other in (*self.prefilling, *self.decoding)
            )
            reserved = min(len(sequence.tokens) + sequence.block_length + 1, sequence.context_tokens)
            table = self.blocks.admit(sequence.key, sequence.tokens, reserved, spare)
            if table is None:
                break
            self.waiting.popleft()
            sequence.blocks = table
            if sequence.admitted_at is None:
                sequence.admitted_at = now
            self.prefilling.append(sequence)
            admitted.append(sequence)
        return admitted

    def start_decoding(self, sequence: RunningSequence) -> None:
        """All of its text but the last token is computed."""
        assert sequence is self.prefilling[0], "they are prefilled in order"
        self.decoding.append(self.prefilling.pop(0))

    def make_room(self, lengths: Sequence[int]) -> tuple[list[int], list[RunningSequence]]:
        """Grow the tables of `decoding` for a cycle with block lengths of at most `lengths`.

        Returns the block length that each of those left in `decoding` may have, and the sequences that had to be
        preempted.
        """
        covered = [
            self.blocks.cover(sequence.key, positions)
            if (positions := len(sequence.tokens) + length) > len(sequence.blocks) * BLOCK_TOKENS
            else True
            for sequence, length in zip(self.decoding, lengths, strict=True)
        ]
        if all(covered):
            return list(lengths), []
        wished = {sequence.key: length for sequence, length in zip(self.decoding, lengths, strict=True)}
        for sequence in self.decoding:
            self.blocks.trim(sequence.key, len(sequence.tokens))
        preempted: list[RunningSequence] = []
        for sequence in tuple(self.decoding):
            while sequence.key in wished and not self.blocks.cover(sequence.key, len(sequence.tokens)):
                latest = (self.prefilling or self.decoding)[-1]
                wished.pop(latest.key, None)
                self._preempt(latest)
                preempted.append(latest)
        granted = []
        for sequence in self.decoding:
            held = len(sequence.tokens)
            room = (len(sequence.blocks) + self.blocks.free_blocks) * BLOCK_TOKENS - held
            granted.append(min(wished[sequence.key], room))
            self.blocks.cover(sequence.key, held + granted[-1])
        return granted, preempted

    def stretch(self, sequence: RunningSequence, positions: int) -> None:
        """Cover so many positions behind a decoding sequence's text, if blocks are free; nobody gives any up for it."""
        wanted = min(len(sequence.tokens) + positions, sequence.context_tokens)
        if wanted > len(sequence.blocks) * BLOCK_TOKENS:
            self.blocks.cover(sequence.key, wanted)

    def remove(self, sequence: RunningSequence) -> None:
        """Forget a sequence, wherever it is, and free what it held."""
        del self._by_key[sequence.key]
        if not sequence.blocks:
            self.waiting.remove(sequence)
            return
        self._take_off(sequence)

    def discard(self, sequence: RunningSequence) -> None:
        """Forget a running sequence that failed, and what is in its blocks: nobody may reuse it."""
        del self._by_key[sequence.key]
        (self.decoding if sequence in self.decoding else self.prefilling).remove(sequence)
        self.blocks.discard(sequence.key)
        sequence.blocks = []

    def _preempt(self, sequence: RunningSequence) -> None:
        self._take_off(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _take_off(self, sequence: RunningSequence) -> None:
        (self.decoding if sequence in self.decoding else self.prefilling).remove(sequence)
        self.blocks.release(sequence.key)
        sequence.blocks = []
        sequence.prefilled = 0

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.prefilling or self.decoding)

    def check(self) -> None:
        """Assert that sequences and blocks agree, and that nothing was lost."""
        self.blocks.check({sequence.key: sequence.blocks for sequence in (*self.prefilling, *self.decoding)})
        assert all(not sequence.blocks for sequence in self.waiting)

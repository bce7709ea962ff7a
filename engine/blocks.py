"""Bookkeeping of slots and KV blocks: numbers only, no tensors.

A slot is a sequence's lane in the KV cache. Blocks are the unit in which its memory is promised: admission reserves
everything that a sequence can come to need, so that none can run out of memory half-way.
"""

import heapq

BLOCK_TOKENS = 16
"""Tokens of context in one block."""


class Blocks:
    """Slots are handed out lowest first, so that the running sequences stay close together in the cache."""

    def __init__(self, slots: int, blocks: int) -> None:
        self.slots = slots
        self.blocks = blocks
        self._free_slots = list(range(slots))
        self._held: dict[int, tuple[int, int]] = {}
        self._free_blocks = blocks

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def free_blocks(self) -> int:
        return self._free_blocks

    def fits_ever(self, tokens: int) -> bool:
        """Whether `tokens` of context could be admitted into an empty cache."""
        return blocks_for(tokens) <= self.blocks

    def can_admit(self, tokens: int) -> bool:
        """Whether a sequence that may grow to `tokens` can be admitted now."""
        return bool(self._free_slots) and blocks_for(tokens) <= self._free_blocks

    def admit(self, request_key: int, tokens: int) -> int:
        """Reserve a slot and blocks for `tokens`; the caller has asked `can_admit`. Returns the slot."""
        assert request_key not in self._held, request_key
        assert self.can_admit(tokens), (tokens, self._free_blocks, self.free_slots)
        slot = heapq.heappop(self._free_slots)
        needed = blocks_for(tokens)
        self._free_blocks -= needed
        self._held[request_key] = (slot, needed)
        return slot

    def release(self, request_key: int) -> None:
        """Give back what `admit` reserved."""
        slot, held = self._held.pop(request_key)
        heapq.heappush(self._free_slots, slot)
        self._free_blocks += held

    def check(self) -> None:
        """Assert that nothing was lost or handed out twice; run when the engine is idle."""
        held_slots = [slot for slot, _ in self._held.values()]
        assert sorted(held_slots + self._free_slots) == list(range(self.slots)), (held_slots, self._free_slots)
        assert self._free_blocks + sum(held for _, held in self._held.values()) == self.blocks


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` of context."""
    return -(-tokens // BLOCK_TOKENS)

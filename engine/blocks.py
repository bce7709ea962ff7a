"""Bookkeeping of the paged KV cache: numbers only, no tensors.

The cache is an array of blocks of `BLOCK_TOKENS` positions. A running sequence has a block table: its k-th entry is the
block that holds positions k * BLOCK_TOKENS and up. Several tables may name the same block: each counts as one
reference.

A block whose positions are all filled for good is known by its tokens and by the block before it, so by the whole text
up to its end. Another sequence that begins with the same text takes it over instead of computing it. When the last
reference goes, such a block is kept until its room is needed; the one that was released first goes first. Nobody
writes into a block that is known: sequences write behind what they have filled.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 16
"""Tokens of context in one block."""

_FIRST = 0
"""What stands before the first block of a text."""


@dataclass(slots=True)
class _Table:
    """The blocks of one sequence."""

    blocks: list[int] = field(default_factory=list)
    known: int = 0
    """Leading blocks that are filled for good."""
    text: int = _FIRST
    """The name of the text that they hold."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a known block holds."""

    key: tuple[int, tuple[int, ...]]
    """The name of the text before it, and its own tokens."""
    text: int
    """The name of the text up to its end. Names are never used twice: one whose block is gone finds nothing."""


class Blocks:
    """Who holds which blocks, for at most `slots` sequences together."""

    def __init__(self, slots: int, blocks: int, *, reuse: bool = True) -> None:
        """Without `reuse` no sequence takes over what another one has computed."""
        self._reuse = reuse
        self.slots = slots
        self.blocks = blocks
        self.reused_tokens = 0
        """Positions taken over instead of computed, since the start."""
        self._tables: dict[int, _Table] = {}
        self._references = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Known blocks without a reference, the first to go first."""
        self._known: dict[int, _Known] = {}
        self._by_key: dict[tuple[int, tuple[int, ...]], int] = {}
        self._last_text = _FIRST

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._tables)

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out, those kept for reuse included."""
        return len(self._free) + len(self._kept)

    @property
    def kept_blocks(self) -> int:
        """Blocks that nobody holds, kept for a sequence that begins with their text."""
        return len(self._kept)

    def fits_ever(self, tokens: int) -> bool:
        """Whether `tokens` of context could be held by an empty cache."""
        return blocks_for(tokens) <= self.blocks

    def admit(self, request_key: int, tokens: Sequence[int], reserved: int, spare: int = 0) -> list[int] | None:
        """Take blocks for `reserved` positions of a sequence whose text so far is `tokens`.

        Leading blocks that are known are shared; the last token is always left to be computed. None, and nothing
        changes, unless there is a slot and `spare` blocks would still be free. The list is the block table: it is
        changed by this object alone, until `release`.
        """
        assert request_key not in self._tables, request_key
        if not self.free_slots:
            return None
        text, found = self._find(_FIRST, tokens, 0)
        needed = blocks_for(reserved) - len(found)
        available = self.free_blocks - sum(self._references[block] == 0 for block in found)
        if needed + spare > available:
            return None
        for block in found:
            self._share(block)
        self.reused_tokens += len(found) * BLOCK_TOKENS
        table = _Table([*found, *(self._take() for _ in range(needed))], len(found), text)
        self._tables[request_key] = table
        return table.blocks

    def reuse(self, request_key: int, tokens: Sequence[int]) -> int:
        """Exchange blocks that a sequence has yet to fill for known ones with the text that it would put there.

        To be asked before a sequence computes anything behind its known blocks. Returns how many positions are
        filled.
        """
        table = self._tables[request_key]
        text, found = self._find(table.text, tokens, table.known)
        for place, block in enumerate(found, table.known):
            self._share(block)
            self._drop(table.blocks[place])
            table.blocks[place] = block
        table.text = text
        table.known += len(found)
        self.reused_tokens += len(found) * BLOCK_TOKENS
        return table.known * BLOCK_TOKENS

    def cover(self, request_key: int, positions: int) -> bool:
        """Grow a table until it covers `positions`. False, and nothing changes, when too few blocks are free."""
        blocks = self._tables[request_key].blocks
        missing = blocks_for(positions) - len(blocks)
        if missing > self.free_blocks:
            return False
        for _ in range(missing):
            blocks.append(self._take())
        return True

    def trim(self, request_key: int, positions: int) -> None:
        """Give back the blocks behind the first `positions`; nothing filled for good is among them."""
        table = self._tables[request_key]
        keep = blocks_for(positions)
        assert table.known <= keep, (table.known, keep)
        while len(table.blocks) > keep:
            self._drop(table.blocks.pop())

    def fill(self, request_key: int, tokens: Sequence[int], filled: int) -> None:
        """The first `filled` positions of a sequence hold the first `filled` of `tokens`, for good."""
        if not self._reuse:
            return
        table = self._tables[request_key]
        while (table.known + 1) * BLOCK_TOKENS <= filled:
            start = table.known * BLOCK_TOKENS
            key = (table.text, tuple(tokens[start : start + BLOCK_TOKENS]))
            holder = self._by_key.get(key)
            if holder is None:
                # Of two sequences that compute the same text at the same time, the first one's blocks are known.
                holder = table.blocks[table.known]
                self._last_text += 1
                self._known[holder] = _Known(key, self._last_text)
                self._by_key[key] = holder
            table.text = self._known[holder].text
            table.known += 1

    def release(self, request_key: int) -> None:
        """Give back all that a sequence holds."""
        # From the end, so that of one text the last block goes first: without those before it, it finds nobody.
        for block in reversed(self._tables.pop(request_key).blocks):
            self._drop(block)

    def discard(self, request_key: int) -> list[int]:
        """Give back all that a sequence holds, and forget what is in it; returns the blocks that nobody else holds."""
        table = self._tables[request_key].blocks
        alone = [block for block in table if self._references[block] == 1]
        for block in alone:
            known = self._known.pop(block, None)
            if known is not None:
                del self._by_key[known.key]
        self.release(request_key)
        return alone

    def check(self, tables: Mapping[int, Sequence[int]]) -> None:
        """Assert that nothing is lost, double or miscounted. `tables` are the sequences' own, by request key."""
        assert {key: list(blocks) for key, blocks in tables.items()} == {
            key: table.blocks for key, table in self._tables.items()
        }
        assert len(self._tables) <= self.slots
        held: Counter[int] = Counter()
        for table in self._tables.values():
            assert len(set(table.blocks)) == len(table.blocks), table.blocks
            assert table.known <= len(table.blocks)
            held.update(table.blocks)
        assert self._references == [held[block] for block in range(self.blocks)]
        assert sorted((*self._free, *self._kept, *held)) == list(range(self.blocks))
        assert set(self._kept) <= set(self._known)
        assert not set(self._free) & set(self._known)
        assert self._by_key == {known.key: block for block, known in self._known.items()}

    def _find(self, text: int, tokens: Sequence[int], place: int) -> tuple[int, list[int]]:
        """Known blocks that continue `text` with `tokens` from block `place` on, and the name of the text then."""
        found: list[int] = []
        for start in range(place * BLOCK_TOKENS, len(tokens) - BLOCK_TOKENS, BLOCK_TOKENS):
            block = self._by_key.get((text, tuple(tokens[start : start + BLOCK_TOKENS])))
            if block is None:
                break
            found.append(block)
            text = self._known[block].text
        return text, found

    def _share(self, block: int) -> None:
        if self._references[block] == 0:
            del self._kept[block]
        self._references[block] += 1

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            del self._by_key[self._known.pop(block).key]
        self._references[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block]:
            return
        if block in self._known:
            self._kept[block] = None
        else:
            self._free.append(block)


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` of context."""
    return -(-tokens // BLOCK_TOKENS)

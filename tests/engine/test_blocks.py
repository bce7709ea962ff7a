"""Blocks: nothing is lost, nothing is handed out twice, and what is reused holds what it should."""

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.blocks import BLOCK_TOKENS, Blocks, blocks_for

TEXT = tuple(range(100, 400))


def fill(blocks: Blocks, key: int, tokens: Sequence[int], reserved: int | None = None) -> list[int]:
    """Admit a sequence and compute its whole text."""
    table = blocks.admit(key, tokens, len(tokens) if reserved is None else reserved)
    assert table is not None
    blocks.fill(key, tokens, len(tokens))
    return table


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(1, 1), (BLOCK_TOKENS, 1), (BLOCK_TOKENS + 1, 2), (10 * BLOCK_TOKENS, 10)]
)
def test_blocks_cover_the_tokens_without_one_too_many(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_admission_needs_a_slot_and_the_blocks_reserved_and_those_to_spare() -> None:
    blocks = Blocks(slots=2, blocks=4)
    assert blocks.admit(1, TEXT[:10], 4 * BLOCK_TOKENS + 1) is None
    assert blocks.admit(1, TEXT[:10], 3 * BLOCK_TOKENS, 2) is None
    assert (blocks.free_slots, blocks.free_blocks) == (2, 4)
    first = blocks.admit(1, TEXT[:10], 3 * BLOCK_TOKENS, 1)
    assert first is not None
    assert len(first) == 3
    assert blocks.fits_ever(4 * BLOCK_TOKENS)
    assert not blocks.fits_ever(4 * BLOCK_TOKENS + 1)
    assert blocks.admit(2, TEXT[:10], 2 * BLOCK_TOKENS) is None
    assert blocks.admit(2, TEXT[:10], BLOCK_TOKENS) is not None
    blocks.release(1)
    assert blocks.admit(3, TEXT[:10], 1) is not None
    assert blocks.admit(4, TEXT[:10], 1) is None, "no slot is left"


def test_a_table_grows_block_by_block_or_not_at_all_and_gives_back_what_is_behind() -> None:
    blocks = Blocks(slots=2, blocks=4)
    table = blocks.admit(1, TEXT[:10], 10)
    assert table is not None
    assert blocks.cover(1, BLOCK_TOKENS)
    assert len(table) == 1
    assert blocks.cover(1, BLOCK_TOKENS + 1)
    assert len(table) == 2
    before = list(table)
    assert not blocks.cover(1, 4 * BLOCK_TOKENS + 1)
    assert table == before
    assert blocks.cover(1, 4 * BLOCK_TOKENS)
    assert blocks.free_blocks == 0
    blocks.trim(1, BLOCK_TOKENS + 1)
    assert table == before
    assert blocks.free_blocks == 2
    blocks.check({1: table})


def test_a_text_that_begins_alike_shares_the_blocks_that_are_whole() -> None:
    blocks = Blocks(slots=3, blocks=20)
    first = fill(blocks, 1, TEXT[:50])
    second = blocks.admit(2, (*TEXT[:40], *range(30)), 70)
    assert second is not None
    assert second[:2] == first[:2]
    assert not set(second[2:]) & set(first)
    assert blocks.reused_tokens == 2 * BLOCK_TOKENS
    assert blocks.free_blocks == 20 - 4 - 3
    blocks.check({1: first, 2: second})


def test_without_reuse_a_text_that_begins_alike_shares_nothing_and_nothing_is_kept() -> None:
    blocks = Blocks(slots=3, blocks=20, reuse=False)
    first = fill(blocks, 1, TEXT[:50])
    second = fill(blocks, 2, TEXT[:50])
    assert not set(first) & set(second)
    assert blocks.reuse(2, TEXT[:50]) == 0
    blocks.check({1: first, 2: second})
    blocks.release(1)
    assert (blocks.reused_tokens, blocks.kept_blocks, blocks.free_blocks) == (0, 0, 16)


def test_the_same_tokens_after_another_text_are_another_text() -> None:
    blocks = Blocks(slots=3, blocks=20)
    fill(blocks, 1, (*TEXT[:16], *TEXT[16:32], 0))
    other = blocks.admit(2, (*TEXT[100:116], *TEXT[16:32], 0), 33)
    assert other is not None
    assert blocks.reused_tokens == 0


@pytest.mark.parametrize(
    ("length", "reused"), [(1, 0), (16, 0), (17, 1), (32, 1), (33, 2), (48, 2), (49, 3), (64, 3), (65, 4)]
)
def test_the_last_token_is_always_left_to_be_computed(length: int, reused: int) -> None:
    blocks = Blocks(slots=2, blocks=20)
    fill(blocks, 1, TEXT[:100])
    table = blocks.admit(2, TEXT[:length], length)
    assert table is not None
    assert blocks.reused_tokens == reused * BLOCK_TOKENS
    assert len(table) == blocks_for(length)


def test_a_block_that_is_not_full_or_not_computed_is_nobody_elses() -> None:
    blocks = Blocks(slots=3, blocks=20)
    assert blocks.admit(1, TEXT[:64], 64) is not None
    blocks.fill(1, TEXT[:64], 31)
    assert blocks.admit(2, TEXT[:64], 64) is not None
    assert blocks.reused_tokens == BLOCK_TOKENS


def test_what_others_computed_meanwhile_is_taken_over_and_its_own_blocks_come_back() -> None:
    blocks = Blocks(slots=3, blocks=20)
    first, second = blocks.admit(1, TEXT[:50], 60), blocks.admit(2, TEXT[:60], 60)
    assert first is not None
    assert second is not None
    assert not set(first) & set(second)
    assert blocks.reuse(2, TEXT[:60]) == 0
    blocks.fill(1, TEXT[:50], 50)
    free = blocks.free_blocks
    assert blocks.reuse(2, TEXT[:60]) == 3 * BLOCK_TOKENS
    assert second[:3] == first[:3]
    assert blocks.free_blocks == free + 3
    assert blocks.reuse(2, TEXT[:60]) == 3 * BLOCK_TOKENS
    assert blocks.reused_tokens == 3 * BLOCK_TOKENS
    blocks.check({1: first, 2: second})


def test_of_two_that_computed_the_same_at_once_the_later_ones_text_is_found_behind_the_firsts() -> None:
    blocks = Blocks(slots=3, blocks=20)
    first, second = blocks.admit(1, TEXT[:40], 40), blocks.admit(2, TEXT[:60], 60)
    assert first is not None
    assert second is not None
    blocks.fill(1, TEXT[:40], 40)
    blocks.fill(2, TEXT[:60], 60)
    blocks.check({1: first, 2: second})
    third = blocks.admit(3, TEXT[:60], 60)
    assert third is not None
    assert third[:3] == [*first[:2], second[2]]


def test_a_released_text_is_kept_until_its_room_is_needed_and_its_end_goes_first() -> None:
    blocks = Blocks(slots=3, blocks=6)
    old = list(fill(blocks, 1, TEXT[:48]))
    new = list(fill(blocks, 2, TEXT[200:248]))
    blocks.release(1)
    blocks.release(2)
    assert (blocks.free_blocks, blocks.kept_blocks) == (6, 6)
    taken = blocks.admit(3, (7,) * 20, 20)
    assert taken == [old[2], old[1]], "the older text goes first, from its end"
    again = blocks.admit(4, (*TEXT[200:248], 1), 48)
    assert again == new
    assert blocks.admit(5, (*TEXT[:48], 1), 49) is None, "one block is left of it, and three more are needed"
    blocks.release(3)
    rest = blocks.admit(5, (*TEXT[:48], 1), 48)
    assert rest is not None
    assert rest[0] == old[0]
    assert set(rest) == set(old)
    assert blocks.reused_tokens == 4 * BLOCK_TOKENS


def test_using_a_text_again_makes_it_the_last_to_go() -> None:
    blocks = Blocks(slots=3, blocks=4)
    first = list(fill(blocks, 1, TEXT[:32]))
    blocks.release(1)
    second = list(fill(blocks, 2, TEXT[200:232]))
    blocks.release(2)
    assert blocks.admit(3, TEXT[:33], 32) == first
    blocks.release(3)
    assert blocks.admit(4, (7,), 32) == second[::-1]


def test_a_block_shared_by_two_is_free_when_both_have_left() -> None:
    blocks = Blocks(slots=2, blocks=3)
    fill(blocks, 1, TEXT[:17])
    assert blocks.admit(2, TEXT[:17], 17) is not None
    assert blocks.free_blocks == 0
    blocks.release(1)
    assert blocks.free_blocks == 1
    blocks.release(2)
    assert blocks.free_blocks == 3


def test_a_key_cannot_be_admitted_twice_nor_released_twice() -> None:
    blocks = Blocks(slots=2, blocks=4)
    blocks.admit(1, TEXT[:10], 10)
    with pytest.raises(AssertionError):
        blocks.admit(1, TEXT[:10], 10)
    blocks.release(1)
    with pytest.raises(KeyError):
        blocks.release(1)
    blocks.check({})
    assert (blocks.free_slots, blocks.free_blocks) == (2, 4)


def test_what_a_discarded_sequence_held_alone_is_found_by_nobody() -> None:
    blocks = Blocks(slots=3, blocks=20)
    first = fill(blocks, 1, TEXT[:40])
    second = fill(blocks, 2, (*TEXT[:32], *TEXT[200:240]))
    shared, alone = second[:2], second[2:]
    assert first[:2] == shared
    assert blocks.discard(2) == alone
    blocks.check({1: first})
    assert blocks.kept_blocks == 0
    assert blocks.discard(1) == first
    blocks.check({})
    assert (blocks.free_blocks, blocks.kept_blocks) == (20, 0)
    assert blocks.admit(3, TEXT[:40], 40) is not None
    assert blocks.reused_tokens == 2 * BLOCK_TOKENS, "that was the second one's"


def lose_a_free_block(blocks: Blocks, table: list[int]) -> None:
    blocks._free.pop()


def give_back_a_block_that_is_held(blocks: Blocks, table: list[int]) -> None:
    blocks._free.append(table[-1])


def lose_a_kept_block(blocks: Blocks, table: list[int]) -> None:
    blocks._kept.popitem()


def miscount(blocks: Blocks, table: list[int]) -> None:
    blocks._references[table[0]] += 1


def hold_a_block_twice(blocks: Blocks, table: list[int]) -> None:
    table.append(table[0])
    blocks._references[table[0]] += 1


def hold_anothers_block(blocks: Blocks, table: list[int]) -> None:
    table[-1] = next(iter(blocks._kept))


def forget_what_a_kept_block_holds(blocks: Blocks, table: list[int]) -> None:
    del blocks._known[next(iter(blocks._kept))]


def find_a_text_in_a_free_block(blocks: Blocks, table: list[int]) -> None:
    known = blocks._known.pop(table[0])
    blocks._known[blocks._free[0]] = known
    blocks._by_key[known.key] = blocks._free[0]


@pytest.mark.parametrize(
    "harm",
    [
        lose_a_free_block,
        give_back_a_block_that_is_held,
        lose_a_kept_block,
        miscount,
        hold_a_block_twice,
        hold_anothers_block,
        forget_what_a_kept_block_holds,
        find_a_text_in_a_free_block,
    ],
)
def test_the_check_sees_what_is_lost_double_or_miscounted(harm: Callable[[Blocks, list[int]], None]) -> None:
    blocks = Blocks(slots=3, blocks=12)
    fill(blocks, 1, TEXT[200:240])
    blocks.release(1)
    table = fill(blocks, 2, TEXT[:40])
    blocks.check({2: table})
    harm(blocks, table)
    with pytest.raises(AssertionError):
        blocks.check({2: table})


def test_the_check_compares_with_the_tables_of_the_sequences() -> None:
    blocks = Blocks(slots=3, blocks=12)
    table = fill(blocks, 1, TEXT[:40])
    for tables in ({}, {1: table[:-1]}, {1: table, 2: [11]}, {2: table}):
        with pytest.raises(AssertionError):
            blocks.check(tables)


SLOTS, BLOCKS = 4, 9
STEMS = tuple(tuple(range(start, start + 100)) for start in (0, 0, 500))


class BlocksMachine(RuleBasedStateMachine):
    """Sequences that come, compute, grow, share and go, in any order, beside a model that knows what is in each block.

    The model writes each token into the block where the table says that it belongs. Whoever reads its text back through
    its table must find it, whatever the others did.
    """

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(SLOTS, BLOCKS)
        self.keys = itertools.count(1)
        self.texts: dict[int, list[int]] = {}
        self.tables: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.memory: dict[tuple[int, int], int] = {}

    def free(self) -> int:
        return BLOCKS - len({block for table in self.tables.values() for block in table})

    @rule(
        target=running,
        stem=st.sampled_from(STEMS),
        length=st.integers(1, 60),
        extra=st.integers(0, 20),
        spare=st.integers(0, 2),
    )
    def admit(self, stem: tuple[int, ...], length: int, extra: int, spare: int) -> int | None:
        key, text = next(self.keys), list(stem[:length])
        reused_before, free = self.blocks.reused_tokens, self.free()
        table = self.blocks.admit(key, text, length + extra, spare)
        reused = self.blocks.reused_tokens - reused_before
        if table is None:
            assert reused == 0
            assert not self.blocks.free_slots or blocks_for(length + extra) + spare > free
            return None
        assert len(self.tables) < SLOTS
        assert len(table) == blocks_for(length + extra)
        assert reused < length
        self.texts[key], self.tables[key], self.computed[key] = text, table, reused
        assert self.free() >= spare
        return key

    @rule(key=running, count=st.integers(1, 40))
    def compute(self, key: int | None, count: int) -> None:
        """As a prefill chunk: first whatever is known by now, then some of the rest."""
        if key not in self.tables:
            return
        text, table = self.texts[key], self.tables[key]
        start = max(self.computed[key], self.blocks.reuse(key, text))
        end = min(len(text), start + count)
        for position in range(start, end):
            self.memory[table[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = text[position]
        self.blocks.fill(key, text, end)
        self.computed[key] = end

    @rule(key=running, count=st.integers(1, 17), drafts=st.integers(0, 17))
    def decode(self, key: int | None, count: int, drafts: int) -> None:
        """Some tokens are appended and computed, and drafts that nobody keeps are written behind them."""
        if key not in self.tables or self.computed[key] < len(self.texts[key]):
            return
        text, table = self.texts[key], self.tables[key]
        before, free = list(table), self.free()
        positions = len(text) + count + drafts
        if not self.blocks.cover(key, positions):
            assert table == before
            assert blocks_for(positions) - len(before) > free
            return
        stem = STEMS[1 if text[0] == 0 else 2]
        text.extend(stem[len(text) + place] if len(text) + place < len(stem) else 7 for place in range(count))
        for position in range(len(text) - count, positions):
            token = text[position] if position < len(text) else -1
            self.memory[table[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = token
        self.blocks.fill(key, text, len(text))
        self.computed[key] = len(text)

    @rule(key=running)
    def trim(self, key: int | None) -> None:
        if key in self.tables:
            self.blocks.trim(key, len(self.texts[key]))
            assert len(self.tables[key]) <= max(blocks_for(len(self.texts[key])), 1)

    @rule(key=consumes(running), failed=st.booleans())
    def leave(self, key: int | None, failed: bool) -> None:
        """Its end, or its preemption; or it has failed, and what it held is no text any more."""
        if key in self.tables:
            if failed:
                others = {block for other, table in self.tables.items() if other != key for block in table}
                alone = [block for block in self.tables[key] if block not in others]
                assert self.blocks.discard(key) == alone
                for block, place in itertools.product(alone, range(BLOCK_TOKENS)):
                    self.memory.pop((block, place), None)
            else:
                self.blocks.release(key)
            for of_each in (self.texts, self.tables, self.computed):
                of_each.pop(key)

    @invariant()
    def everybody_finds_its_text(self) -> None:
        for key, table in self.tables.items():
            expected = self.texts[key][: self.computed[key]]
            found = [self.memory[table[p // BLOCK_TOKENS], p % BLOCK_TOKENS] for p in range(self.computed[key])]
            assert found == expected

    @invariant()
    def nothing_is_lost(self) -> None:
        self.blocks.check(self.tables)
        assert self.blocks.free_blocks == self.free()
        assert self.blocks.free_slots == SLOTS - len(self.tables)
        assert self.blocks.kept_blocks <= self.blocks.free_blocks


TestBlocksMachine = BlocksMachine.TestCase

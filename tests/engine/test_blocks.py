"""Slots and blocks: nothing is lost, nothing is handed out twice."""

import pytest

from engine.blocks import BLOCK_TOKENS, Blocks, blocks_for


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(1, 1), (BLOCK_TOKENS, 1), (BLOCK_TOKENS + 1, 2), (10 * BLOCK_TOKENS, 10)]
)
def test_blocks_cover_the_tokens_without_one_too_many(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_the_lowest_free_slot_is_handed_out_first() -> None:
    blocks = Blocks(slots=4, blocks=100)
    assert [blocks.admit(key, 10) for key in (1, 2, 3)] == [0, 1, 2]
    blocks.release(3)
    blocks.release(1)
    assert [blocks.admit(key, 10) for key in (4, 5, 6)] == [0, 2, 3]


def test_admission_needs_a_slot_and_all_the_blocks() -> None:
    blocks = Blocks(slots=2, blocks=4)
    assert blocks.can_admit(4 * BLOCK_TOKENS)
    assert not blocks.can_admit(4 * BLOCK_TOKENS + 1)
    blocks.admit(1, BLOCK_TOKENS)
    assert not blocks.can_admit(4 * BLOCK_TOKENS)
    assert blocks.fits_ever(4 * BLOCK_TOKENS)
    assert not blocks.fits_ever(4 * BLOCK_TOKENS + 1)
    blocks.admit(2, BLOCK_TOKENS)
    assert blocks.free_blocks == 2
    assert not blocks.can_admit(1), "no slot is left"


def test_a_key_cannot_be_admitted_twice_nor_released_twice() -> None:
    blocks = Blocks(slots=2, blocks=4)
    blocks.admit(1, 10)
    with pytest.raises(AssertionError):
        blocks.admit(1, 10)
    blocks.release(1)
    with pytest.raises(KeyError):
        blocks.release(1)
    blocks.check()
    assert (blocks.free_slots, blocks.free_blocks) == (2, 4)


def test_the_check_sees_a_lost_slot_and_a_lost_block() -> None:
    lost_slot = Blocks(slots=2, blocks=4)
    lost_slot._free_slots.pop()
    with pytest.raises(AssertionError):
        lost_slot.check()
    lost_block = Blocks(slots=2, blocks=4)
    lost_block._free_blocks -= 1
    with pytest.raises(AssertionError):
        lost_block.check()

"""The masks, the forced prefix and the watermark of a block's rows, each by what it must do."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor

from kernels.processors import Row, RowError, RowProcessors, green_tokens, unpacked
from kernels.sampling import Block, Sampling, Watermark

VOCABULARY = 40


def logits(seed: int = 0) -> Row:
    return np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32)


def block(position: int = 0, drafts: tuple[int, ...] = (), tail: tuple[int, ...] = (), **settings: Any) -> Block:
    masks = settings.pop("masks", None)
    return Block(0, drafts, Sampling(**settings), position, tail=tail, masks=masks)


def left(given_block: Block, index: int = 0) -> set[int]:
    """The tokens that row `index` leaves."""
    row = RowProcessors(given_block, VOCABULARY).apply(logits(), index)
    return set(np.flatnonzero(np.isfinite(row)).tolist())


def packed(tokens: set[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    bits = np.zeros(-(-VOCABULARY // 32) * 32, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


EVERY = set(range(VOCABULARY))


@pytest.mark.parametrize(
    ("given_block", "index", "expected"),
    [
        (block(forced_prefix=(7, 9)), 0, {7}),
        (block(forced_prefix=(7, 9), drafts=(7, 3)), 1, {9}),
        (block(forced_prefix=(7, 9), drafts=(7, 3)), 2, EVERY),
        (block(position=1, forced_prefix=(7, 9), allowed_tokens=(1,)), 0, {9}),
        (block(allowed_tokens=(3, 1)), 0, {1, 3}),
        (block(min_tokens=2, end_tokens=(4, 5)), 0, EVERY - {4, 5}),
        (block(position=1, min_tokens=2, end_tokens=(4, 5), drafts=(1,)), 1, EVERY),
        (block(min_tokens=2, end_tokens=(4, 5), allowed_tokens=(4, 5)), 0, {4, 5}),
        (block(bad_words=((6,),)), 0, EVERY - {6}),
        (block(position=2, bad_words=((1, 2, 6), (2, 8)), tail=(1, 2)), 0, EVERY - {6, 8}),
        (block(position=1, bad_words=((1, 2, 6), (2, 8)), tail=(1, 2)), 0, EVERY - {8}),
        (block(position=0, bad_words=((2, 8),), tail=(1, 2)), 0, EVERY),
        (block(position=1, bad_words=((1, 2, 6),), tail=(9, 1), drafts=(2, 3)), 1, EVERY - {6}),
        (block(position=1, bad_words=((1, 2, 6),), tail=(9, 1), drafts=(2, 3)), 2, EVERY),
        (block(masks=(packed({1, 33}), None), drafts=(1,)), 0, {1, 33}),
        (block(masks=(packed({1, 33}), None), drafts=(1,)), 1, EVERY),
        (block(masks=(packed({1, 33, 39}),), bad_words=((33,),), allowed_tokens=(33, 39)), 0, {39}),
    ],
)
def test_a_row_leaves_exactly_what_the_features_let_come(given_block: Block, index: int, expected: set[int]) -> None:
    assert left(given_block, index) == expected


def test_what_is_left_keeps_its_logits_and_the_targets_row_is_not_touched() -> None:
    row = logits()
    before = row.copy()
    made = RowProcessors(block(allowed_tokens=(3, 1), bad_words=((1,),)), VOCABULARY).apply(row, 0)
    assert made[3] == row[3]
    assert (row == before).all()


def test_a_row_that_nothing_changes_is_not_copied() -> None:
    row = logits()
    processors = RowProcessors(block(position=5, forced_prefix=(1,), min_tokens=3, end_tokens=(2,)), VOCABULARY)
    assert processors.apply(row, 0) is row


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_tokens": (3,), "bad_words": ((3,),)},
        {"masks": (packed(set()),)},
        {"masks": (packed({3}),), "allowed_tokens": (4,)},
    ],
)
def test_where_nothing_is_left_the_row_fails_as_the_requests_doing(settings: dict[str, Any]) -> None:
    with pytest.raises(RowError, match="leave no token") as caught:
        left(block(**settings))
    assert not caught.value.failure.fault


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_tokens": (40,)},
        {"bad_words": ((-1,),)},
        {"forced_prefix": (99,)},
        {"min_tokens": 1, "end_tokens": (41,)},
    ],
)
def test_a_token_that_does_not_exist_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="vocabulary has ids 0 to 39"):
        left(block(**settings))


def test_bad_words_are_those_of_transformers() -> None:
    """transformers looks at the prompt as well: here there is none."""

    @given(
        st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=4),
        st.lists(st.integers(0, 5), min_size=1, max_size=6),
        st.integers(0, 5),
    )
    def run(words: list[list[int]], output: list[int], cut: int) -> None:
        theirs = NoBadWordsLogitsProcessor(bad_words_ids=words)(torch.tensor([output]), torch.zeros(1, VOCABULARY))
        # The last tokens of the output are drafts.
        cut = min(cut, len(output))
        longest = max(len(word) for word in words) - 1
        emitted = tuple(output[: len(output) - cut])
        drafts = tuple(output[len(output) - cut :])
        ours = block(
            position=len(emitted),
            drafts=drafts,
            tail=emitted[len(emitted) - min(longest, len(emitted)) :],
            bad_words=tuple(tuple(word) for word in words),
        )
        assert left(ours, cut) == set(np.flatnonzero(np.isfinite(theirs[0].numpy())).tolist())

    run()


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5, 0.9])
def test_the_green_share_is_gamma_and_lists_of_two_tokens_or_keys_are_independent(gamma: float) -> None:
    mark = Watermark(gamma=gamma, key=3)
    first, second = (green_tokens(mark, before, 60_000) for before in (11, 12))
    other = green_tokens(Watermark(gamma=gamma, key=4), 11, 60_000)
    assert first.mean() == pytest.approx(gamma, abs=0.01)
    for another in (second, other):
        assert (first & another).mean() == pytest.approx(gamma**2, abs=0.01)
    assert (first == green_tokens(mark, 11, 60_000)).all()


def test_the_watermark_adds_delta_to_the_green_list_of_the_token_before_drafts_included() -> None:
    mark = Watermark(gamma=0.5, delta=1.5, key=8)
    processors = RowProcessors(block(position=3, tail=(17,), drafts=(21, 22), watermark=mark), VOCABULARY)
    for index, before in enumerate((17, 21, 22)):
        added = processors.apply(logits(), index) - logits()
        assert added == pytest.approx(np.where(green_tokens(mark, before, VOCABULARY), 1.5, 0.0), abs=1e-6)


def test_the_watermark_gives_nothing_back_that_a_mask_took() -> None:
    mark = Watermark(gamma=0.9, delta=5.0)
    assert left(block(watermark=mark, tail=(1,), allowed_tokens=(3, 4))) == {3, 4}


def test_a_packed_mask_is_read_bit_by_bit() -> None:
    assert np.flatnonzero(unpacked(packed({0, 31, 32, 39}), VOCABULARY)).tolist() == [0, 31, 32, 39]

"""Prompt lookup against a brute-force reading of its own definition."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafter import SILENT
from engine.messages import Sampling, Submit
from engine.ngram import CANDIDATES, NgramDrafter, NgramIndex, confidence_of
from engine.request import RunningSequence
from policies.cycle_policy import NO_KNOBS, Knobs
from policies.types import Context, Decision, Reason

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=60)
MATCH_LENGTHS = st.tuples(st.integers(1, 4), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def oracle(tokens: Sequence[int], minimum: int, maximum: int, length: int) -> tuple[tuple[int, ...], int]:
    """Every earlier end of the text's last `minimum` tokens, most recent first; the longest common suffix wins."""
    total = len(tokens)
    suffix = list(tokens[max(0, total - minimum) :])
    ends = [end for end in range(total - 1, minimum - 1, -1) if list(tokens[end - minimum : end]) == suffix]
    best_end, best_match = 0, 0
    for end in ends[:CANDIDATES]:
        match = max(m for m in range(minimum, min(maximum, end) + 1) if tokens[end - m : end] == tokens[total - m :])
        if match > best_match:
            best_end, best_match = end, match
    if best_match == 0:
        return (), 0
    text = list(tokens)
    for _ in range(length):
        text.append(text[len(text) - (total - best_end)])
    return tuple(text[total:]), best_match


@given(tokens=TEXTS, match_lengths=MATCH_LENGTHS, length=st.integers(1, 20))
def test_lookup_equals_the_brute_force_oracle(tokens: list[int], match_lengths: tuple[int, int], length: int) -> None:
    shortest, longest = match_lengths
    assert NgramIndex(shortest).lookup(tokens, length, longest) == oracle(tokens, shortest, longest, length)


@given(tokens=TEXTS, match_lengths=MATCH_LENGTHS, cuts=st.sets(st.integers(1, 60)), length=st.integers(1, 8))
def test_an_index_that_grew_with_the_text_equals_a_fresh_one(
    tokens: list[int], match_lengths: tuple[int, int], cuts: set[int], length: int
) -> None:
    shortest, longest = match_lengths
    grown = NgramIndex(shortest)
    for cut in sorted(cuts | {len(tokens)}):
        fresh = NgramIndex(shortest)
        assert grown.lookup(tokens[:cut], length, longest) == fresh.lookup(tokens[:cut], length, longest)


def test_the_longest_match_wins_over_a_more_recent_shorter_one() -> None:
    #        a longer match        a more recent, shorter one
    tokens = [7, 1, 2, 50, 9, 9, 8, 1, 2, 60, 7, 1, 2]
    assert NgramIndex(2).lookup(tokens, 1, 16) == ((50,), 3)


def test_the_most_recent_wins_among_equally_long_matches() -> None:
    tokens = [1, 2, 50, 9, 1, 2, 60, 8, 1, 2]
    assert NgramIndex(2).lookup(tokens, 1, 16) == ((60,), 2)


def test_matches_beyond_the_longest_length_count_as_equal() -> None:
    tokens = [5, 6, 1, 2, 50, 0, 6, 1, 2, 60, 5, 6, 1, 2]
    assert NgramIndex(2).lookup(tokens, 1, 3) == ((60,), 3)
    assert NgramIndex(2).lookup(tokens, 1, 4) == ((50,), 4)


def test_a_period_is_continued_beyond_the_end_of_the_text() -> None:
    assert NgramIndex(2).lookup([4, 5, 6, 4, 5, 6, 4, 5], 7, 16) == ((6, 4, 5, 6, 4, 5, 6), 5)
    assert NgramIndex(2).lookup([9, 3, 3, 3], 4, 16) == ((3, 3, 3, 3), 2)


def test_only_the_most_recent_candidates_are_read() -> None:
    old_long_match = [7, 8, 1, 2, 50]
    short_matches = [1, 2, 60] * CANDIDATES
    ending = [7, 8, 1, 2]
    assert NgramIndex(2).lookup([*old_long_match, *short_matches[3:], *ending], 1, 16) == ((50,), 4)
    assert NgramIndex(2).lookup([*old_long_match, *short_matches, *ending], 1, 16) == ((60,), 2)


@pytest.mark.parametrize(
    ("match", "bucket"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (15, 4), (16, 5), (1000, 5)]
)
def test_confidence_is_the_bucket_of_the_match_length(match: int, bucket: int) -> None:
    assert confidence_of(match) == bucket


def test_the_drafter_keeps_its_sequences_apart_and_is_silent_without_a_match() -> None:
    drafter = NgramDrafter(2, 16)
    matching, other, none = running(1, [1, 2, 3, 1, 2]), running(2, [1, 2, 4, 1, 2]), running(3, [1, 2, 3, 4, 5])
    proposals = drafter.propose([matching, other, none], [1, 2, 3])
    assert [proposal.tokens for proposal in proposals] == [(3,), (4, 1), ()]
    assert [proposal.confidence for proposal in proposals] == [1, 1, 0]
    assert proposals[2] == SILENT


def test_a_released_key_starts_again_from_nothing() -> None:
    drafter = NgramDrafter(2, 16)
    drafter.propose([running(1, [1, 2, 3, 1, 2])], [1])
    drafter.release(1)
    drafter.release(99)
    assert drafter.propose([running(1, [1, 2, 5, 1, 2])], [1])[0].tokens == (5,)


@given(tokens=TEXTS, knobs=st.lists(MATCH_LENGTHS, min_size=1, max_size=4), length=st.integers(1, 8))
def test_match_lengths_that_change_are_in_force_at_once(
    tokens: list[int], knobs: list[tuple[int, int]], length: int
) -> None:
    drafter, sequence = NgramDrafter(2, 16), running(1, tokens)
    for shortest, longest in knobs:
        sequence.knobs = Knobs(ngram_min_match=shortest, ngram_max_match=longest)
        assert drafter.propose([sequence], [length])[0].tokens == oracle(tokens, shortest, longest, length)[0]
    sequence.knobs = NO_KNOBS
    assert drafter.propose([sequence], [length])[0].tokens == oracle(tokens, 2, 16, length)[0]


def test_a_knob_that_crosses_the_engines_own_longest_match_holds() -> None:
    drafter, sequence = NgramDrafter(1, 2), running(1, [1, 2, 3, 9, 1, 2, 3])
    sequence.knobs = Knobs(ngram_min_match=3)
    assert drafter.propose([sequence], [1])[0].tokens == (9,)


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 4), (5, 4), (-1, -1)])
def test_impossible_match_lengths_are_refused_in_one_sentence(minimum: int, maximum: int) -> None:
    with pytest.raises(ValueError, match=rf"ngram match lengths {minimum}\.\.{maximum}: give 1 <= min <= max"):
        NgramDrafter(minimum, maximum)


def running(request_key: int, tokens: list[int]) -> RunningSequence:
    decision = Decision("d", Context("m", "r", "en"), "ngram", 8, True, Reason.ENGINE_DEFAULT, 0)
    return RunningSequence(Submit(request_key, tuple(tokens), Sampling(), 100, (), (), decision, 0.0), 1000)

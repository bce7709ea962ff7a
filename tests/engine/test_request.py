"""Ends inside a block: the earliest wins and nothing leaks past it. Numbers are those of collected field reports."""

import codecs
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Sampling
from engine.request import LOOP_REPEATS, LOOP_TOKENS, RunningSequence
from policies.stats import BlockEnd, FinishReason
from tests.engine.scripted import PIECES, VOCABULARY, submit

A, BC, E_ACUTE, FIRST_HALF, SECOND_HALF, SPACE = range(VOCABULARY)


def running(
    *,
    prompt: tuple[int, ...] = (0, 1),
    max_tokens: int = 100,
    stops: tuple[str, ...] = (),
    stop_token_ids: tuple[int, ...] = (),
    context_limit: int = 1000,
    sampling: Sampling | None = None,
) -> RunningSequence:
    message = submit(
        1, prompt, max_tokens=max_tokens, stops=stops, stop_token_ids=stop_token_ids, sampling=sampling or Sampling()
    )
    return RunningSequence(message, context_limit)


def append(sequence: RunningSequence, *token_ids: int) -> tuple[int, FinishReason | None]:
    return sequence.append(list(token_ids), list(PIECES))


def test_report_32_no_token_id_passes_a_stop_string_in_the_middle_of_a_block() -> None:
    sequence = running(stops=("bc",))
    assert append(sequence, A, BC, A, A) == (2, FinishReason.STOP)
    assert sequence.tokens == [0, 1, A, BC]


def test_report_33_a_stop_before_the_limit_in_the_same_block_wins() -> None:
    sequence = running(stops=("bc",), max_tokens=3)
    assert append(sequence, A, BC, A, A) == (2, FinishReason.STOP)
    assert sequence.output_length == 2


def test_report_33_the_limit_before_a_stop_in_the_same_block_wins() -> None:
    sequence = running(stops=("bc",), stop_token_ids=(SPACE,), max_tokens=2)
    assert append(sequence, A, A, BC, SPACE) == (2, FinishReason.LENGTH)
    assert sequence.output_length == 2


def test_report_33_a_stop_on_the_very_token_of_the_limit_is_a_stop() -> None:
    assert append(running(stops=("bc",), max_tokens=2), A, BC) == (2, FinishReason.STOP)
    assert append(running(stop_token_ids=(SPACE,), max_tokens=2), A, SPACE, A) == (2, FinishReason.STOP)


@pytest.mark.parametrize("room", [1, 2, 3, 4, 5])
def test_report_35_the_context_limit_ends_a_sequence_inside_a_block(room: int) -> None:
    sequence = running(prompt=(0,) * (10 - room), context_limit=10)
    assert sequence.context_tokens == 10
    assert append(sequence, A, A, A, A, A) == (room, FinishReason.LENGTH)
    assert len(sequence.tokens) == 10
    assert sequence.remaining == 0


def test_a_stop_token_counts_and_ends_and_what_follows_does_not() -> None:
    sequence = running(stop_token_ids=(SPACE, E_ACUTE))
    assert append(sequence, A, SPACE, E_ACUTE) == (2, FinishReason.STOP)
    assert sequence.tokens[-1] == SPACE


def test_an_earlier_stop_token_wins_over_a_later_stop_string_and_the_other_way_round() -> None:
    assert append(running(stops=("bc",), stop_token_ids=(SPACE,)), A, SPACE, BC) == (2, FinishReason.STOP)
    assert append(running(stops=("bc",), stop_token_ids=(SPACE,)), A, BC, SPACE) == (2, FinishReason.STOP)


def test_a_stop_string_is_seen_across_tokens_and_across_the_edge_of_a_block() -> None:
    assert append(running(stops=("abca",)), A, BC, A, A) == (3, FinishReason.STOP)
    sequence = running(stops=("abca",))
    assert append(sequence, SPACE, A) == (2, None)
    assert append(sequence, BC) == (1, None)
    assert append(sequence, A, A) == (1, FinishReason.STOP)


def test_a_stop_string_inside_a_token_is_seen() -> None:
    assert append(running(stops=("c",)), A, BC, A) == (2, FinishReason.STOP)


def test_a_stop_string_of_several_bytes_is_seen_whole_and_in_halves() -> None:
    assert append(running(stops=("é",)), E_ACUTE, A) == (1, FinishReason.STOP)
    sequence = running(stops=("aéa",))
    assert append(sequence, A, FIRST_HALF) == (2, None)
    assert append(sequence, SECOND_HALF, A, A) == (2, FinishReason.STOP)


def test_half_a_character_is_no_stop() -> None:
    assert append(running(stops=("é",)), FIRST_HALF, A, SECOND_HALF) == (3, None)


def test_a_stop_that_begins_before_min_tokens_and_ends_after_it_is_seen_if_its_text_comes_after_it() -> None:
    halves = running(stops=("é",), sampling=Sampling(min_tokens=2))
    assert append(halves, FIRST_HALF, SECOND_HALF, A) == (2, FinishReason.STOP)
    assert append(running(stops=("aa",), sampling=Sampling(min_tokens=2)), A, A, BC) == (3, None)


def test_the_prompt_is_no_part_of_a_stop_string() -> None:
    assert append(running(prompt=(A, BC), stops=("bca",)), A, A) == (2, None)


@given(
    output=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29)),
    stops=st.lists(st.sampled_from(["a", "bc", "é", "aé", "bcbc", " a ", "éé é", "cab", "�", "�a"]), max_size=3),
    stop_token_ids=st.sets(st.integers(0, VOCABULARY - 1), max_size=1),
    max_tokens=st.integers(1, 40),
    room=st.integers(1, 40),
)
def test_the_end_is_the_same_however_the_output_is_cut_into_blocks(
    output: list[int], cuts: set[int], stops: list[str], stop_token_ids: set[int], max_tokens: int, room: int
) -> None:
    """Against a reading of the whole output so far at each token."""
    expected: tuple[int, FinishReason | None] = len(output), None
    for count in range(1, len(output) + 1):
        written = b"".join(PIECES[token] for token in output[:count])
        text = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(written)
        if output[count - 1] in stop_token_ids or any(stop in text for stop in stops):
            expected = count, FinishReason.STOP
            break
        if count == min(max_tokens, room):
            expected = count, FinishReason.LENGTH
            break

    sequence = running(
        prompt=(0,) * 5,
        stops=tuple(stops),
        stop_token_ids=tuple(stop_token_ids),
        max_tokens=max_tokens,
        context_limit=5 + room,
        sampling=Sampling(frequency_penalty=0.5),
    )
    edges = [0, *sorted(cut for cut in cuts if cut < len(output)), len(output)]
    finish = None
    for start, end in itertools.pairwise(edges):
        appended, finish = append(sequence, *output[start:end])
        if finish is not None:
            break
        assert appended == end - start
    assert (sequence.output_length, finish) == expected
    assert sequence.tokens[5:] == output[: expected[0]]
    assert sequence.output_counts is not None
    assert sequence.output_counts.total() == expected[0]


def test_a_loop_is_the_same_eight_tokens_three_times_running() -> None:
    period = [A, BC, A, SPACE, E_ACUTE, A, BC, SPACE]
    assert len(period) == LOOP_TOKENS
    sequence = running()
    append(sequence, A, E_ACUTE, *period * LOOP_REPEATS)
    assert sequence.looped
    almost = running()
    append(almost, A, E_ACUTE, *(period * LOOP_REPEATS)[:-1], A)
    assert not almost.looped


def test_a_loop_that_ended_is_still_reported() -> None:
    sequence = running()
    append(sequence, *[A] * LOOP_TOKENS * LOOP_REPEATS)
    append(sequence, BC, SPACE, E_ACUTE)
    assert sequence.finished(FinishReason.LENGTH).looped


def test_the_prompt_is_no_part_of_a_loop() -> None:
    sequence = running(prompt=(A,) * 40)
    append(sequence, *[A] * (LOOP_TOKENS * LOOP_REPEATS - 1))
    assert not sequence.looped


def test_a_block_is_counted_where_it_was_rejected() -> None:
    sequence = running()
    sequence.count_block(4, 2, BlockEnd.REJECTED)
    sequence.count_block(4, 0, BlockEnd.REJECTED)
    sequence.count_block(4, 2, BlockEnd.REJECTED)
    sequence.count_block(3, 3, BlockEnd.FULL)
    sequence.count_block(3, 1, BlockEnd.CENSORED)
    sequence.count_block(0, 0, BlockEnd.PLAIN)
    finished = sequence.finished(FinishReason.STOP)
    assert finished.rejected_at == (1, 0, 2)
    assert (finished.cycles, finished.verified, finished.accepted) == (6, 18, 8)


def test_waiting_is_measured_from_submission_to_admission_and_is_never_negative() -> None:
    sequence = running()
    sequence.submitted_at, sequence.admitted_at = 10.0, 12.5
    assert sequence.finished(FinishReason.STOP).queue_seconds == 2.5
    sequence.admitted_at = 9.9
    assert sequence.finished(FinishReason.STOP).queue_seconds == 0.0

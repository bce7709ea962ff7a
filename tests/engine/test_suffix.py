"""Suffix drafting against a brute-force count of every run of tokens."""

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafter import SILENT, Proposal
from engine.messages import Sampling, Submit
from engine.ngram import NgramIndex
from engine.request import RunningSequence
from engine.suffix import (
    CONFIDENCE_EDGES,
    LEVELS,
    TOKEN_BYTES,
    WIDEST,
    SharedText,
    SuffixDrafter,
    confidence_of,
    continuation,
    most_probable,
)
from engine.suffix_automaton import COUNTED_CHAIN, ROOT, SuffixAutomaton
from policies.cycle_policy import Knobs
from policies.types import Context, Decision, Reason

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=50)
UNHURRIED = settings(deadline=None)
CUTS = st.sets(st.integers(1, 50))


def ends_of(run: Sequence[int], text: Sequence[int]) -> list[int]:
    """Where `run` ends in `text`, the empty run included."""
    return [end for end in range(len(run), len(text) + 1) if list(text[end - len(run) : end]) == list(run)]


def followers(run: Sequence[int], text: Sequence[int]) -> dict[int, list[int]]:
    """The tokens that followed `run` in `text`, with the places where they stand."""
    places: dict[int, list[int]] = {}
    for end in ends_of(run, text):
        if end < len(text):
            places.setdefault(text[end], []).append(end + 1)
    return places


def blended(history: Sequence[int], text: Sequence[int]) -> tuple[int, float]:
    """`most_probable` by its definition: of the ends of `text` that `history` knows, longest first, each that occurred
    more often than the one before."""
    probs: dict[int, float] = {}
    recency: dict[int, int] = {}
    remaining, levels, occurred = 1.0, 0, 0
    for matched in range(len(text), 0, -1):
        ends = ends_of(text[-matched:], history)
        after = followers(text[-matched:], history)
        if len(ends) <= occurred or not after or levels == LEVELS:
            continue
        occurred = len(ends)
        levels += 1
        total = sum(len(places) for places in after.values())
        trusted = remaining * total * matched / (total * matched + len(after))
        for token, places in after.items():
            probs[token] = probs.get(token, 0.0) + trusted * len(places) / total
            recency.setdefault(token, max(places))
        remaining -= trusted
    if not probs:
        return -1, 0.0
    best = max(probs, key=lambda token: (probs[token], recency[token]))
    return best, probs[best]


def built(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


@UNHURRIED
@given(text=TEXTS, cuts=CUTS)
def test_every_run_is_counted_where_it_occurs(text: list[int], cuts: set[int]) -> None:
    automaton = SuffixAutomaton()
    start = 0
    for cut in sorted(cuts | {len(text)}):
        automaton.extend(text[start:cut])
        start = max(start, min(cut, len(text)))
        seen = text[:start]
        for first in range(len(seen)):
            state = ROOT
            for after in range(first + 1, len(seen) + 1):
                state = automaton.transitions[state][seen[after - 1]]
                ends = ends_of(seen[first:after], seen)
                assert automaton.counts[state] == len(ends)
                assert automaton.latest[state] == ends[-1]


@UNHURRIED
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_no_run_reaches_over_the_border_of_two_texts(texts: list[list[int]]) -> None:
    automaton = SuffixAutomaton()
    for text in texts:
        automaton.start_text()
        automaton.extend(text)
    runs = {tuple(text[a:b]) for text in texts for a in range(len(text)) for b in range(a + 1, len(text) + 1)}
    for run in runs:
        state = ROOT
        for token in run:
            state = automaton.transitions[state][token]
        assert automaton.counts[state] == sum(len(ends_of(run, text)) for text in texts)
    known: set[tuple[int, ...]] = {()}
    level: list[tuple[tuple[int, ...], int]] = [((), ROOT)]
    while level:
        level = [((*run, t), to) for run, state in level for t, to in automaton.transitions[state].items()]
        known |= {run for run, _ in level}
    assert known == runs | {()}


@UNHURRIED
@given(history=TEXTS, later=TEXTS, text=TEXTS)
def test_the_longest_known_end_is_followed_while_both_texts_grow(
    history: list[int], later: list[int], text: list[int]
) -> None:
    automaton = built(history)
    state, length = ROOT, 0
    for token in text:
        state, length = automaton.advance(state, length, token)
    assert length == max(m for m in range(len(text) + 1) if ends_of(text[len(text) - m :], history))
    automaton.start_text()
    automaton.extend(later)
    state = automaton.settle(state, length)
    if length:
        run = text[len(text) - length :]
        assert automaton.counts[state] == len(ends_of(run, history)) + len(ends_of(run, later))


@UNHURRIED
@given(text=TEXTS, length=st.integers(1, 12), min_score=st.sampled_from([0.05, 0.3, 0.6, 0.9]))
def test_proposals_equal_the_brute_force_oracle(text: list[int], length: int, min_score: float) -> None:
    proposal = SuffixDrafter(min_score=min_score).propose([running(1, text)], [length])[0]
    changed = running(1, text)
    changed.knobs = Knobs(suffix_min_score=min_score)
    assert SuffixDrafter(min_score=1.0).propose([changed], [length])[0] == proposal
    expected: list[int] = []
    score, first = 1.0, 0.0
    while len(expected) < length:
        token, prob = blended(text, [*text, *expected])
        score *= prob
        if score < min_score:
            break
        first = first or prob
        expected.append(token)
    assert proposal == (Proposal(tuple(expected), confidence_of(first)) if expected else SILENT)


@UNHURRIED
@given(text=TEXTS, cuts=CUTS, length=st.integers(1, 8))
def test_a_text_that_grew_is_continued_like_a_fresh_one(text: list[int], cuts: set[int], length: int) -> None:
    grown = SuffixDrafter()
    sequence = running(1, text[:1])
    for cut in sorted(cuts | {len(text)}):
        sequence.tokens = text[:cut]
        fresh = SuffixDrafter().propose([running(2, text[:cut])], [length])
        assert grown.propose([sequence], [length]) == fresh


def test_many_occurrences_beat_one_where_ngram_takes_the_latest() -> None:
    pairs = [5, 6, 7] * 6 + [5, 6, 8, 9, 5, 6]
    assert NgramIndex(2).lookup(pairs, 1, 16)[0] == (8,)
    assert SuffixDrafter().propose([running(1, pairs)], [1])[0].tokens == (7,)


def test_one_occurrence_after_a_long_match_beats_many_after_a_short_one() -> None:
    long_match = list(range(20, 40))
    text = [*long_match, 50, *([39, 60] * 5), *long_match]
    assert SuffixDrafter().propose([running(1, text)], [1])[0].tokens == (50,)


def test_what_followed_last_is_taken_among_equals() -> None:
    assert SuffixDrafter().propose([running(1, [1, 2, 50, 9, 1, 2, 60, 8, 1, 2])], [1])[0].tokens == (60,)


def test_a_proposal_ends_where_its_score_falls_under_the_bound() -> None:
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 8, 1, 2, 3]
    long = SuffixDrafter(min_score=0.01).propose([running(1, text)], [6])[0].tokens
    short = SuffixDrafter(min_score=0.8).propose([running(1, text)], [6])[0].tokens
    assert (len(long), short) == (6, (4,))


def test_a_loop_is_continued_over_the_end_of_the_text() -> None:
    assert SuffixDrafter().propose([running(1, [4, 5, 6] * 4 + [4])], [7])[0].tokens == (5, 6, 4, 5, 6, 4, 5)


def test_a_match_that_everything_follows_is_left_out() -> None:
    wide = [token for value in range(WIDEST + 1) for token in (1, 100 + value)]
    assert most_probable([match_of(built([*wide, 1]))]) == (-1, 0.0)
    assert most_probable([match_of(built([*wide[2:], 1]))])[1] > 0.0


def test_a_text_of_one_repeated_token_takes_linear_time_and_is_still_continued() -> None:
    length = 40 * COUNTED_CHAIN
    drafter = SuffixDrafter()
    assert drafter.propose([running(1, [3] * length)], [16])[0].tokens == (3,) * 16


@pytest.mark.parametrize("edge", range(len(CONFIDENCE_EDGES)))
def test_confidence_rises_at_each_edge(edge: int) -> None:
    assert confidence_of(CONFIDENCE_EDGES[edge]) == edge + 2
    assert confidence_of(CONFIDENCE_EDGES[edge] - 1e-9) == edge + 1


def test_a_longer_match_and_a_clearer_frequency_give_more_confidence() -> None:
    once = SuffixDrafter().propose([running(1, [1, 2, 3, 9, 2])], [1])[0]
    longer = SuffixDrafter().propose([running(1, [*range(12), 99, *range(11)])], [1])[0]
    often = SuffixDrafter().propose([running(1, [1, 2, 3] * 9 + [1, 2])], [1])[0]
    assert (once.tokens, longer.tokens, often.tokens) == ((3,), (11,), (3,))
    assert once.confidence < min(longer.confidence, often.confidence)


def test_requests_know_nothing_of_each_other_by_default() -> None:
    drafter = SuffixDrafter()
    finish(drafter, 1, [1], [7, 8, 9, 10])
    assert drafter.propose([running(2, [1, 7, 8])], [4]) == [SILENT]


def test_a_shared_route_reads_the_outputs_but_not_the_prompts_of_requests_before() -> None:
    drafter = SuffixDrafter(shared_routes=["chat"])
    finish(drafter, 1, [30, 31, 32, 33], [7, 8, 9, 10])
    assert drafter.propose([running(2, [1, 7, 8])], [4])[0].tokens == (9, 10)
    assert drafter.propose([running(3, [1, 30, 31])], [4]) == [SILENT]
    assert drafter.propose([running(4, [1, 7, 8], route="story")], [4]) == [SILENT]


def test_an_output_of_a_shared_route_is_kept_though_another_drafter_proposed() -> None:
    drafter = SuffixDrafter(shared_routes=["chat"])
    sequence = running(1, [1])
    sequence.tokens += [7, 8, 9]
    drafter.observe(sequence, [7, 8, 9])
    drafter.release(1)
    assert drafter.propose([running(2, [7, 8])], [1])[0].tokens == (9,)


def test_what_a_preempted_request_said_is_kept_once() -> None:
    drafter = SuffixDrafter(shared_routes=["chat"])
    sequence = running(1, [1])
    for output in ([7, 8, 9], [7, 8, 4]):
        sequence.tokens += output
        drafter.observe(sequence, output)
        drafter.release(1)
    shared = drafter.shared["chat"].halves[-1]
    assert shared.tokens == 6
    state, length = ROOT, 0
    for token in (7, 8):
        state, length = shared.advance(state, length, token)
    assert (length, shared.counts[state]) == (2, 2)


def test_a_running_request_sees_what_others_finish_meanwhile() -> None:
    drafter = SuffixDrafter(shared_routes=["chat"])
    sequence = running(1, [1, 7, 8])
    assert drafter.propose([sequence], [4]) == [SILENT]
    finish(drafter, 2, [2], [7, 8, 9, 10, 11])
    sequence.tokens.append(9)
    assert drafter.propose([sequence], [4])[0].tokens == (10, 11)


def test_the_oldest_outputs_of_a_route_are_forgotten_and_memory_stays_bounded() -> None:
    shared = SharedText(40)
    for number in range(30):
        shared.add([number, 100 + number, 200 + number])
        assert shared.tokens <= 40
    known = {token for automaton in shared.halves for token in automaton.transitions[ROOT]}
    assert known & set(range(30)) == set(range(30 - shared.tokens // 3, 30))
    shared.add(list(range(500, 600)))
    assert shared.tokens <= 40
    assert 599 in shared.halves[-1].transitions[ROOT]


def test_a_released_sequence_starts_again_from_nothing_and_unknown_keys_are_ignored() -> None:
    drafter = SuffixDrafter()
    drafter.propose([running(1, [1, 2, 3, 1, 2])], [1])
    drafter.release(1)
    drafter.release(99)
    assert drafter.propose([running(1, [1, 2, 5, 1, 2])], [1])[0].tokens == (5,)


def test_memory_stays_under_what_is_announced() -> None:
    source = random.Random(7)
    words = [[source.randrange(2000) for _ in range(source.randrange(1, 6))] for _ in range(300)]
    text = [token for _ in range(2000) for token in words[min(source.randrange(300), source.randrange(300))]]
    tracemalloc.start()
    automaton = built(text)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert automaton.tokens == len(text)
    assert held < len(text) * TOKEN_BYTES
    drafter = SuffixDrafter(context_tokens=len(text), shared_routes=["a", "b"], shared_tokens=100)
    assert drafter.memory_bytes == (len(text) + 200) * TOKEN_BYTES


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shared_tokens": 1}, "shared_tokens is 1; give at least 2"),
        ({"min_score": 0.0}, "min_score is 0.0; give more"),
    ],
)
def test_impossible_bounds_are_refused_in_one_sentence(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SuffixDrafter(**settings)  # type: ignore[arg-type]


def test_a_block_is_never_longer_than_asked() -> None:
    tokens, probs = continuation([match_of(built([1, 2] * 20))], 5, 0.01)
    assert len(tokens) == len(probs) == 5


def match_of(automaton: SuffixAutomaton) -> tuple[SuffixAutomaton, int, int]:
    state = automaton.links[automaton.last]
    return automaton, state, automaton.lengths[state]


def finish(drafter: SuffixDrafter, request_key: int, prompt: list[int], output: list[int]) -> None:
    """A request of the route `chat` that came and went."""
    sequence = running(request_key, prompt)
    drafter.propose([sequence], [4])
    sequence.tokens += output
    drafter.observe(sequence, output)
    drafter.release(request_key)


def running(request_key: int, tokens: list[int], route: str = "chat") -> RunningSequence:
    decision = Decision("d", Context("m", route, "en"), "suffix", 8, True, Reason.ENGINE_DEFAULT, 0)
    return RunningSequence(Submit(request_key, tuple(tokens), Sampling(), 100, (), (), decision, 0.0), 5000)

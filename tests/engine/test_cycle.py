"""One cycle at a time: what is asked, what is verified, what is counted."""

import dataclasses

import numpy as np
import pytest

from engine.cycle import run_cycle
from engine.drafter import SILENT, Proposal
from engine.faults import FAULT, NO_CHOICE
from engine.messages import Sampling
from engine.request import RunningSequence
from engine.rows import Rows
from kernels.sampling import Block, Chosen, DraftProbs, TokenLogprob
from policies.cycle_policy import INITIAL_CYCLE_POLICY, DraftCost, Outlook, PassCost, Survival
from policies.stats import BlockEnd, FinishReason
from policies.types import MAX_BLOCK_LENGTH
from tests.engine.one_cycle import FREE, UNPROVEN, Counting, Offering, cycle, running
from tests.engine.scripted import PIECES, decision, submit


def test_the_pass_has_each_last_token_and_its_drafts_at_their_positions() -> None:
    sequences = [running(key=3), running(decision(), key=5), running(key=9)]
    result, target, _ = cycle(sequences, Proposal((1, 7), 1), Proposal((1,), 1))
    assert target.parts == [Rows((0, 1, 7), 2, [3], 3), Rows((0,), 2, [5], 1), Rows((0, 1), 2, [9], 2)]
    assert [(block.first_row, block.drafts, block.position) for block in target.blocks] == [
        (0, (1, 7), 1),
        (3, (), 1),
        (4, (1,), 1),
    ]
    assert (result.tokens, result.kv_tokens) == (6, 9)
    assert [emission.token_ids for emission in result.emissions] == [(1, 2), (1,), (1, 2)]
    assert [stats.end for stats in result.sequences] == [BlockEnd.REJECTED, BlockEnd.PLAIN, BlockEnd.FULL]


@pytest.mark.parametrize(
    ("stop", "emitted", "accepted", "end"),
    [
        (1, 1, 1, BlockEnd.CENSORED),
        (2, 2, 2, BlockEnd.CENSORED),
        (3, 3, 2, BlockEnd.REJECTED),
        (4, 3, 2, BlockEnd.REJECTED),
    ],
)
def test_a_block_that_an_end_cuts_counts_the_drafts_up_to_the_cut(
    stop: int, emitted: int, accepted: int, end: BlockEnd
) -> None:
    sequence = running(stop_token_ids=(stop,))
    result, _, _ = cycle([sequence], Proposal((1, 2, 9), 1))
    stats = result.sequences[0]
    assert (stats.emitted, stats.accepted, stats.end, stats.verified) == (emitted, accepted, end, 3)
    assert sequence.tokens[2:] == list(range(emitted + 1))
    assert result.emissions[0].finish is (FinishReason.STOP if stop <= 3 else None)


def test_the_bonus_token_may_be_the_end_and_the_block_is_still_full() -> None:
    result, _, _ = cycle([running(stop_token_ids=(3,))], Proposal((1, 2), 1))
    assert (result.sequences[0].end, result.sequences[0].emitted) == (BlockEnd.FULL, 3)
    assert result.emissions[0].finish is FinishReason.STOP


@pytest.mark.parametrize(
    ("cap", "max_tokens", "asked"), [(8, 100, 8), (99, 100, MAX_BLOCK_LENGTH), (8, 5, 3), (8, 3, 1)]
)
def test_the_block_asked_for_is_the_smallest_of_cap_limit_and_room(cap: int, max_tokens: int, asked: int) -> None:
    _, _, drafter = cycle([running(decision("ngram", cap), max_tokens=max_tokens)], SILENT)
    assert drafter.asked == [asked]


@pytest.mark.parametrize(("cap", "max_tokens"), [(0, 100), (-3, 100), (8, 2)])
def test_no_drafter_is_asked_for_an_empty_block(cap: int, max_tokens: int) -> None:
    result, _, drafter = cycle([running(decision("ngram", cap), max_tokens=max_tokens)])
    assert drafter.asked == []
    assert result.draft_seconds == {}
    assert result.sequences[0].requested == 0


def test_survivals_are_looked_up_by_drafter_route_language_and_confidence_then_by_drafter() -> None:
    policy = dataclasses.replace(
        INITIAL_CYCLE_POLICY,
        cost=FREE,
        survivals={("ngram", "chat", "en"): Survival(((), (0.5,), (0.5, 0.4)))},
        default_survivals={"ngram": Survival(((0.9, 0.9, 0.9),))},
    )
    known, confident, elsewhere = (
        running(decision("ngram", 8, forced=False, route=route), key=key)
        for key, route in enumerate(("chat", "chat", "story"))
    )
    proposals = [Proposal((9,) * 5, 1), Proposal((9,) * 5, 7), Proposal((9,) * 5, 3)]
    result, _, _ = cycle([known, confident, elsewhere], *proposals, policy=policy)
    assert [stats.verified for stats in result.sequences] == [1, 2, 3]
    assert [stats.proposed for stats in result.sequences] == [5, 5, 5]
    assert [stats.confidence for stats in result.sequences] == [1, 7, 3]


def test_a_drafter_is_asked_where_its_outlook_in_the_context_or_else_everywhere_pays_for_drafting() -> None:
    good, poor = Outlook((0.9, 0.8, 0.7), (1.0, 1.0, 1.0)), Outlook((0.1, 0.0, 0.0), (1.0, 1.0, 1.0))
    policy = dataclasses.replace(
        INITIAL_CYCLE_POLICY,
        cost=FREE,
        draft_costs={"ngram": DraftCost(0.2, 0.0, 0.05, 0.0)},
        outlooks={("ngram", "chat", "en"): good},
        default_outlooks={"ngram": poor},
    )
    asked = []
    for route in ("chat", "story"):
        sequence = running(decision("ngram", 3, forced=False, route=route))
        result, drafter = cycle([sequence], SILENT, policy=policy)[::2]
        assert drafter.asked == [one.requested for one in result.sequences if one.requested]
        asked.append(result.sequences[0].requested)
    assert asked == [3, 0]


def test_an_objective_of_the_route_bounds_what_its_neighbours_verify() -> None:
    steep = PassCost((1, 2, 32), (1.0, 1.0, 4.0), 0.0, 0.0)
    policy = dataclasses.replace(
        INITIAL_CYCLE_POLICY,
        cost=steep,
        max_neighbour_slowdown=5.0,
        default_survivals={"ngram": Survival(((), (0.99,) * 8))},
    )
    verified = []
    for limits in ({}, {"story": 1.25}, {"chat": 1.25}):
        eager = running(decision("ngram", 8, forced=False), key=1)
        neighbour = running(decision(route="story"), key=2)
        result, _, _ = cycle(
            [eager, neighbour], Proposal((9,) * 8, 1), policy=dataclasses.replace(policy, tpot_limits=limits)
        )
        verified.append(result.sequences[0].verified)
    assert verified == [8, 2, 8]


def test_without_any_survival_only_forced_decisions_are_verified() -> None:
    policy = dataclasses.replace(INITIAL_CYCLE_POLICY, cost=FREE)
    sequences = [running(decision("ngram", 8, forced=forced), key=key) for key, forced in enumerate((True, False))]
    result, _, _ = cycle(sequences, Proposal((1, 2), 1), Proposal((1, 2), 1), policy=policy)
    assert [stats.verified for stats in result.sequences] == [2, 0]


def test_a_silent_drafter_counts_as_asked_and_not_as_proposing() -> None:
    result, _, _ = cycle([running()], SILENT)
    stats = result.sequences[0]
    assert (stats.requested, stats.proposed, stats.verified, stats.confidence) == (8, 0, 0, 0)
    assert (stats.end, stats.emitted) == (BlockEnd.PLAIN, 1)


def test_a_shadow_is_scored_by_the_tokens_that_come_and_waits_for_the_bonus() -> None:
    sequence = running(decision("ngram", 8, forced=False))
    results = [cycle([sequence], proposal, policy=UNPROVEN)[0] for proposal in (Proposal((1, 2), 4), SILENT, SILENT)]
    assert [len(result.shadows) for result in results] == [0, 0, 1]
    shadow = results[-1].shadows[0]
    assert (shadow.requested, shadow.proposed, shadow.matched, shadow.confidence) == (8, 2, 2, 4)
    assert shadow.emitted == 3, "since it started"
    assert not shadow.censored


def test_a_shadow_is_decided_at_its_first_wrong_token_and_the_next_one_begins_after() -> None:
    sequence = running(decision("ngram", 8, forced=False))
    first = cycle([sequence], Proposal((1, 9, 3), 1), policy=UNPROVEN)[0]
    second = cycle([sequence], Proposal((5, 5), 1), policy=UNPROVEN)[0]
    third = cycle([sequence], Proposal((7,), 2), policy=UNPROVEN)[0]
    assert [result.shadows for result in (first,)] == [()]
    assert [(shadow.proposed, shadow.matched, shadow.emitted) for shadow in second.shadows] == [(3, 1, 2)]
    assert [(shadow.proposed, shadow.matched, shadow.emitted) for shadow in third.shadows] == [(1, 0, 1)]


def test_the_end_of_a_sequence_censors_its_shadow() -> None:
    sequence = running(decision("ngram", 8, forced=False), stop_token_ids=(2,))
    cycle([sequence], Proposal((1, 2, 3), 1), policy=UNPROVEN)
    shadow = cycle([sequence], SILENT, policy=UNPROVEN)[0].shadows[0]
    assert (shadow.matched, shadow.censored) == (2, True)


def test_draft_and_verify_seconds_are_shared_by_the_sequences_of_the_cycle() -> None:
    sequences = [running(key=1), running(decision(), key=2)]
    result, _, _ = cycle(sequences, Proposal((1,), 1))
    assert set(result.draft_seconds) == {"ngram"}
    for sequence in sequences:
        assert sequence.draft_seconds == pytest.approx(result.draft_seconds["ngram"] / 2)
        assert sequence.verify_seconds == pytest.approx(result.verify_seconds / 2)
    assert result.cycle_seconds >= result.verify_seconds + result.draft_seconds["ngram"]


def test_penalties_see_the_prompt_and_the_output_before_the_block() -> None:
    message = submit(1, (50, 51, 50), sampling=Sampling(repetition_penalty=1.2), chosen=decision("ngram", 8))
    sequence = RunningSequence(message, 1000)
    sequence.append([0], list(PIECES))
    counts_at_the_pass: list[dict[int, int]] = []

    class Reading(Counting):
        def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
            assert blocks[0].output_counts is not None
            counts_at_the_pass.append(dict(blocks[0].output_counts))
            assert blocks[0].prompt_tokens == {50, 51}
            return super().verify(parts, blocks)

    for _ in range(2):
        drafter = Offering(Proposal((sequence.output_length, 77), 1))
        run_cycle(Reading(), {"ngram": drafter}, [sequence], [8], INITIAL_CYCLE_POLICY, [])
    assert counts_at_the_pass == [{0: 1}, {0: 1, 1: 1, 2: 1}]


def test_every_drafter_observes_what_every_sequence_emitted() -> None:
    sequences = [running(key=1), running(decision(), key=2), running(key=3, stop_token_ids=(1,))]
    target, drafters = Counting(), {"ngram": Offering(Proposal((1, 7), 1), SILENT), "other": Offering()}
    run_cycle(target, drafters, sequences, [8, 0, 8], INITIAL_CYCLE_POLICY, [])
    for drafter in drafters.values():
        assert drafter.observed == [(1, (1, 2)), (2, (1,)), (3, (1,))]


def test_the_distributions_of_the_verified_drafts_reach_the_verifier() -> None:
    policy = dataclasses.replace(
        INITIAL_CYCLE_POLICY, cost=FREE, default_survivals={"ngram": Survival(((), (0.9, 0.9)))}
    )
    drawn = DraftProbs(np.array([1, 4]), np.array([0.75, 0.25], np.float32))
    sequences = [running(decision("ngram", 8, forced=False), key=1), running(key=2)]
    _, target, _ = cycle(sequences, Proposal((1, 4, 4), 1, (drawn, None, drawn)), Proposal((1,), 1), policy=policy)
    assert [(block.drafts, block.draft_probs) for block in target.blocks] == [((1, 4), (drawn, None)), ((1,), None)]


def test_a_block_has_the_tokens_before_it_that_bad_words_and_watermarks_look_at() -> None:
    sampling = Sampling(bad_words=((5, 6, 7), (9,)))
    sequence = RunningSequence(submit(1, (50, 51), sampling=sampling), 1000)
    sequence.blocks = [1]
    sequence.append([0], [])
    _, target, _ = cycle([sequence, running(decision())])
    assert [block.tail for block in target.blocks] == [(51, 0), ()]


class Logging(Counting):
    """With a log-probability for each token."""

    def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
        assert [block.top_logprobs for block in blocks] == [2]
        return [
            Chosen(chosen.tokens, tuple(TokenLogprob(-float(token), ()) for token in chosen.tokens))
            for chosen in super().verify(parts, blocks)
        ]


def test_report_32_no_logprob_passes_the_end_of_a_sequence_in_the_middle_of_a_block() -> None:
    message = submit(1, (50, 51), stop_token_ids=(2,), chosen=decision("ngram", 8))
    sequence = RunningSequence(dataclasses.replace(message, top_logprobs=2), 1000)
    sequence.append([0], [])
    result = run_cycle(
        Logging(), {"ngram": Offering(Proposal((1, 2, 3), 1))}, [sequence], [8], INITIAL_CYCLE_POLICY, []
    )
    assert result.emissions[0].token_ids == (1, 2)
    assert [logprob.logprob for logprob in result.emissions[0].logprobs] == [-1.0, -2.0]


BREAKING, SPEECHLESS = 7654321, 7654322


class Faulty(Counting):
    """A pass raises while one sequence, known by its last token, is in it; another has no finite logits."""

    def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
        for part in parts:
            if part.token_ids[0] == BREAKING:
                raise ZeroDivisionError(f"token {part.token_ids[0]}")
        return [
            Chosen(()) if part.token_ids[0] == SPEECHLESS else chosen
            for part, chosen in zip(parts, super().verify(parts, blocks), strict=True)
        ]


def test_one_sequence_that_makes_the_pass_fail_and_one_without_numbers_fail_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sequences = [running(decision(), key=key) for key in (1, 2, 3, 4)]
    sequences[1].tokens[-1] = BREAKING
    sequences[2].tokens[-1] = SPEECHLESS
    result = run_cycle(Faulty(), {}, sequences, [0] * 4, INITIAL_CYCLE_POLICY, [])
    assert [(emission.sequence.key, emission.token_ids) for emission in result.emissions] == [(1, (1,)), (4, (1,))]
    assert [(sequence.key, sequence.failure) for sequence in result.failed] == [(2, FAULT), (3, NO_CHOICE)]
    assert [stats.request_key for stats in result.sequences] == [1, 4]
    assert result.tokens == 2
    assert "ZeroDivisionError" in caplog.text
    assert str(BREAKING) not in caplog.text, "the log tells where, and nothing of the text"

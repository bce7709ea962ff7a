"""Copied proposals in a cycle: who is asked, whose drafts are verified, what is counted, and what it costs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from engine.cycle import CycleResult, run_cycle
from engine.drafter import NOT_READY, SILENT, Proposal
from engine.planning import CyclePlan, plan_cycle
from engine.request import RunningSequence
from kernels.sampling import DraftProbs, Verifier
from policies.cycle_policy import INITIAL_CYCLE_POLICY, Copier, CyclePolicy, DraftCost, Knobs, Outlook, Survival, Window
from policies.types import Decision
from tests.engine.one_cycle import FREE, Counting, Offering, cycle_with, running
from tests.engine.scripted import PIECES, decision

GIVEN = Outlook((0.6, 0.3, 0.1), (1.0, 1.0, 1.0))
"""Of the drafter that sequences are given: one token of its block is kept."""


def known(*survival: float) -> Outlook:
    return Outlook(survival, (1.0,) * len(survival))


SURE = (0.95, 0.9, 0.85, 0.8)
COPIER = Copier("ngram", most_load=4, outlooks=(Outlook((), ()), known(0.3, 0.1), known(*SURE)))
"""In bucket 1 it promises less than the given drafter, from bucket 2 on more."""

POLICY = replace(
    INITIAL_CYCLE_POLICY,
    cost=FREE,
    draft_costs={"learned": DraftCost(0.01, 0.0, 0.01, 0.0)},
    outlooks={("learned", "chat", "en"): GIVEN},
    default_survivals={"learned": Survival(((), (0.6, 0.3, 0.1)))},
    copiers={("chat", "en"): COPIER},
)


def learned(key: int = 1, *, route: str = "chat", cap: int = 8) -> RunningSequence:
    return running(decision("learned", cap, forced=False, route=route), key=key)


def both(copied: Sequence[Proposal], given: Sequence[Proposal]) -> dict[str, Offering]:
    return {"ngram": Offering(*copied), "learned": Offering(*given)}


def blocks(result: CycleResult) -> list[tuple[str, int, int, int, int, int]]:
    return [
        (one.drafter, one.requested, one.proposed, one.verified, one.accepted, one.confidence)
        for one in result.sequences
    ]


def shadows(result: CycleResult) -> list[tuple[str, int, int, int, int]]:
    return [(one.drafter, one.requested, one.proposed, one.matched, one.confidence) for one in result.shadows]


def test_a_copied_proposal_that_promises_more_is_verified_as_the_copiers_and_the_other_drafter_is_not_asked() -> None:
    drafters = both([Proposal((1, 2, 9), 2)], [])
    result, target = cycle_with(drafters, [learned()], POLICY)
    assert (drafters["ngram"].asked, drafters["learned"].asked) == ([8], [])
    assert [block.drafts for block in target.blocks] == [(1, 2, 9)]
    assert blocks(result) == [("ngram", 8, 3, 3, 2, 2)]
    assert shadows(result) == []
    assert set(result.draft_seconds) == {"ngram"}
    assert result.draft_seconds["ngram"] > 0.0
    assert result.copying_seconds == 0.0


def test_one_that_promises_less_is_a_shadow_of_the_copier_and_the_block_is_that_of_the_drafter_that_was_given() -> None:
    sequence = learned()
    drafters = both([Proposal((1, 9), 1), Proposal((7,), 1)], [Proposal((1, 9), 1), SILENT])
    result, target = cycle_with(drafters, [sequence], POLICY)
    assert [len(block.drafts) for block in target.blocks] == [2]
    assert blocks(result) == [("learned", 3, 2, 2, 1, 1)]
    assert shadows(result) == [("ngram", 8, 2, 1, 1)]
    assert set(result.draft_seconds) == {"learned"}
    assert result.copying_seconds > 0.0
    assert sequence.draft_seconds == pytest.approx(result.draft_seconds["learned"] + result.copying_seconds)
    assert result.cycle_seconds > result.verify_seconds + sequence.draft_seconds


def test_every_proposal_is_counted_once_as_a_block_or_as_a_shadow_silent_ones_too() -> None:
    lots = np.random.default_rng(5)
    sequence = running(decision("learned", 8, forced=False), max_tokens=900)
    told, taken, under_way, decided_at = [], [], [], 1
    while sequence.remaining > 20:
        position = sequence.output_length
        right, length, bucket = (int(lots.integers(high)) for high in (5, 6, 3))
        tokens = tuple(position + place if place < right else 9999 for place in range(length))
        proposal = Proposal(tokens, max(bucket, 1)) if tokens else SILENT
        result, _ = cycle_with(both([proposal], [SILENT]), [sequence], POLICY)
        (block,) = result.sequences
        if block.drafter == "ngram":
            taken.append((block.requested, block.proposed, block.accepted, block.confidence))
            assert taken[-1] == (8, len(tokens), min(right, len(tokens)), proposal.confidence)
        elif position >= decided_at:
            matched = min(right, len(tokens))
            under_way.append(("ngram", 8, len(tokens), matched, proposal.confidence))
            decided_at = position + matched + 1
        told += shadows(result)
    assert told == under_way[: len(told)]
    assert len(under_way) - len(told) <= 1, "the last one may be under way"
    assert len(taken) > 20
    assert len(told) > 20
    assert any(proposed == 0 for _, _, proposed, _, _ in told)


def test_what_is_taken_and_not_verified_is_a_shadow_too() -> None:
    dear = replace(FREE, token_knots=(1, 2), knot_seconds=(1.0, 1.2))
    policy = replace(POLICY, cost=dear)
    neighbour = running(decision(), key=2)
    neighbour.ledger.enter(0.0, 0.0, taken=0.5)
    result, target = cycle_with(both([Proposal((9,), 2)], []), [learned(1), neighbour], policy)
    assert [block.drafts for block in target.blocks] == [(), ()]
    assert blocks(result)[0] == ("ngram", 8, 1, 0, 0, 2)
    assert shadows(result) == [("ngram", 8, 1, 0, 2)]


def of_load(load: int) -> tuple[CyclePolicy, list[RunningSequence]]:
    return POLICY, [learned(key) for key in range(1, load + 1)]


def of_policy(**changes: object) -> tuple[CyclePolicy, list[RunningSequence]]:
    return replace(POLICY, **changes), [learned()]  # type: ignore[arg-type]


def of_decision(chosen: Decision) -> tuple[CyclePolicy, list[RunningSequence]]:
    """Beside one that may speculate, and has no copier."""
    return POLICY, [running(chosen), learned(2, route="story")]


NOT_ASKED: dict[str, Callable[[], tuple[CyclePolicy, list[RunningSequence]]]] = {
    "killed": lambda: of_policy(kill=True),
    "a killed route": lambda: of_policy(killed_routes=frozenset({"chat"})),
    "a plain window": lambda: of_policy(window=Window(1, plain=True)),
    "hold": lambda: of_policy(hold=True),
    "no cost": lambda: of_policy(cost=None),
    "other contexts": lambda: of_policy(copiers={("story", "en"): COPIER, ("chat", "da"): COPIER}),
    "not loaded": lambda: of_policy(copiers={("chat", "en"): replace(COPIER, drafter="unloaded")}),
    "pinned": lambda: of_decision(decision("learned", 8)),
    "pinned to the copier": lambda: of_decision(decision("ngram", 8)),
    "a cap of 0": lambda: of_decision(decision("learned", 0, forced=False)),
    "plain": lambda: of_decision(decision("none", 8, forced=False)),
    "too many sequences": lambda: of_load(5),
}


@pytest.mark.parametrize("case", NOT_ASKED.values(), ids=NOT_ASKED)
def test_no_copier_is_asked_about(case: Callable[[], tuple[CyclePolicy, list[RunningSequence]]]) -> None:
    policy, sequences = case()
    drafters = both([SILENT], [SILENT] * 9)
    planned = plan_cycle(drafters, sequences, policy)
    assert (dict(planned.copies.of), dict(planned.copies.seconds)) == ({}, {})
    assert drafters["ngram"].asked == []


def test_the_copier_itself_is_asked_in_its_turn_where_it_is_the_drafter_that_was_given() -> None:
    policy = replace(POLICY, default_survivals={"ngram": Survival(((), SURE, SURE))}, draft_costs={})
    drafters = both([Proposal((1, 2), 2)], [])
    result, _ = cycle_with(drafters, [running(decision("ngram", 8, forced=False))], policy)
    assert drafters["ngram"].asked == [8]
    assert blocks(result) == [("ngram", 8, 2, 2, 2, 2)]


def test_at_its_highest_load_the_copier_is_asked_once_about_all_that_may_have_more_from_it() -> None:
    pinned = running(decision("learned", 3), key=4)
    drafters = both([Proposal((1, 2), 2), SILENT, Proposal((1, 2), 2)], [SILENT, SILENT])
    result, _ = cycle_with(drafters, [learned(1), learned(2), learned(3), pinned], POLICY)
    assert drafters["ngram"].asked == [8, 8, 8]
    assert [one.drafter for one in result.sequences] == ["ngram", "learned", "ngram", "learned"]
    assert drafters["learned"].asked == [3, 3], "of the sequence for which nothing was copied, and the pinned one"


@pytest.mark.parametrize("raises", [True, False])
def test_a_copier_that_fails_or_cannot_look_costs_nothing_but_the_copy(
    raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Offering):
        def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
            if raises:
                raise ZeroDivisionError
            return [NOT_READY] * len(sequences)

    result, _ = cycle_with({"ngram": Failing(), "learned": Offering(Proposal((1,), 1))}, [learned()], POLICY)
    assert blocks(result) == [("learned", 3, 1, 1, 1, 1)]
    assert result.shadows == ()
    assert ("ZeroDivisionError" in caplog.text) == raises


@pytest.mark.parametrize("verifier", Verifier)
def test_whether_it_is_taken_rests_on_how_sure_it_is_and_not_on_what_it_says(verifier: Verifier) -> None:
    taken = []
    for tokens, bucket in (((1, 2), 2), ((70, 71), 2), ((1, 2), 1), ((70, 71), 1)):
        sequence = learned()
        sequence.sampling = replace(sequence.sampling, temperature=1.0, verifier=verifier)
        planned = plan_cycle(both([Proposal(tokens, bucket)], []), [sequence], POLICY)
        taken.append(planned.copies.of[1].taken)
    assert taken == [True, True, False, False]


def test_the_block_of_the_other_drafter_keeps_its_draft_probs_and_a_copied_one_has_none() -> None:
    drawn = DraftProbs(np.array([1, 4]), np.array([0.75, 0.25], np.float32))
    drafters = both([Proposal((1, 2), 2), Proposal((1,), 1)], [Proposal((1,), 1, (drawn,))])
    _, target = cycle_with(drafters, [learned(1), learned(2)], POLICY)
    assert [block.draft_probs for block in target.blocks] == [None, (drawn,)]


def test_the_copier_reads_the_knobs_of_the_cycle_at_hand() -> None:
    read: list[int | None] = []

    class Reading(Offering):
        def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
            read.extend(sequence.knobs.ngram_min_match for sequence in sequences)
            return [SILENT] * len(sequences)

    knobs = {"chat": Knobs(ngram_min_match=5)}
    plan_cycle({"ngram": Reading(), "learned": Offering()}, [learned()], replace(POLICY, knobs=knobs))
    assert read == [5]


@pytest.mark.parametrize(("bucket", "beside"), [(2, ["learned"]), (1, [])])
def test_a_drafter_that_is_asked_in_a_cycle_does_not_propose_beside_the_same_request_again(
    bucket: int, beside: list[str]
) -> None:
    named = running(decision("learned", 8, forced=False, shadows=("ngram", "learned")), key=1)
    drafters = both([Proposal((1, 2), bucket)], [Proposal((9,), 1)])
    result, _ = cycle_with(drafters, [named], POLICY)
    assert drafters["ngram"].asked == [8]
    assert [shadow.drafter for shadow in result.shadows] == beside


class Lasting(Offering):
    """On a clock that nothing moves but its calls, by a second each."""

    now = 0.0

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        Lasting.now += 1.0
        return super().propose(sequences, lengths)


@pytest.mark.parametrize(
    ("buckets", "drafting", "copying"),
    [
        ((2, 1, 1, 2), {"ngram": 0.5, "learned": 1.0}, 0.5),
        ((1, 1, 1, 1), {"learned": 1.0}, 1.0),
        ((2, 2, 2, 2), {"ngram": 1.0}, 0.0),
    ],
)
def test_a_call_of_the_copier_is_shared_by_what_is_taken_of_it_and_what_is_not_and_is_part_of_the_cycle(
    buckets: Sequence[int], drafting: Mapping[str, float], copying: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: Lasting.now)
    sequences = [learned(key) for key in (1, 2, 3, 4)]
    drafters = {
        "ngram": Lasting(*(Proposal((1, 2), bucket) for bucket in buckets)),
        "learned": Lasting(*[SILENT] * buckets.count(1)),
    }
    result, _ = cycle_with(drafters, sequences, POLICY)
    assert result.draft_seconds == drafting
    assert result.copying_seconds == copying
    assert result.cycle_seconds == sum(drafting.values()) + copying
    assert [sequence.draft_seconds for sequence in sequences] == [result.cycle_seconds / 4] * 4


@pytest.mark.parametrize("buckets", [(2, 2), (2, 1), (1, 1)])
def test_the_ledger_has_one_call_of_the_copier_over_all_that_it_was_asked(buckets: tuple[int, int]) -> None:
    price = DraftCost(call_seconds=0.02, sequence_seconds=0.004, step_seconds=0.0, row_seconds=0.001)
    policy = replace(POLICY, draft_costs={"ngram": price})
    sequences = [learned(1), learned(2)]
    copied = [Proposal((1, 2), buckets[0]), Proposal((9, 9), buckets[1])]
    result, _ = cycle_with(both(copied, [SILENT, SILENT]), sequences, policy)
    assert [one.drafter for one in result.sequences] == [("", "learned", "ngram")[bucket] for bucket in buckets]
    spent = 0.02 + 2 * 0.004 + 4 * 0.001
    assert sequences[1].ledger.taken == pytest.approx(1.0 + spent)


def test_where_blocks_are_short_no_more_is_verified_than_there_is_room_for() -> None:
    sequence = learned()
    drafters = both([Proposal((1, 2, 3, 4), 2)], [])
    planned = plan_cycle(drafters, [sequence], POLICY)
    assert planned.requested == (4,)
    target = Counting()
    result = run_cycle(target, drafters, [sequence], [2], POLICY, list(PIECES), planned=planned)
    assert [block.drafts for block in target.blocks] == [(1, 2)]
    assert blocks(result) == [("ngram", 8, 4, 2, 2, 2)]


def test_a_plan_without_copies_names_what_it_requests() -> None:
    sequence = learned()
    assert CyclePlan((3,)).asked(sequence, 3) == ("learned",)
    assert CyclePlan((0,)).asked(sequence, 0) == ()

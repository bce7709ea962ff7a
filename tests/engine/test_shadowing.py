"""Drafters that propose beside requests: what is asked, what is scored, what it costs, and when they keep silent."""

import dataclasses
import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest

from engine.cycle import CycleResult
from engine.drafter import NOT_READY, SILENT, Proposal
from engine.request import RunningSequence
from kernels.sampling import DraftProbs
from policies.cycle_policy import INITIAL_CYCLE_POLICY, CyclePolicy, DraftCost, Window
from policies.types import MAX_BLOCK_LENGTH
from tests.engine.one_cycle import UNPROVEN, Offering, cycle_with, running
from tests.engine.scripted import Rig, decision, submit

PRICE = DraftCost(call_seconds=0.5, sequence_seconds=0.0, step_seconds=0.0, row_seconds=0.0)


def told(result: CycleResult) -> list[tuple[str, int, int, int, int, bool]]:
    return [(s.drafter, s.requested, s.proposed, s.matched, s.confidence, s.censored) for s in result.shadows]


def test_several_drafters_propose_beside_one_request_and_each_is_scored_by_what_is_emitted() -> None:
    sequence = running(decision(shadows=("right", "wrong", "silent")))
    drafters = {
        "right": Offering(Proposal((1, 2), 3), Proposal((4,), 1)),
        "wrong": Offering(Proposal((9, 9), 2), Proposal((9,), 1), Proposal((9,), 4)),
        "silent": Offering(SILENT, SILENT, SILENT),
    }
    results = [cycle_with(drafters, [sequence])[0] for _ in range(3)]
    asked = [min(MAX_BLOCK_LENGTH, 16 - 3 - emitted) for emitted in range(3)]
    assert [told(result) for result in results] == [
        [("wrong", asked[0], 2, 0, 2, False), ("silent", asked[0], 0, 0, 0, False)],
        [("wrong", asked[1], 1, 0, 1, False), ("silent", asked[1], 0, 0, 0, False)],
        [
            ("right", asked[0], 2, 2, 3, False),
            ("wrong", asked[2], 1, 0, 4, False),
            ("silent", asked[2], 0, 0, 0, False),
        ],
    ]
    assert drafters["right"].asked == [asked[0]], "its block is still under way"
    assert sequence.tokens[2:] == [0, 1, 2, 3], "nothing of it was verified"


def test_a_shadow_ends_inside_a_block_of_the_drafter_that_serves() -> None:
    sequence = running(decision("ngram", 8, shadows=("other",)))
    drafters = {"ngram": Offering(Proposal((1, 2, 3), 1), SILENT), "other": Offering(Proposal((1, 9), 1), SILENT)}
    first, _ = cycle_with(drafters, [sequence])
    assert first.sequences[0].emitted == 4
    assert told(first) == [("other", 13, 2, 1, 1, False)]
    assert first.shadows[0].emitted == 4, "with what came in the same cycle after it was decided"
    cycle_with(drafters, [sequence])
    assert len(drafters["other"].asked) == 2, "the next one starts with the next block"


def test_a_drafter_that_could_not_look_at_the_text_is_not_scored_and_asked_again() -> None:
    sequence = running(decision(shadows=("learned",)))
    drafters = {"learned": Offering(NOT_READY, NOT_READY, Proposal((9,), 1))}
    assert [told(cycle_with(drafters, [sequence])[0]) for _ in range(3)] == [[], [], [("learned", 11, 1, 0, 1, False)]]


def test_a_proposal_that_was_drawn_with_noise_of_its_own_is_not_scored() -> None:
    drawn = DraftProbs(np.array([1, 4]), np.array([0.75, 0.25], np.float32))
    beside, own = running(decision(shadows=("learned",)), key=1), running(decision("ngram", 8, forced=False), key=2)
    drafters = {
        "learned": Offering(Proposal((9,), 1, (drawn,))),
        "ngram": Offering(Proposal((9,), 1, (drawn,))),
    }
    result, _ = cycle_with(drafters, [beside, own], UNPROVEN)
    assert drafters["ngram"].asked == [8]
    assert result.shadows == ()


def test_without_blocks_for_its_drafts_a_drafter_is_not_asked() -> None:
    sequence = running(decision(shadows=("learned",)))
    sequence.append(range(1, 14), [])
    assert len(sequence.tokens) == 16
    drafters = {"learned": Offering()}
    result, _ = cycle_with(drafters, [sequence])
    assert (drafters["learned"].asked, result.shadows, result.shadow_seconds) == ([], (), 0.0)


def test_what_shadows_take_is_told_apart_from_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    sequence = running(decision("ngram", 8, shadows=("other", "ngram")))
    drafters = {"ngram": Offering(Proposal((1,), 1)), "other": Offering(Proposal((9,), 1))}
    result, _ = cycle_with(drafters, [sequence])
    assert result.draft_seconds == {"ngram": 1.0}
    assert result.shadow_seconds == 1.0
    assert result.cycle_seconds > result.verify_seconds + 2.0
    assert sequence.draft_seconds == 1.0


def test_what_a_drafter_read_because_a_text_was_new_to_it_is_told_by_drafter() -> None:
    sequences = [running(decision("ngram", 4, shadows=("other",)), key=key) for key in (1, 2, 3)]
    read = (300, MAX_BLOCK_LENGTH + 1, 40)
    drafters = {
        "ngram": Offering(*(dataclasses.replace(SILENT, read=tokens) for tokens in read)),
        "other": Offering(*(dataclasses.replace(SILENT, read=tokens) for tokens in read)),
    }
    result, _ = cycle_with(drafters, sequences)
    assert result.startup_tokens == {"ngram": 340}, "what a cycle may have added is none, nor what shadows read"


def killed() -> CyclePolicy:
    return dataclasses.replace(UNPROVEN, kill=True)


def killed_route() -> CyclePolicy:
    return dataclasses.replace(UNPROVEN, killed_routes=frozenset({"chat"}))


def plain_window() -> CyclePolicy:
    return dataclasses.replace(UNPROVEN, window=Window(1, plain=True))


@pytest.mark.parametrize("policy", [killed, killed_route, plain_window])
def test_nothing_proposes_beside_a_request_that_is_kept_plain(policy: Callable[[], CyclePolicy]) -> None:
    drafters = {"other": Offering()}
    result, _ = cycle_with(drafters, [running(decision(shadows=("other",)))], policy())
    assert (drafters["other"].asked, result.shadows) == ([], ())


def test_while_the_budget_is_spent_only_forced_blocks_are_verified_and_only_cheap_drafters_propose_beside() -> None:
    policy = dataclasses.replace(
        UNPROVEN, hold=True, draft_costs={"dear": PRICE, "cheap": DraftCost(0.001, 0.0, 0.0, 0.0)}
    )
    forced = running(decision("cheap", 2, shadows=("dear",)), key=1)
    weighed = running(decision("cheap", 8, forced=False), key=2)
    drafters = {"cheap": Offering(Proposal((1, 2), 1), Proposal((1, 9), 2)), "dear": Offering()}
    result, _ = cycle_with(drafters, [forced, weighed], policy)
    assert [(one.requested, one.verified) for one in result.sequences] == [(2, 2), (0, 0)]
    assert drafters["cheap"].asked == [2, 13], "it goes on being learned from"
    assert drafters["dear"].asked == []


def test_a_drafter_that_the_plan_does_not_ask_proposes_beside_its_own_request_if_it_is_named() -> None:
    # Others may wait for a shadow, which is nobody's own drafts.
    policy = dataclasses.replace(UNPROVEN, draft_costs={"ngram": PRICE}, max_neighbour_slowdown=3.0)
    named, unnamed = (
        running(decision("ngram", 8, forced=False, shadows=shadows), key=key)
        for key, shadows in ((1, ("ngram",)), (2, ()))
    )
    drafters = {"ngram": Offering(Proposal((9,), 1))}
    result, _ = cycle_with(drafters, [named, unnamed], policy)
    assert [one.requested for one in result.sequences] == [0, 0]
    assert [(shadow.request_key, shadow.requested) for shadow in result.shadows] == [(1, 13)]
    assert result.draft_seconds == {}


def test_a_drafter_that_fails_beside_a_request_costs_nothing_but_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Offering):
        def propose(self, sequences: object, lengths: object) -> list[Proposal]:
            raise ZeroDivisionError

    result, _ = cycle_with({"other": Failing()}, [running(decision(shadows=("other",)))])
    assert (result.shadows, result.sequences[0].emitted) == ((), 1)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(("blocks", "asked"), [(6, 16), (1, 12)])
def test_the_loop_finds_blocks_for_shadows_where_some_are_free(blocks: int, asked: int) -> None:
    rig = Rig(slots=1, blocks=blocks, context_limit=96 if blocks > 1 else 16)
    rig.step(submit(1, (1,) * 2, max_tokens=40, chosen=decision(shadows=("wrong",))))
    assert [offer.asked for offer in rig.watched["wrong"].offers] == [asked]
    rig.run()
    assert rig.loop.scheduler.preemptions == 0


def test_a_request_that_ends_takes_its_shadows_along_censored() -> None:
    sequence: RunningSequence = running(decision(shadows=("right",)), stop_token_ids=(1,))
    result, _ = cycle_with({"right": Offering(Proposal((1, 2, 3), 2))}, [sequence], INITIAL_CYCLE_POLICY)
    assert told(result) == [("right", 13, 3, 1, 2, True)]
    assert sequence.shadows == {}

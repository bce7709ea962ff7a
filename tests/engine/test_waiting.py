"""What cycles are entered into ledgers as, and that these keep a sequence's whole life within the bound."""

import dataclasses

import pytest

from engine.drafter import SILENT, Proposal
from engine.request import RunningSequence
from policies.cycle_policy import CyclePolicy, DraftCost, Outlook, PassCost, Survival
from policies.ledger import RESERVE
from tests.engine.one_cycle import UNPROVEN, Offering, cycle, cycle_with, running
from tests.engine.scripted import decision

COST = PassCost((1, 2, 32), (1.0, 1.0, 4.0), 0.0, 0.0)
"""Each row beyond the second takes 0.1 s; a plain cycle of one or two sequences takes 1 s."""
PRICED = DraftCost(call_seconds=0.2, sequence_seconds=0.01, step_seconds=0.05, row_seconds=0.001)
POLICY = dataclasses.replace(UNPROVEN, cost=COST, max_neighbour_slowdown=1.5)


def entered(sequence: RunningSequence) -> tuple[float, float, float]:
    return sequence.ledger.plain, sequence.ledger.alone, sequence.ledger.taken


def test_a_plain_cycle_takes_what_a_plain_cycle_takes() -> None:
    sequence = running(decision())
    for _ in range(3):
        cycle([sequence], policy=POLICY)
    assert entered(sequence) == pytest.approx((3.0, 3.0, 3.0))


def test_what_proposes_beside_a_request_is_entered_as_the_seconds_that_it_took() -> None:
    shadowed, neighbour = running(decision(shadows=("other",)), key=1), running(decision(), key=2)
    result, _ = cycle_with({"other": Offering(Proposal((9, 9, 9), 1))}, [shadowed, neighbour], POLICY)
    assert result.shadow_seconds > 0.0
    for sequence in (shadowed, neighbour):
        assert entered(sequence) == pytest.approx((1.0, 1.0, 1.0 + result.shadow_seconds))


def test_what_is_forced_is_in_the_cycle_that_the_others_are_compared_with() -> None:
    policy = dataclasses.replace(POLICY, draft_costs={"ngram": PRICED})
    forced, neighbour = running(decision("ngram", 4), key=1), running(decision(), key=2)
    cycle([forced, neighbour], Proposal((1, 2, 9, 9), 1), policy=policy)
    seconds = 1.0 + 4 * 0.1 + 0.2 + 0.01 + 4 * 0.05 + 4 * 0.001
    assert entered(forced) == pytest.approx((3 * seconds, seconds, seconds))
    assert entered(neighbour) == pytest.approx((seconds, seconds, seconds))


def test_what_a_sequence_drafts_for_itself_it_does_not_wait_for_others() -> None:
    outlook = Outlook((0.9,) * 8, (1.0,) * 8)
    policy = dataclasses.replace(
        eager(), max_neighbour_slowdown=3.0, draft_costs={"ngram": PRICED}, default_outlooks={"ngram": outlook}
    )
    speculating, neighbour = running(decision("ngram", 8, forced=False), key=1), running(decision(), key=2)
    result, _, _ = cycle([speculating, neighbour], Proposal((9,) * 8, 1), policy=policy)
    verified = result.sequences[0].verified
    assert verified > 0
    seconds = 1.0 + verified * 0.1 + 0.2 + 0.01 + 8 * 0.051
    assert entered(speculating) == pytest.approx((1.0, seconds, seconds))
    assert entered(neighbour) == pytest.approx((1.0, 1.0, seconds))


def test_a_shadow_that_somebody_cannot_wait_for_is_not_cast() -> None:
    policy = dataclasses.replace(POLICY, draft_costs={"other": PRICED})
    for behind, asked in ((0.0, True), (0.6, False)):
        shadowed, neighbour = running(decision(shadows=("other",)), key=1), running(decision(), key=2)
        neighbour.ledger.enter(0.0, 0.0, behind)
        drafter = Offering(Proposal((9, 9, 9), 1))
        cycle_with({"other": drafter}, [shadowed, neighbour], policy)
        assert bool(drafter.asked) == asked


def eager() -> CyclePolicy:
    """Drafts are always worth their rows, were it not for the neighbours."""
    return dataclasses.replace(
        POLICY,
        max_neighbour_slowdown=1.10,
        default_survivals={"ngram": Survival(((), (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92)))},
    )


def test_no_sequence_that_never_gains_is_slowed_beyond_the_bound_over_its_whole_life() -> None:
    lucky, silent = running(decision("ngram", 8, forced=False), key=1), running(decision(), key=2)
    policy = eager()
    seconds = emitted = 0.0
    speculated = 0
    while lucky.remaining > 9:
        position = lucky.output_length
        result, target, _ = cycle([lucky, silent], Proposal(tuple(range(position, position + 8)), 1), policy=policy)
        rows = sum(len(part.token_ids) for part in target.parts)
        seconds += COST.seconds(rows, 2, 0)
        emitted += result.sequences[1].emitted
        speculated += result.sequences[0].verified > 0
        assert seconds <= (1.10 * emitted + RESERVE) * COST.seconds(2, 2, 0) + 1e-9
    assert speculated >= 3, "the bound is used, not avoided"


def test_a_sequence_that_gained_before_may_wait_in_its_silent_cycles() -> None:
    policy = eager()
    gained, fresh = (running(decision("ngram", 8, forced=False), key=key) for key in (1, 2))
    cycle([gained], Proposal(tuple(range(1, 9)), 1), policy=policy)
    assert gained.output_length > 2
    verified = []
    for waiting in (gained, fresh):
        neighbour = running(decision("ngram", 8, forced=False), key=3)
        result, _, _ = cycle([waiting, neighbour], SILENT, Proposal(tuple(range(1, 9)), 1), policy=policy)
        verified.append(result.sequences[1].verified)
    assert verified[0] > verified[1]

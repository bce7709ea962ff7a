"""What a step drafts and verifies, without vLLM."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cycle_policy import CyclePolicy, DraftCost, Window
from policies.stats import BlockEnd
from policies.types import PLAIN, Decision
from tests.tuner.fleet.vllm.plugin_examples import (
    FLAT,
    LAUNCH,
    NGRAM,
    STEEP,
    Bench,
    decision,
    orders,
    policy,
)
from tuner.fleet.vllm.plugin.following import NOTHING_HEARD, InForce
from tuner.fleet.vllm.plugin.seat import PARTLY, REFUSED, SILENT, WHOLE

ASYNCHRONOUS = replace(LAUNCH, drafter="draft_model", shows_drafts=False)
STEERED = orders(policy())
CAPS = st.integers(0, 5)
ROUTES = st.sampled_from(["chat", "code"])
DECISIONS = st.lists(
    st.builds(decision, CAPS, ROUTES, forced=st.booleans(), drafter=st.sampled_from([NGRAM, PLAIN])),
    min_size=1,
    max_size=6,
)
POLICIES = st.builds(
    policy,
    st.sampled_from([None, FLAT, STEEP]),
    kill=st.booleans(),
    hold=st.booleans(),
    window=st.sampled_from([Window(0, plain=False), Window(1, plain=True)]),
    killed_routes=st.frozensets(ROUTES),
    draft_costs=st.sampled_from([{}, {NGRAM: DraftCost(0.001, 0.0, 0.001, 0.0)}]),
)


@settings(max_examples=150, deadline=None)
@given(DECISIONS, st.lists(POLICIES, min_size=1, max_size=4), st.data())
def test_no_block_is_longer_than_its_decision_and_the_policy_allow(
    decisions: list[Decision], policies: list[CyclePolicy], data: st.DataObject
) -> None:
    """Whatever orders follow each other, and whatever drafters offer and the target keeps."""
    bench = Bench(*decisions)
    for each in policies:
        bench.step(orders(each), kept=lambda verified: data.draw(st.integers(0, verified)))
        for one, verified in zip(decisions, bench.verified, strict=True):
            held = each.plain_on(one.context.route) or (each.hold and not one.forced) or one.drafter == PLAIN
            assert verified <= (0 if held else one.cap)
            if each.cost is None and not one.forced:
                assert verified == 0
        assert bench.block_length in LAUNCH.block_lengths


@settings(max_examples=60, deadline=None)
@given(DECISIONS, st.data())
def test_what_is_reported_adds_up(decisions: list[Decision], data: st.DataObject) -> None:
    bench = Bench(*decisions)
    for number in range(1, 5):
        report = bench.step(STEERED, kept=lambda verified: data.draw(st.integers(0, verified)))
        cycle = report.stats()
        assert (cycle.cycle, cycle.policy_version, cycle.load) == (number, 3, len(decisions))
        assert cycle.tokens == len(decisions) + sum(bench.verified)
        assert cycle.cycle_seconds == pytest.approx(0.02)
        for one in cycle.sequences:
            assert one.requested >= one.proposed >= one.verified >= one.accepted >= 0
            assert one.emitted == one.accepted + 1
            assert (one.confidence == SILENT) == (one.proposed == 0)
            assert one.end is (
                BlockEnd.PLAIN
                if one.verified == 0
                else BlockEnd.FULL
                if one.accepted == one.verified
                else BlockEnd.REJECTED
            )


def test_each_request_of_a_step_has_a_block_length_of_its_own() -> None:
    bench = Bench(*[decision(cap, forced=True) for cap in (5, 2, 0)])
    bench.step(STEERED)
    assert bench.verified == [5, 2, 0]
    assert bench.block_length == 5


def test_nothing_is_drafted_where_nobody_may_have_it() -> None:
    bench = Bench(decision(0), decision(5, drafter=PLAIN))
    bench.step(STEERED)
    assert bench.block_length == 0


def test_a_kill_switch_cuts_the_drafts_that_are_at_hand() -> None:
    bench = Bench(decision(), decision(forced=True))
    bench.learn()
    bench.step(STEERED)  # makes the drafts that the next one finds
    bench.step(STEERED)
    assert bench.verified == [5, 5]
    bench.step(orders(policy(kill=True)))
    assert bench.verified == [0, 0]
    assert bench.block_length == 0


def test_a_plain_window_begins_and_ends_within_a_step_and_its_first_cycle_is_marked() -> None:
    bench = Bench(decision())
    bench.step(STEERED)
    first = bench.step(orders(policy(window=Window(1, plain=True)))).stats()
    again = bench.step(orders(policy(window=Window(1, plain=True)))).stats()
    assert (first.window.plain, first.first_after_switch, again.first_after_switch) == (True, True, False)
    assert (first.tokens, again.tokens) == (1, 1)
    back = bench.step(STEERED).stats()
    assert back.first_after_switch
    bench.step(STEERED)
    assert bench.verified == [5]


def test_a_route_whose_kill_switch_is_on_decodes_plain_beside_others() -> None:
    bench = Bench(decision(route="chat"), decision(route="code"))
    bench.learn()
    bench.step(STEERED)
    bench.step(orders(policy(killed_routes=frozenset({"chat"}))))
    assert bench.verified == [0, 5]


def test_what_does_not_pay_is_not_verified_and_is_compared_with_what_comes() -> None:
    """So that a context that is off goes on learning."""
    bench = Bench(decision())
    steep = orders(policy(STEEP))
    # The target's token is 7 in each of these steps: the first draft is right, the second is not.
    told = [bench.step(steep, [drafts]).shadows for drafts in ([7, 8, 9], [], [])]
    assert bench.verified == [0]
    assert [len(each) for each in told] == [0, 1, 0]
    (one,) = told[1]
    assert (one.requested, one.proposed, one.matched, one.emitted, one.censored) == (5, 3, 1, 2, False)
    assert bench.seats["r0"].confidence == PARTLY


@pytest.mark.parametrize(
    ("kept", "bucket"), [(0, REFUSED), (2, PARTLY), (5, WHOLE)], ids=["at once", "in part", "whole"]
)
def test_confidence_is_what_became_of_the_block_before(kept: int, bucket: int) -> None:
    bench = Bench(decision())
    first = bench.step(STEERED, kept=lambda verified: kept).stats()
    second = bench.step(STEERED).stats()
    assert first.sequences[0].confidence == REFUSED
    assert second.sequences[0].confidence == bucket


def test_the_curve_of_the_bucket_decides_how_much_is_verified() -> None:
    curves = ((), (0.01,) * 5, (0.5, 0.01, 0.01, 0.01, 0.01), (0.99,) * 5)
    survival = policy().default_survivals[NGRAM]
    mixed = policy(
        replace(FLAT, knot_seconds=(0.020, 0.220)), default_survivals={NGRAM: replace(survival, by_confidence=curves)}
    )
    bench = Bench(decision())
    seat = bench.seats["r0"]
    lengths = []
    for bucket in (REFUSED, PARTLY, WHOLE):
        seat.confidence = bucket
        bench.step(orders(mixed), [[1, 2, 3, 4, 5]])
        lengths.append(bench.verified[0])
    assert lengths == [0, 1, 5]


def test_a_proposal_shorter_than_requested_is_told_as_that() -> None:
    bench = Bench(decision(forced=True))
    one = bench.step(STEERED, [[1, 2]]).stats().sequences[0]
    assert (one.requested, one.proposed, one.verified) == (5, 2, 2)


def test_a_block_ends_before_the_last_token_that_is_asked_for() -> None:
    bench = Bench(decision(forced=True))
    bench.requests[0].max_tokens = 4  # one is written: three are left, and a block of two emits as many
    bench.step(STEERED)
    assert bench.verified == [2]


def test_a_client_may_have_fewer_whoever_steers() -> None:
    for in_force in (STEERED, NOTHING_HEARD):
        bench = Bench(decision(forced=True), most=2)
        bench.step(in_force)
        assert bench.verified == [2]


def test_without_orders_blocks_are_as_vllm_was_launched() -> None:
    bench = Bench(decision(cap=3), decision(cap=2, forced=True), decision(cap=0))
    bench.step(NOTHING_HEARD)
    assert bench.verified == [5, 2, 0]
    assert bench.block_length is None  # vLLM's own table


def test_what_was_switched_off_stays_off_without_orders() -> None:
    silent = InForce(replace(NOTHING_HEARD.policy, kill=True), None, steered=False)
    bench = Bench(decision())
    bench.step(silent)
    assert (bench.verified, bench.block_length) == ([0], 0)


def test_a_step_drafts_only_as_many_as_graphs_were_captured_for() -> None:
    launch = replace(LAUNCH, block_lengths=(0, 2, 5))
    bench = Bench(decision(3, forced=True), launch=launch)
    bench.step(STEERED)
    assert (bench.block_length, bench.verified) == (5, [3])


def test_a_drafter_that_takes_time_is_asked_only_where_it_pays() -> None:
    drafter = ASYNCHRONOUS.drafter
    for step_seconds, expected in ((0.0001, 5), (0.1, 0)):
        each = policy(
            default_survivals={drafter: policy().default_survivals[NGRAM]},
            default_outlooks={drafter: policy().default_outlooks[NGRAM]},
            draft_costs={drafter: DraftCost(0.0, 0.0, step_seconds, 0.0)},
        )
        bench = Bench(decision(drafter=drafter), launch=ASYNCHRONOUS)
        bench.step(orders(each))
        assert bench.block_length == expected


def test_what_a_drafter_takes_is_told_as_it_was_calibrated() -> None:
    drafter = ASYNCHRONOUS.drafter
    price = DraftCost(0.001, 0.0, 0.001, 0.0)
    bench = Bench(decision(forced=True, drafter=drafter), launch=ASYNCHRONOUS)
    cycle = bench.step(orders(policy(draft_costs={drafter: price}))).stats()
    assert cycle.draft_seconds == {drafter: pytest.approx(0.006)}
    assert cycle.verify_seconds == pytest.approx(0.014)


def test_a_step_that_reads_prompts_says_nothing_of_the_time_that_decoding_takes() -> None:
    bench = Bench(decision())
    cycle = bench.step(STEERED, prompts=64, seconds=0.1).stats()
    assert (cycle.cycle_seconds, cycle.verify_seconds, cycle.prefill_tokens) == (0.0, 0.0, 64)
    assert cycle.prefill_seconds == pytest.approx(0.08, abs=0.005)
    assert cycle.sequences[0].emitted == 6
    assert bench.step(STEERED).stats().cycle_seconds == pytest.approx(0.02)


def test_time_in_which_vllm_had_nothing_to_do_is_in_no_cycle() -> None:
    bench = Bench(decision())
    bench.step(STEERED)
    bench.steering.pause()
    bench.now += 60.0
    assert bench.step(STEERED).stats().cycle_seconds == pytest.approx(0.02)


def test_forced_drafts_are_verified_whole_beside_those_that_are_weighed() -> None:
    bench = Bench(decision(4, forced=True), decision())
    bench.step(orders(policy(STEEP)))
    assert bench.verified == [4, 0]


def test_drafts_beside_a_plain_request_are_made_and_only_compared() -> None:
    bench = Bench(decision(0, drafter=PLAIN, shadows=(NGRAM,)))
    bench.step(STEERED, [[]])
    assert (bench.block_length, bench.verified) == (5, [0])
    report = bench.step(STEERED, [[7, 7, 7, 7, 7]])
    assert bench.verified == [0]
    assert report.stats().sequences[0].drafter == PLAIN
    assert bench.seats["r0"].shadow is not None
    for _ in range(4):
        report = bench.step(STEERED)
    assert report.shadows == ()
    (told,) = bench.step(STEERED).shadows
    assert (told.drafter, told.matched, told.emitted) == (NGRAM, 5, 6)

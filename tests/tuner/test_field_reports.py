"""Losses that users of other engines reported, with their figures, and what our controller makes of the same traffic.

Numbers in names are those of docs/field-reports.md.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cycle_policy import DraftCost, Outlook, PassCost
from policies.plan import Prospect, plan
from policies.stats import BlockEnd, DraftTiming, SequenceStats, ShadowStats
from policies.testing import FakeClock
from policies.types import MAX_BLOCK_LENGTH, Context, PolicyState, Reason
from tests.tuner.simulated_engine import (
    FEATURES,
    GOOD,
    MODEL,
    SimulatedEngine,
    Truth,
    calibration,
    cycle,
    finished_request,
    sequence,
)
from tuner.acceptance import Acceptance
from tuner.controller import Controller, ControllerOptions
from tuner.learning import ChangeKind
from tuner.switchback import SwitchbackOptions

CHAT, CODE = ("chat", "en"), ("code-edit", "en")
OPTIONS = ControllerOptions(switchback=SwitchbackOptions(window_seconds=1.0, share_start=0.2))


def truth(hazard: float, silent: float = 0.0) -> Truth:
    """Every proposal is kept as far as chance lets it: each position with probability `hazard`."""
    return Truth((silent, 1.0 - silent), (0.0, hazard))


def gain(engine: SimulatedEngine, first: int = 0) -> float:
    """Tokens per second over plain's at the same loads, from cycle `first` on, without the noise of the clock."""
    plain = served = 0.0
    for stats in engine.cycles[first:]:
        if not stats.window.plain:
            emitted = sum(one.emitted for one in stats.sequences)
            plain += emitted / stats.load * engine.cost.seconds(stats.load, stats.load, stats.kv_tokens)
            served += engine.cost.seconds(stats.tokens, stats.load, stats.kv_tokens)
    return plain / served


def fixed_gain(cost: PassCost, hazard: float, block_length: int, load: int = 1) -> float:
    """What a block length that is written by hand gives."""
    emitted = 1.0 + sum(hazard**position for position in range(1, block_length + 1))
    rows = load * (1 + block_length)
    return emitted * cost.seconds(load, load, 0) / cost.seconds(rows, load, 0)


def test_report_1_vllm_8439_ngram_that_made_69_8_tokens_a_second_61_8_is_switched_off() -> None:
    # A block of 5 at 5 % acceptance: 61.8 / 69.8 = 0.885 of plain, if a row costs 3.8 % of a plain cycle.
    cost = PassCost((1, 272), (0.0143, 0.0143 + 271 * 0.00054), 0.0, 0.0)
    assert fixed_gain(cost, 0.05, 5) == pytest.approx(61.8 / 69.8, abs=0.01)
    engine = SimulatedEngine({CHAT: truth(0.05)}, OPTIONS, cost=cost)
    engine.serve([CHAT], 1, 60)
    settled = len(engine.cycles)
    engine.serve([CHAT], 1, 60)
    assert gain(engine) > 0.98
    assert gain(engine, settled) > 0.995


@pytest.mark.parametrize("load", [1, 4, 16])
def test_report_2_vllm_15025_a_draft_model_at_half_the_targets_price_that_keeps_four_in_ten_is_not_asked(
    load: int,
) -> None:
    cost = PassCost((1, 272), (0.020, 0.020 + 271 * 0.0004), 0.0005, 0.0)
    half = DraftCost(0.0, 0.0, 0.5 * cost.seconds(load, load, 0), 0.0)
    outlook = Outlook(tuple(0.4**position for position in range(1, 13)), (1.0,) * 12)
    # One draft brings 0.4 tokens for half of a cycle, and each after it less for as much.
    prospects = [Prospect("draft", outlook, 12, forced=False) for _ in range(load)]
    assert plan(prospects, cost, {"draft": half}, 0, 0.02).requested == (0,) * load


def test_report_2_vllm_15025_the_policy_of_such_a_draft_model_is_plain_at_every_load() -> None:
    chance = random.Random(5)
    engine = SimulatedEngine({CHAT: GOOD}, OPTIONS)
    cost = engine.cost
    timings = tuple(
        DraftTiming("draft", load, steps, load * steps, steps * 0.5 * cost.seconds(load, load, 0))
        for load in (1, 4, 16)
        for steps in (1, 4, 8)
    )
    info = replace(engine.info, drafters=("none", "draft"), draft_calibration=timings, calibration=calibration())
    clock = FakeClock(1000.0)
    controller = Controller(info, OPTIONS, lambda _: None, clock, clock)
    context = Context(MODEL, *CHAT)
    for key in range(80):
        decision = controller.decide(context, FEATURES)
        for _ in range(20):
            kept = 0
            while kept < 8 and chance.random() < 0.4:
                kept += 1
            stats = sequence(context, key=key, requested=0, proposed=0, verified=0, drafter=decision.drafter)
            shadow = ShadowStats(key, context, "draft", 8, 8, kept, 1, censored=False, emitted=1)
            seconds = cost.seconds(1, 1, 150)
            controller.fold_cycle(
                cycle(load=1, tokens=1, kv_tokens=150, seconds=seconds, sequences=(stats,), shadows=(shadow,))
            )
            clock.advance(seconds)
        controller.fold_request(finished_request(key, decision, 20, 20, looped=False))
        controller.tick()
    clock.advance(10.0)
    controller.tick()
    policy = controller.snapshot.policies[CHAT]
    assert policy.state is PolicyState.OFF
    assert policy.arm.cap == 0
    assert controller.snapshot.curves["draft"][CHAT].unconditioned[0] == pytest.approx(0.4, abs=0.05)


def test_report_3_vllm_21278_chinese_gets_the_short_block_that_is_2_7_times_as_fast_as_the_long_one() -> None:
    # K = 10 made 4 to 5 tokens a second and K = 3 12 to 13, where English was fine with the long one.
    cost = PassCost((1, 4, 272), (0.020, 0.0230, 0.0230 + 268 * 0.0070), 0.0, 0.0)
    assert fixed_gain(cost, 0.6, 3) / fixed_gain(cost, 0.6, 10) == pytest.approx(12.5 / 4.5, rel=0.25)
    chinese, english = ("chat", "zh"), ("chat", "en")
    engine = SimulatedEngine({chinese: truth(0.6), english: truth(0.97)}, OPTIONS, cost=cost)
    engine.serve([chinese, english], 1, 120)
    engine.clock.advance(10.0)
    engine.controller.tick()
    lengths = {key: engine.policy_of(*key).arm.block_length(1) for key in (chinese, english)}
    assert 2 <= lengths[chinese] <= 4
    assert lengths[english] >= lengths[chinese]


def test_report_8_llama_cpp_23052_code_keeps_its_1_35_and_fiction_does_not_fall_to_0_91() -> None:
    code, fiction = ("code-edit", "en"), ("story", "en")
    cost = PassCost((1, 272), (0.0143, 0.0143 + 271 * 0.00054), 0.0, 0.0)
    assert fixed_gain(cost, 0.36, 5) > 1.3
    assert fixed_gain(cost, 0.075, 5) == pytest.approx(0.91, abs=0.01)
    gains = {}
    for key, hazard in ((code, 0.36), (fiction, 0.075)):
        engine = SimulatedEngine({key: truth(hazard)}, OPTIONS, cost=cost)
        engine.serve([key], 1, 100)
        settled = len(engine.cycles)
        engine.serve([key], 1, 60)
        gains[key] = gain(engine, settled)
    assert gains[code] >= 1.35
    assert gains[fiction] >= 0.99


def test_report_10_dflash_163_danish_at_4_percent_is_plain_where_english_at_70_percent_speculates() -> None:
    english, danish = ("chat", "en"), ("chat", "da")
    # A block of 8 whose first position is kept 4 % of the time took 40 % of the speed away.
    cost = PassCost((1, 272), (0.0143, 0.0143 + 271 * 0.0013), 0.0, 0.0)
    assert fixed_gain(cost, 0.04, 8) == pytest.approx(0.6, abs=0.02)
    engine = SimulatedEngine({english: truth(0.70), danish: truth(0.04)}, OPTIONS, cost=cost)
    engine.serve([english, danish], 1, 120)
    engine.clock.advance(10.0)
    engine.controller.tick()
    settled = len(engine.cycles)
    engine.serve([danish], 1, 40)
    assert gain(engine, settled) > 0.99
    assert engine.policy_of(*english).state is PolicyState.ON
    assert engine.policy_of(*danish).state is PolicyState.OFF
    settled = len(engine.cycles)
    engine.serve([english], 1, 40)
    assert gain(engine, settled) > 1.3


def test_report_11_sglang_24795_a_drafter_that_keeps_nothing_after_an_upgrade_raises_an_alarm_and_is_off() -> None:
    engine = SimulatedEngine({CODE: GOOD}, OPTIONS)
    engine.serve([CODE], 2, 120)
    assert engine.policy_of(*CODE).state is PolicyState.ON
    engine.controller.take_found_changes()
    engine.truth[CODE] = Truth(GOOD.shares, (0.0, 0.0, 0.0))  # it proposes as before, and nothing fits: length 1
    engine.serve([CODE], 2, 50)
    settled = len(engine.cycles)
    engine.serve([CODE], 2, 20)
    alarms = [found for found in engine.controller.take_found_changes() if found.kind is ChangeKind.ACCEPTANCE]
    assert ("ngram", *CODE) in {(alarm.drafter, alarm.route, alarm.language) for alarm in alarms}
    assert engine.controller.snapshot.changes_found["acceptance"] == len(alarms)
    assert gain(engine, settled) > 0.99
    engine.clock.advance(10.0)
    engine.controller.tick()
    assert engine.policy_of(*CODE).state is PolicyState.OFF


def blocks() -> st.SearchStrategy[SequenceStats]:
    """Whatever an engine may say of a block: accepted <= verified <= proposed <= requested."""
    context = Context(MODEL, *CHAT)
    counts = st.lists(st.integers(0, MAX_BLOCK_LENGTH), min_size=4, max_size=4).map(sorted)
    return st.builds(
        lambda found, key, confidence, cut: sequence(
            context,
            key=key,
            accepted=found[0],
            verified=found[1],
            proposed=found[2],
            requested=found[3],
            confidence=confidence if found[2] else 0,
            end=BlockEnd.CENSORED if cut and found[1] else None,
        ),
        counts,
        st.integers(1, 5),
        st.integers(1, 4),
        st.booleans(),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(blocks(), min_size=1, max_size=30))
def test_report_46_sglang_11572_acceptance_is_between_0_and_1_and_never_rises_whatever_is_told(
    told: list[SequenceStats],
) -> None:
    acceptance = Acceptance()
    for number, one in enumerate(told):
        tokens = 1 + one.verified
        acceptance.fold(cycle(load=1, tokens=tokens, kv_tokens=10, seconds=0.01, sequences=(one,)))
        if number % 3 == 2:
            acceptance.finish(one.request_key)
    pooled, by_key = acceptance.curves("ngram", [CHAT])
    for curve in (pooled, by_key[CHAT]):
        for shares in (curve.unconditioned, curve.offered, curve.low, curve.high, *curve.survival.by_confidence):
            assert all(0.0 <= share <= 1.0 for share in shares)
        assert all(a >= b for a, b in zip(curve.unconditioned, curve.unconditioned[1:], strict=False))
        assert all(1.0 <= emitted <= 1.0 + length for length, emitted in enumerate(curve.emitted))


def test_report_12_trt_llm_7283_a_gate_that_closed_is_tried_again_without_an_operator() -> None:
    engine = SimulatedEngine({CHAT: Truth((0.05, 0.95), (0.0, 0.02))}, OPTIONS)
    engine.serve([CHAT], 2, 60)
    engine.clock.advance(10.0)
    engine.controller.tick()
    assert engine.policy_of(*CHAT).state is PolicyState.OFF
    engine.truth[CHAT] = GOOD
    engine.serve([CHAT], 2, 50)
    settled = len(engine.cycles)
    engine.serve([CHAT], 2, 30)
    assert gain(engine, settled) > 2.0
    decision = engine.controller.decide(Context(MODEL, *CHAT), FEATURES)
    assert decision.reason in (Reason.LEARNED, Reason.EXPLORE)

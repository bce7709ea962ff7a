"""The controller over an engine whose truth is known. Reports are numbered as in section 8.1 of research/engines.md."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from policies.cycle_policy import CyclePolicy, PassCost
from policies.decision_id import describe
from policies.stats import EngineInfo
from policies.types import PLAIN, Arm, Context, Decision, KillSwitch, Mode, Pin, PolicyState, Reason
from tests.tuner.simulated_engine import BAD, FEATURES, GOOD, MODEL, SimulatedEngine, Truth
from tuner.controller import Controller, ControllerOptions
from tuner.switchback import SwitchbackOptions

EDIT, STORY = ("code-edit", "en"), ("story", "en")
TWO_ROUTES = {EDIT: GOOD, STORY: BAD}
DEMO = ControllerOptions(switchback=SwitchbackOptions(window_seconds=1.0, share_start=0.2))


def decide(engine: SimulatedEngine, key: tuple[str, str] = EDIT, opt_out: bool = False) -> Decision:
    return engine.controller.decide(Context(MODEL, *key), replace(FEATURES, opt_out=opt_out))


def pin(block_length: int = 5, drafter: str = "ngram", route: str = "code-edit", language: str = "en") -> Pin:
    return Pin(route, language, drafter, block_length, "trial", "ann", created_at=1000.0, expires_at=5000.0)


def kill(route: str, expires_at: float | None = None) -> KillSwitch:
    return KillSwitch(route, "incident", "ann", created_at=1000.0, expires_at=expires_at)


def tick_after(engine: SimulatedEngine, seconds: float) -> None:
    """Nothing is served meanwhile, and then there is time to learn from all that was."""
    for passed in (seconds, 2.0):
        engine.clock.advance(passed)
        engine.changes.extend(engine.controller.tick())


@pytest.fixture(scope="module")
def served() -> SimulatedEngine:
    """Two routes at loads 1, 4, 16 and 2: read only."""
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    for load, requests in ((1, 60), (4, 80), (16, 200), (2, 80)):
        engine.serve([EDIT, STORY], load, requests)
    tick_after(engine, 10.0)
    return engine


def test_report_8_one_route_turns_on_and_another_stays_off_in_the_same_engine(served: SimulatedEngine) -> None:
    edit, story = served.policy_of(*EDIT), served.policy_of(*STORY)
    assert edit.state is PolicyState.ON
    assert edit.arm.block_length(1) >= 4
    assert story.state is PolicyState.OFF
    assert story.arm.cap == 0
    assert edit.reason is story.reason is Reason.LEARNED


def test_report_9_the_block_length_falls_with_load(served: SimulatedEngine) -> None:
    # Acceptance 0.6 in a row: at load 1 a row is nearly free, at load 16 it is not.
    engine = SimulatedEngine({EDIT: Truth((0.2, 0.8), (0.0, 0.6))}, DEMO)
    engine.serve([EDIT], 1, 40)
    engine.serve([EDIT], 16, 100)
    tick_after(engine, 10.0)
    arm = engine.policy_of(*EDIT).arm
    lengths = [arm.block_length(load) for load in range(1, 17)]
    assert lengths[0] >= lengths[3] >= lengths[15]
    assert lengths[0] >= lengths[15] + 2
    gains = dict(engine.policy_of(*EDIT).evidence.predicted_speedup)
    assert gains[1] > gains[4] > gains[16]


@pytest.mark.parametrize("load", [1, 8])
def test_report_1_an_arm_with_acceptance_of_five_percent_is_off_within_60_requests(load: int) -> None:
    # A row costs 5 % of a plain cycle, as much as it brings.
    cost = PassCost((1, 272), (0.010, 0.146), 0.0005, 0.0)
    engine = SimulatedEngine({STORY: Truth((0.0, 1.0), (0.0, 0.05))}, DEMO, cost=cost)
    engine.serve([STORY], load, 60)
    tick_after(engine, 10.0)
    policy = engine.policy_of(*STORY)
    assert policy.arm.block_length(load) == 0
    assert policy.evidence.survival[0] == pytest.approx(0.05, abs=0.02)
    verified = [sequence.verified for stats in engine.cycles[-100:] for sequence in stats.sequences]
    assert sum(verified) / len(verified) < 0.05


def test_report_3_two_languages_of_a_route_get_their_own_block_lengths() -> None:
    english, chinese = ("chat", "en"), ("chat", "zh")
    truth = {english: Truth((0.1, 0.9), (0.0, 0.92)), chinese: Truth((0.1, 0.9), (0.0, 0.45))}
    engine = SimulatedEngine(truth, DEMO)
    engine.serve([english, chinese], 4, 160)
    tick_after(engine, 10.0)
    assert engine.policy_of(*english).arm.block_length(4) >= engine.policy_of(*chinese).arm.block_length(4) + 4
    assert engine.policy_of(*chinese).arm.block_length(4) >= 1


def test_report_10_a_language_that_does_not_pay_is_gated_by_itself() -> None:
    english, danish = ("chat", "en"), ("chat", "da")
    engine = SimulatedEngine({english: GOOD, danish: BAD}, DEMO)
    engine.serve([english, danish], 4, 160)
    tick_after(engine, 10.0)
    assert engine.policy_of(*english).state is PolicyState.ON
    assert engine.policy_of(*danish).arm.block_length(4) == 0


def test_report_5_load_that_swings_around_an_edge_makes_no_new_versions(served: SimulatedEngine) -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    engine.serve([EDIT, STORY], 4, 400)
    settled = len(engine.changes)
    for _ in range(10):
        for load in (7, 9):
            engine.serve([EDIT, STORY], load, 24)
    # The loads in question are new, so the first looks at them may change what was only extrapolated.
    assert len(engine.changes) - settled <= 2


def test_report_12_a_gate_that_closed_opens_again_when_acceptance_recovers() -> None:
    # More than one row beside plain is dear here, so that nothing is verified of what is seldom kept.
    engine = SimulatedEngine({EDIT: Truth((0.05, 0.95), (0.0, 0.02))}, DEMO)
    engine.serve([EDIT], 2, 60)
    tick_after(engine, 10.0)
    assert engine.policy_of(*EDIT).state is PolicyState.OFF
    off = decide(engine)
    assert (off.drafter, off.reason) == ("ngram", Reason.LEARNED)
    assert sum(sequence.verified for stats in engine.cycles[-50:] for sequence in stats.sequences) == 0
    engine.truth[EDIT] = GOOD
    engine.serve([EDIT], 2, 150)
    tick_after(engine, 10.0)
    assert engine.policy_of(*EDIT).state is PolicyState.ON
    assert engine.policy_of(*EDIT).arm.block_length(2) >= 4


def test_the_measured_gain_agrees_with_the_prediction_and_names_its_direction(served: SimulatedEngine) -> None:
    engine = SimulatedEngine({EDIT: GOOD}, DEMO, stall_share=0.0)
    engine.serve([EDIT], 2, 150, tokens=200)
    tick_after(engine, 10.0)
    evidence = engine.policy_of(*EDIT).evidence
    predicted = dict(evidence.predicted_speedup)[2]
    assert evidence.speedup is not None
    assert evidence.speedup.low > 1.0
    assert evidence.speedup.estimate == pytest.approx(predicted, rel=0.15)
    assert "faster" in evidence.note
    assert evidence.requests == 150


def test_a_neighbour_that_gains_nothing_loses_no_more_than_its_bound(served: SimulatedEngine) -> None:
    gain = served.policy_of(*STORY).evidence.speedup
    assert gain is not None
    assert gain.high > 1 / 1.10


def test_the_snapshot_counts_what_was_served(served: SimulatedEngine) -> None:
    snapshot = served.controller.snapshot
    assert snapshot.requests == {EDIT: 210, STORY: 210}
    assert snapshot.cost_error is not None
    assert snapshot.cost_error < 0.05
    throughput = snapshot.throughput
    assert throughput.tuned_tokens / throughput.tuned_seconds > throughput.plain_tokens / throughput.plain_seconds
    assert {1, 2, 4} <= {cell.load for cell in snapshot.baseline}
    truth = {cell.load: served.cost.seconds(cell.load, cell.load, 170 * cell.load) for cell in snapshot.baseline}
    assert all(cell.seconds == pytest.approx(truth[cell.load], rel=0.25) for cell in snapshot.baseline)


def test_every_change_was_a_new_version_with_a_sentence_for_people(served: SimulatedEngine) -> None:
    versions: dict[tuple[str, str], int] = {}
    for change in served.changes:
        key = (change.context.route, change.context.language)
        assert change.version == versions.get(key, 0) + 1
        assert change.created_at >= 1000.0
        assert change.evidence.note.endswith(".")
        versions[key] = change.version
    assert all(served.policy_of(*key).version == version for key, version in versions.items())


def test_looping_requests_flatter_no_gain() -> None:
    engine = SimulatedEngine({EDIT: GOOD, STORY: BAD}, DEMO)
    engine.serve([STORY], 1, 60)
    engine.truth[STORY] = GOOD
    engine.serve([STORY], 1, 60, looped=True)
    tick_after(engine, 1.0)
    gain = engine.policy_of(*STORY).evidence.speedup
    assert gain is None or gain.high < 1.1
    assert engine.controller.snapshot.looped_requests == 60


def test_a_new_context_explores_and_its_first_verdict_comes_after_30_blocks() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    first = decide(engine)
    assert (first.drafter, first.cap, first.forced, first.reason) == ("ngram", 12, False, Reason.EXPLORE)
    assert first.policy_version == 0
    tick_after(engine, 2.0)
    assert engine.policy_of(*EDIT).state is PolicyState.LEARNING
    assert "0 of the 30 blocks" in engine.policy_of(*EDIT).evidence.note
    assert decide(engine).policy_version == 1
    engine.serve([EDIT], 1, 30)
    tick_after(engine, 10.0)
    assert engine.policy_of(*EDIT).state is PolicyState.ON
    assert decide(engine).reason is Reason.LEARNED


def test_a_kill_switch_is_published_before_the_call_returns_and_taken_back_as_fast(served: SimulatedEngine) -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    engine.serve([EDIT], 1, 30)
    engine.controller.set_kill(kill("*"))
    assert engine.policy.kill
    assert decide(engine).reason is Reason.KILL_SWITCH
    assert engine.policy_of(*EDIT).state is PolicyState.KILLED
    before = len(engine.cycles)
    engine.serve([EDIT], 1, 5)
    assert all(stats.tokens == stats.load for stats in engine.cycles[before:])
    assert engine.controller.clear_kill("*") == kill("*")
    assert not engine.policy.kill
    assert decide(engine).drafter == "ngram"
    assert engine.controller.clear_kill("*") is None


def test_a_kill_switch_of_a_route_stops_that_route_only() -> None:
    engine = SimulatedEngine({EDIT: GOOD, ("chat", "en"): GOOD}, DEMO)
    engine.serve([EDIT, ("chat", "en")], 2, 60)
    engine.controller.set_kill(kill("code-edit"))
    assert engine.policy.killed_routes == {"code-edit"}
    assert not engine.policy.kill
    assert engine.policy.survivals["ngram", *EDIT].of(2) == ()
    assert decide(engine).drafter == PLAIN
    assert decide(engine, ("chat", "en")).drafter == "ngram"


def test_kill_switches_and_pins_end_at_their_expiry() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    engine.controller.set_kill(kill("*", expires_at=1010.0))
    engine.controller.set_pin(replace(pin(), expires_at=1020.0))
    assert decide(engine).reason is Reason.KILL_SWITCH
    engine.clock.advance(10.0)
    assert decide(engine).reason is Reason.PINNED, "without waiting for a tick"
    tick_after(engine, 1.0)
    assert not engine.policy.kill
    tick_after(engine, 10.0)
    assert engine.controller.snapshot.pins == ()
    assert decide(engine).reason is Reason.EXPLORE


def test_a_pin_is_in_force_at_once_and_is_a_version_of_its_own() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    engine.serve([EDIT], 1, 30)
    tick_after(engine, 10.0)
    learned = engine.policy_of(*EDIT)
    engine.controller.set_pin(pin(block_length=3))
    got = decide(engine)
    assert (got.drafter, got.cap, got.forced, got.reason) == ("ngram", 3, True, Reason.PINNED)
    pinned = engine.policy_of(*EDIT)
    assert (pinned.state, pinned.version) == (PolicyState.PINNED, learned.version + 1)
    assert pinned.arm == Arm.fixed("ngram", 3)
    assert "ann pinned this: trial" in pinned.evidence.note
    assert decide(engine, STORY).reason is Reason.EXPLORE
    engine.controller.set_pin(pin(block_length=4))
    assert [one.block_length for one in engine.controller.snapshot.pins] == [4]
    assert engine.controller.remove_pin(*EDIT) == pin(block_length=4)
    assert engine.controller.remove_pin(*EDIT) is None
    after = engine.policy_of(*EDIT)
    assert (after.state, after.version, after.arm) == (PolicyState.ON, learned.version + 3, learned.arm)
    changes = [one.version for one in engine.controller.tick() if one.context.route == "code-edit"]
    assert changes == [learned.version + n for n in (1, 2, 3)]


def test_a_pin_to_plain_stops_requests_that_run_already() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    engine.serve([EDIT], 1, 30)
    engine.controller.set_pin(pin(block_length=0, drafter=PLAIN, language="*"))
    assert engine.policy.survivals["ngram", *EDIT].of(2) == ()
    assert decide(engine).drafter == PLAIN


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (pin(drafter="eagle"), "drafter 'eagle' is unknown to this engine; use one of none, ngram"),
        (pin(block_length=17), "block_length 17 is out of range; use 0 to 16"),
        (pin(block_length=-1), "block_length -1 is out of range"),
        (pin(drafter=PLAIN, block_length=3), "block_length 3 needs a drafter"),
    ],
)
def test_a_pin_that_cannot_be_obeyed_is_refused_and_changes_nothing(bad: Pin, message: str) -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    with pytest.raises(ValueError, match=message):
        engine.controller.set_pin(bad)
    assert engine.controller.snapshot.pins == ()


def test_no_plain_window_opens_under_a_pin_that_is_exempt() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    engine.controller.set_pin(replace(pin(), exempt_from_switchback=True))
    engine.serve([EDIT], 1, 60)
    assert not any(stats.window.plain for stats in engine.cycles)


def test_decisions_made_in_a_plain_window_keep_their_arm_and_the_cycles_stay_plain() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    while not engine.policy.window.plain:
        tick_after(engine, 0.25)
    assert decide(engine).drafter == "ngram"
    before = len(engine.cycles)
    engine.serve([EDIT], 1, 1)
    plain = [stats for stats in engine.cycles[before:] if stats.window.plain]
    assert plain
    assert all(stats.tokens == stats.load for stats in plain)


def test_an_opt_out_is_plain_and_the_modes_of_routes_are_kept() -> None:
    options = replace(
        DEMO,
        modes={"story": Mode.OFF, "chat": Mode.OBSERVE, "extract": Mode.CANARY},
        route_defaults={"chat": Arm.fixed("ngram", 3), "story": Arm.fixed("ngram", 3)},
        canary_share=0.25,
    )
    engine = SimulatedEngine(TWO_ROUTES, options)
    assert decide(engine, opt_out=True).reason is Reason.CLIENT_OPT_OUT
    assert decide(engine, STORY).drafter == PLAIN
    watched = decide(engine, ("chat", "en"))
    assert (watched.cap, watched.forced, watched.reason) == (3, True, Reason.ROUTE_DEFAULT)
    drawn = [decide(engine, ("extract", "en")).drafter == "ngram" for _ in range(2000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.25, abs=0.04)
    tick_after(engine, 2.0)
    assert engine.policy_of("chat", "en").arm == Arm.fixed("ngram", 3)
    assert engine.policy_of(*STORY).arm.cap == 0


def test_decisions_are_described_by_their_ids_and_no_id_comes_twice(served: SimulatedEngine) -> None:
    decisions = [decide(served) for _ in range(100)]
    assert len({one.decision_id for one in decisions}) == 100
    fields = describe(decisions[0].decision_id)
    assert (fields.route, fields.language) == EDIT
    assert (fields.drafter, fields.cap, fields.reason) == ("ngram", 12, Reason.LEARNED)
    assert fields.policy_version == served.policy_of(*EDIT).version


def test_a_fault_inside_a_decision_is_counted_and_answered_with_plain(caplog: pytest.LogCaptureFixture) -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    engine.controller.snapshot = replace(engine.controller.snapshot, pins=(None,))  # type: ignore[arg-type]
    got = decide(engine)
    assert (got.drafter, got.cap, got.reason) == (PLAIN, 0, Reason.ERROR)
    assert engine.controller.faults == 1
    assert "a decision failed" in caplog.text


def test_a_cycle_policy_is_published_only_when_it_differs() -> None:
    engine = SimulatedEngine(TWO_ROUTES, replace(DEMO, switchback=SwitchbackOptions(share_start=0.0)))
    assert engine.published == 1
    for _ in range(20):
        tick_after(engine, 1.0)
    assert engine.published == 1
    engine.serve([EDIT], 1, 3)
    tick_after(engine, 1.0)
    assert engine.published > 1
    assert engine.policy.version == engine.published


def test_without_a_calibration_nothing_but_pins_speculates() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    published: list[CyclePolicy] = []
    info = replace(engine.info, calibration=())
    controller = Controller(info, DEMO, published.append, engine.clock, engine.clock)
    assert published[-1].cost is None
    controller.decide(Context(MODEL, *EDIT), FEATURES)
    engine.clock.advance(2.0)
    (policy,) = controller.tick()
    assert policy.state is PolicyState.OFF
    assert "calibration" in policy.evidence.note


def test_an_engine_without_drafters_serves_plain_and_says_so() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    controller = Controller(
        replace(engine.info, drafters=(PLAIN,)), DEMO, lambda policy: None, engine.clock, engine.clock
    )
    got = controller.decide(Context(MODEL, *EDIT), FEATURES)
    assert (got.drafter, got.reason) == (PLAIN, Reason.ENGINE_DEFAULT)
    engine.clock.advance(2.0)
    (policy,) = controller.tick()
    assert (policy.arm.cap, policy.state) == (0, PolicyState.OFF)


def test_the_drafter_that_is_learned_is_the_first_unless_another_is_named_and_pins_may_name_any() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    info = replace(engine.info, drafters=(PLAIN, "ngram", "suffix", "head"))
    for options, learned in ((DEMO, "ngram"), (replace(DEMO, drafter="suffix"), "suffix")):
        controller = Controller(info, options, lambda policy: None, engine.clock, engine.clock)
        assert controller.decide(Context(MODEL, *EDIT), FEATURES).drafter == learned
        controller.set_pin(replace(pin(), drafter="head", block_length=3))
        got = controller.decide(Context(MODEL, *EDIT), FEATURES)
        assert (got.drafter, got.cap, got.forced, got.reason) == ("head", 3, True, Reason.PINNED)


def test_a_drafter_that_came_while_serving_can_be_pinned_and_one_that_went_cannot() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    with pytest.raises(ValueError, match="drafter 'head' is unknown"):
        engine.controller.set_pin(replace(pin(), drafter="head"))
    engine.controller.set_engine(replace(engine.info, drafters=(PLAIN, "head")))
    engine.controller.set_pin(replace(pin(), drafter="head"))
    with pytest.raises(ValueError, match="drafter 'ngram' is unknown"):
        engine.controller.set_pin(replace(pin(), drafter="ngram"))


def restarted(engine: SimulatedEngine, info: EngineInfo | None = None) -> SimulatedEngine:
    again = SimulatedEngine(engine.truth, engine.options)
    again.info = info or again.info
    again.controller = Controller(again.info, again.options, again._set_policy, again.clock, again.clock)
    return again


def test_a_restart_resumes_what_was_learned_but_no_claim_about_gains(served: SimulatedEngine) -> None:
    state = json.loads(json.dumps(served.controller.state()))
    again = restarted(served)
    assert again.controller.restore(state, tuple(served.controller.snapshot.policies.values()))
    before, after = served.policy_of(*EDIT), again.policy_of(*EDIT)
    assert after.state is PolicyState.ON
    assert (after.version, after.arm) == (before.version, before.arm)
    assert again.controller.tick() == []
    # What was counted since the last look is in it, too.
    assert after.evidence.survival == pytest.approx(before.evidence.survival, abs=0.03)
    assert after.evidence.speedup is None
    assert again.policy_of(*STORY).state is PolicyState.OFF
    assert again.controller.snapshot.baseline == ()
    assert decide(again).reason is Reason.LEARNED


def test_a_restart_under_orders_makes_no_version_until_they_are_gone() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    engine.serve([EDIT, STORY], 2, 30)
    tick_after(engine, 10.0)
    engine.controller.set_pin(pin(block_length=3))
    engine.controller.set_kill(kill("story"))
    pinned, killed = engine.policy_of(*EDIT), engine.policy_of(*STORY)
    again = restarted(engine)
    before = engine.controller.snapshot
    stored = tuple(before.policies.values())
    assert again.controller.restore(engine.controller.state(), stored, before.pins, before.kill_switches)
    assert again.controller.tick() == []
    assert (decide(again).reason, decide(again, STORY).reason) == (Reason.PINNED, Reason.KILL_SWITCH)
    assert again.policy_of(*EDIT).version == pinned.version
    assert again.policy_of(*STORY).version == killed.version
    again.controller.remove_pin(*EDIT)
    assert again.policy_of(*EDIT).version == pinned.version + 1
    assert again.policy_of(*EDIT).state is PolicyState.ON


def test_stored_orders_that_expired_or_that_the_engine_cannot_serve_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    again = SimulatedEngine(TWO_ROUTES, DEMO)
    expired = replace(pin(route="story"), expires_at=again.clock() - 1.0)
    gone = pin(drafter="suffix", route="chat")
    again.controller.restore({}, (), (expired, gone, pin()), (kill("story", expires_at=again.clock() - 1.0),))
    assert again.controller.snapshot.pins == (pin(),)
    assert again.controller.snapshot.kill_switches == ()
    assert [record.getMessage() for record in caplog.records] == [
        "the pin of chat/en in table pins is left out: drafter 'suffix' is unknown to this engine; "
        "use one of none, ngram"
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda info: replace(info, model="other"),
        lambda info: replace(info, dtype="bfloat16"),
        lambda info: replace(info, device="cuda"),
        lambda info: replace(info, versions={"target": "2"}),
        lambda info: replace(info, versions={"ngram": "2"}),
        lambda info: replace(info, drafters=("none", "suffix")),
    ],
)
def test_another_model_or_machine_starts_from_nothing_with_versions_going_on(
    served: SimulatedEngine, change: Callable[[EngineInfo], EngineInfo]
) -> None:
    again = restarted(served, change(served.info))
    assert not again.controller.restore(served.controller.state(), tuple(served.controller.snapshot.policies.values()))
    assert decide(again).reason is Reason.EXPLORE
    tick_after(again, 2.0)
    assert again.policy_of(*EDIT).version == served.policy_of(*EDIT).version + 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state["learned"].update(acceptance=[{"drafter": "ngram"}]),
        lambda state: state["learned"].pop("acceptance"),
        lambda state: state["learned"].update(versions=None),
        lambda state: state["learned"].update(versions=[]),
        lambda state: state["learned"].update(drafters=None),
        lambda state: state["learned"]["acceptance"].update(versions=None),
        lambda state: state["learned"]["acceptance"]["cells"][0][3].update(moments=[["local", [[10**400]], [], []]]),
        lambda state: state.update(versions=[["chat"]]),
        lambda state: state.update(versions=[["chat", "en", float("inf")]]),
        lambda state: state.update(versions=[["chat", "en", 1 << 62]]),
        lambda state: state.clear(),
    ],
)
def test_a_damaged_state_starts_from_nothing_and_loses_no_order_and_no_version(
    served: SimulatedEngine, damage: Callable[[dict[str, Any]], object], caplog: pytest.LogCaptureFixture
) -> None:
    state = json.loads(json.dumps(served.controller.state()))
    damage(state)
    again = restarted(served)
    stored = tuple(served.controller.snapshot.policies.values())
    assert not again.controller.restore(state, stored, (pin(route="chat"),), (kill("support"),))
    assert decide(again).reason is Reason.EXPLORE
    assert again.controller.snapshot.pins == (pin(route="chat"),)
    assert again.controller.snapshot.kill_switches == (kill("support"),)
    assert len([line for line in caplog.messages if "table posteriors" in line]) == (1 if state else 0)
    tick_after(again, 2.0)
    assert again.policy_of(*EDIT).version == served.policy_of(*EDIT).version + 1


def test_a_state_may_name_drafters_that_are_no_names(served: SimulatedEngine) -> None:
    state = json.loads(json.dumps(served.controller.state()))
    state["learned"]["drafters"].append(7)
    again = restarted(served)
    assert again.controller.restore(state)
    assert json.dumps(again.controller.state())


def test_readers_and_operators_never_see_half_of_a_change_while_it_learns() -> None:
    engine = SimulatedEngine(TWO_ROUTES, DEMO)
    stop = threading.Event()
    failures: list[str] = []

    def read() -> None:
        while not stop.is_set():
            got = decide(engine)
            if got.reason is Reason.ERROR or (got.reason is Reason.PINNED and (not got.forced or got.cap != 5)):
                failures.append(got.decision_id)

    def order() -> None:
        while not stop.is_set():
            engine.controller.set_pin(pin(block_length=5))
            if engine.controller.snapshot.pins == ():
                failures.append("a pin was not in the snapshot when set_pin returned")
            engine.controller.remove_pin(*EDIT)

    threads = [threading.Thread(target=read), threading.Thread(target=order)]
    for thread in threads:
        thread.start()
    try:
        engine.serve([EDIT, STORY], 4, 80)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert engine.controller.faults == 0

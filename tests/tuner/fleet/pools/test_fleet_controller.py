"""The fleet's controller: what it learns, publishes, obeys, keeps over a restart, and what bounds it."""

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest

from policies.ladder import ANY
from policies.types import (
    OTHER_ROUTE,
    PLAIN,
    PLAIN_ARM,
    UNKNOWN_LENGTH,
    Arm,
    Context,
    Decision,
    KillSwitch,
    Mode,
    Pin,
    PolicyState,
    Reason,
)
from tests.tuner.fleet.pools.simulated_fleet import ngram_upstream, plain_upstream
from tuner.decider import RouteModes
from tuner.fleet.pools.controller import FleetController
from tuner.fleet.pools.options import FleetOptions
from tuner.fleet.pools.rows import Kind
from tuner.fleet.pools.snapshot import FleetSnapshot
from tuner.fleet.pools.verdict import NO_PLAIN_NOTE
from tuner.fleet.types import BY_LOAD, UNKNOWN_DRAFTER, End, EngineKind, Exchange, Upstream
from tuner.guardrails import Check, GuardrailOptions, Objective, Standing
from tuner.known_contexts import MOST_CONTEXTS
from tuner.learning import ChangeKind
from tuner.steering import Steering

UPSTREAMS = (plain_upstream("p"), ngram_upstream("n"))


class World:
    """A controller on a clock of its own."""

    def __init__(self, upstreams: Sequence[Upstream] = UPSTREAMS, mode: Mode = Mode.AUTO, **more: object) -> None:
        self.now = 1_000_000.0
        self.published: list[FleetSnapshot] = []
        options = FleetOptions("m", frozenset({"chat", "edit"}), RouteModes({}, mode, {}, PLAIN_ARM, 0.1))
        self.controller = FleetController(
            upstreams,
            replace(options, **more),  # type: ignore[arg-type]
            self.published.append,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def serve(self, lane: str, seconds: float, requests: int = 1, **more: object) -> None:
        """`requests` of a token in `seconds` each."""
        for number in range(requests):
            self.now += 0.5
            one = replace(exchange(lane, seconds * (1.05 if number % 2 else 0.95), self.now), **more)  # type: ignore[arg-type]
            self.controller.fold(one)

    def tick(self) -> FleetSnapshot:
        self.now += 2.0
        self.controller.tick()
        return self.controller.fleet


def exchange(
    lane: str, seconds: float, at: float, route: str = "chat", reason: Reason = Reason.LEARNED, language: str = "en"
) -> Exchange:
    drafter, cap = (PLAIN, 0) if lane == "p" else ("ngram", 5)
    return Exchange(
        request_key=1,
        upstream=lane,
        lane=lane,
        decision=Decision("id", Context("m", route, language), drafter, cap, False, reason, 1),
        path="/v1/chat/completions",
        status=200,
        end=End.DONE,
        streamed=True,
        arrived_at=at,
        first_byte_seconds=0.1,
        decode_seconds=100 * seconds,
        output_tokens=101,
        prompt_tokens=100,
        cached_tokens=0,
        load=2.0,
        drafts=None,
        overhead_seconds=0.0001,
    )


def learned(fast: float = 0.01) -> World:
    world = World()
    for _ in range(20):
        world.serve("n", fast, 4)
        world.serve(
            "p", 0.02, 2, decision=Decision("id", Context("m", "chat", "en"), PLAIN, 0, False, Reason.SWITCHBACK, 1)
        )
    world.tick()
    return world


def test_it_steers_as_the_admin_api_asks() -> None:
    steering: Steering = World().controller
    assert steering.snapshot.policies == {}


def test_a_context_is_learned_with_its_evidence_and_gain() -> None:
    world = learned()
    policy = world.controller.snapshot.policies["chat", "en"]
    assert (policy.state, policy.reason, policy.arm.drafter, policy.arm.cap) == (
        PolicyState.ON,
        Reason.LEARNED,
        "ngram",
        5,
    )
    assert policy.evidence.requests == 120
    assert policy.evidence.speedup is not None
    assert policy.evidence.speedup.estimate == pytest.approx(2.0, rel=0.05)
    assert dict(policy.evidence.predicted_speedup)[2] == pytest.approx(2.0, rel=0.1)
    assert "ngram at 5 at load 1-2" in policy.evidence.note
    assert world.controller.snapshot.engine_gain is not None
    assert {cell.load for cell in world.controller.snapshot.baseline} == {2}


def test_what_gains_nothing_is_off() -> None:
    policy = learned(0.025).controller.snapshot.policies["chat", "en"]
    assert (policy.state, policy.arm, policy.reason) == (PolicyState.OFF, PLAIN_ARM, Reason.LEARNED)


def test_without_a_plain_pool_gains_are_unknown_and_nothing_is_held() -> None:
    world = World((ngram_upstream("n"), replace(ngram_upstream("m"), block_length=2)))
    world.serve("n", 0.01, 60)
    world.serve("m", 0.02, 60)
    fleet = world.tick()
    policy = world.controller.snapshot.policies["chat", "en"]
    assert policy.evidence.speedup is None
    assert policy.evidence.predicted_speedup == ()
    assert NO_PLAIN_NOTE in policy.evidence.note
    assert world.controller.snapshot.engine_gain is None
    assert (fleet.plain_shares, fleet.plain_share) == ({}, 0.0)


def test_an_upstream_nobody_knows_is_no_baseline() -> None:
    world = World((Upstream("p", "http://p"), ngram_upstream("n")))
    world.serve("p", 0.02, 60)
    world.serve("n", 0.01, 60)
    world.tick()
    assert world.controller.snapshot.engine_gain is None
    assert UNKNOWN_DRAFTER in world.controller.drafters


def test_the_plain_share_falls_as_the_gain_is_known_and_not_under_its_floor() -> None:
    world = World()
    assert world.controller.fleet.plain_share == 0.2
    shares = []
    for _ in range(6):
        for _ in range(40):
            world.serve("n", 0.01, 3)
            world.serve("p", 0.02, 1)
        shares.append(world.tick().plain_shares["chat", "en"])
    assert shares[0] > shares[-1]
    assert shares[-1] == 0.02


def test_in_observe_it_learns_and_recommends_and_changes_nothing() -> None:
    world = World(mode=Mode.OBSERVE)
    for _ in range(20):
        for lane, seconds in (("n", 0.01), ("p", 0.02)):
            decision = exchange(lane, 1.0, 0.0, reason=Reason.ROUTE_DEFAULT).decision
            world.serve(lane, seconds, 3, decision=decision)
    world.tick()
    policy = world.controller.snapshot.policies["chat", "en"]
    assert (policy.arm, policy.reason) == (Arm.fixed(BY_LOAD, UNKNOWN_LENGTH), Reason.ROUTE_DEFAULT)
    assert policy.evidence.predicted_speedup == ()
    assert "mode auto would serve lanes of ngram at 5" in policy.evidence.note
    assert policy.evidence.speedup is not None
    assert world.controller.snapshot.guardrails == world.controller.snapshot.guardrails[-2:]  # those of all


def state_of(world: World) -> PolicyState:
    return world.controller.snapshot.policies["chat", "en"].state


def test_orders_are_in_force_when_the_call_returns() -> None:
    world = learned()
    pin = Pin("chat", "en", "ngram", 5, "trial", "me", world.now, world.now + 100)
    world.controller.set_pin(pin)
    assert world.published[-1].pins == (pin,)
    assert state_of(world) is PolicyState.PINNED
    world.controller.set_kill(KillSwitch("chat", "incident", "me", world.now, None))
    assert world.published[-1].kill_switches
    assert state_of(world) is PolicyState.KILLED
    assert world.controller.clear_kill("chat") is not None
    world.now += 200
    world.controller.tick()
    assert not world.published[-1].pins
    assert state_of(world) is PolicyState.ON
    versions = [policy.version for policy in world.controller.tick()]
    assert versions == []


def test_a_pin_of_a_context_without_traffic_is_shown() -> None:
    world = World()
    world.controller.set_pin(Pin("edit", "da", "ngram", 5, "trial", "me", world.now, world.now + 100))
    assert world.controller.snapshot.policies["edit", "da"].state is PolicyState.PINNED
    assert world.controller.remove_pin("edit", "da") is not None
    assert world.controller.remove_pin("edit", "da") is None


@pytest.mark.parametrize(
    ("drafter", "length", "said"),
    [
        ("eagle", 3, "drafter 'eagle' is unknown"),
        ("ngram", 3, "block_length 3 of 'ngram' is served by no lane; use one of 5"),
        ("ngram", 99, "out of range"),
        (PLAIN, 2, "needs a drafter"),
    ],
)
def test_a_pin_that_no_lane_can_follow_is_refused_with_a_remedy(drafter: str, length: int, said: str) -> None:
    world = World()
    with pytest.raises(ValueError, match=said):
        world.controller.set_pin(Pin("chat", ANY, drafter, length, "trial", "me", 0.0, world.now + 9))


def test_a_pin_that_is_no_lanes_length_is_refused_with_those_that_there_are() -> None:
    world = World((plain_upstream("p"), ngram_upstream("n"), replace(ngram_upstream("m"), block_length=2)))
    with pytest.raises(ValueError, match="block_length 4 of 'ngram' is served by no lane; use one of 2, 5"):
        world.controller.set_pin(Pin("chat", ANY, "ngram", 4, "trial", "me", 0.0, world.now + 9))


def test_what_nobody_knows_how_far_it_drafts_cannot_be_pinned_and_is_shown_as_unknown() -> None:
    world = World((plain_upstream("p"), replace(ngram_upstream("n"), block_length=0)))
    with pytest.raises(ValueError, match=r"nobody knows how far it drafts; set fleet\.upstreams\.n\.block_length"):
        world.controller.set_pin(Pin("chat", ANY, "ngram", 1, "trial", "me", 0.0, world.now + 9))
    for _ in range(20):
        world.serve("n", 0.01, 4)
        world.serve("p", 0.02, 2, decision=exchange("p", 1.0, 0.0, reason=Reason.SWITCHBACK).decision)
    world.tick()
    policy = world.controller.snapshot.policies["chat", "en"]
    assert (policy.state, policy.arm.drafter, policy.arm.cap) == (PolicyState.ON, "ngram", UNKNOWN_LENGTH)
    assert "ngram at load" in policy.evidence.note


def test_an_order_that_no_lane_can_follow_stays_in_force_and_says_so() -> None:
    world = World((ngram_upstream("n"), replace(ngram_upstream("m"), block_length=2)))
    world.serve("n", 0.01)
    world.controller.set_kill(KillSwitch(ANY, "incident", "me", world.now, None))
    snapshot = world.controller.snapshot
    assert "no server here is known to decode plain" in snapshot.unmet
    policy = snapshot.policies["chat", "en"]
    assert (policy.state, policy.arm.drafter) == (PolicyState.KILLED, BY_LOAD)
    assert snapshot.unmet in policy.evidence.note
    world.controller.set_upstreams((ngram_upstream("n"), plain_upstream("p")))
    snapshot = world.controller.snapshot
    assert snapshot.unmet == ""
    assert snapshot.policies["chat", "en"].arm == PLAIN_ARM
    assert snapshot.policies["chat", "en"].evidence.note == "me killed this: incident"


def test_a_pin_to_plain_that_no_lane_can_follow_says_so() -> None:
    world = World((ngram_upstream("n"),))
    world.controller.set_pin(Pin("chat", "en", PLAIN, 0, "trial", "me", 0.0, world.now + 9))
    policy = world.controller.snapshot.policies["chat", "en"]
    assert (policy.state, policy.arm) == (PolicyState.PINNED, Arm.fixed("ngram", 5))
    assert world.controller.snapshot.unmet in policy.evidence.note


def test_where_there_is_nothing_to_choose_what_serves_is_shown_and_nothing_is_learned() -> None:
    world = World((Upstream("x", "http://x"),))
    world.serve("x", 0.02, 60)
    world.tick()
    policy = world.controller.snapshot.policies["chat", "en"]
    assert (policy.arm, policy.reason) == (Arm.fixed(UNKNOWN_DRAFTER, UNKNOWN_LENGTH), Reason.ENGINE_DEFAULT)
    assert policy.evidence.predicted_speedup == ()


def test_plain_beside_itself_is_no_gain() -> None:
    world = World(mode=Mode.OFF)
    for _ in range(20):
        world.serve("p", 0.02, 6, decision=exchange("p", 1.0, 0.0, reason=Reason.ROUTE_DEFAULT).decision)
    world.tick()
    policy = world.controller.snapshot.policies["chat", "en"]
    assert policy.arm == PLAIN_ARM
    assert policy.evidence.speedup is None
    assert world.controller.snapshot.engine_gain is None


def test_errors_on_lanes_that_speculate_send_the_route_to_plain() -> None:
    world = World()
    for _ in range(30):
        world.serve("p", 0.02)
        world.serve("n", 0.01, end=End.UPSTREAM_ERROR, status=500)
        world.tick()
    assert world.controller.fleet.guards["chat"].reason is Reason.GUARDRAIL_ERRORS
    moved = world.controller.take_moved_guardrails()
    assert [(state.check, state.standing) for state in moved] == [(Check.ERRORS, Standing.TRIPPED)]
    assert world.controller.take_moved_guardrails() == []


def test_a_slow_route_breaks_its_objective_only_if_plain_would_not() -> None:
    objective = {"chat": Objective(tpot_p95_seconds=0.03)}
    for plain, trips in ((0.02, True), (0.05, False)):
        world = World(guardrails=GuardrailOptions(objectives=objective))
        for _ in range(60):
            world.serve("p", plain)
            world.serve("n", 0.04)
            world.tick()
        assert ("chat" in world.controller.fleet.guards) == trips


def test_an_upstream_that_runs_another_model_is_learned_from_nothing() -> None:
    world = learned()
    assert world.controller.fleet.speeds["m", "chat", "en"].errors
    world.controller.set_upstreams((UPSTREAMS[0], replace(UPSTREAMS[1], models=("other", "m"))))
    (change,) = world.controller.take_found_changes()
    assert (change.kind, change.note.split(" runs")[0]) == (ChangeKind.VERSION, "upstream n")
    speeds = world.controller.fleet.speeds["m", "chat", "en"]
    assert speeds.errors[Kind("ngram", 5)][1] > 0.2
    assert world.controller.snapshot.policies["chat", "en"].evidence.speedup is None
    # What does not say what it is has only gone away for a while.
    world.controller.set_upstreams((Upstream("p", "http://p"), replace(UPSTREAMS[1], models=("other", "m"))))
    assert world.controller.take_found_changes() == []
    assert world.controller.fleet.lanes[0].engine is EngineKind.VLLM


def test_a_replica_that_gets_slow_is_found_once_and_audited() -> None:
    world = World((*UPSTREAMS, plain_upstream("q")))
    for _ in range(40):
        world.serve("p", 0.02, 2)
        world.serve("q", 0.02, 2, decision=exchange("p", 1.0, 0.0).decision)
    world.tick()
    for _ in range(20):
        world.serve("p", 0.02, 2)
        world.serve("q", 0.05, 2, decision=exchange("p", 1.0, 0.0).decision)
        world.tick()
    changes = world.controller.take_found_changes()
    assert [(change.kind, change.note.split(" takes")[0]) for change in changes] == [(ChangeKind.COST, "lane q")]
    curves = world.controller.fleet.speeds["m", "chat", "en"].curves
    assert curves["q"][1] / curves["p"][1] == pytest.approx(2.5, rel=0.15)
    assert world.controller.snapshot.changes_found == {ChangeKind.COST: 1}


def test_a_restart_goes_on_from_its_state() -> None:
    world = learned()
    policies = list(world.controller.snapshot.policies.values())
    pin = Pin("edit", ANY, "ngram", 5, "trial", "me", world.now, world.now + 100)
    lost = replace(pin, drafter="eagle", route="chat")
    after = World()
    after.now = world.now
    state = json.loads(json.dumps(world.controller.state()))
    assert after.controller.restore(state, policies, [pin, lost], [])
    assert after.controller.snapshot.pins == (pin,)
    policy = after.controller.snapshot.policies["chat", "en"]
    assert (policy.version, policy.arm) == (policies[0].version, policies[0].arm)
    assert policy.evidence.speedup is not None
    assert (
        after.controller.fleet.speeds["m", "chat", "en"].curves
        == world.controller.fleet.speeds["m", "chat", "en"].curves
    )


@pytest.mark.parametrize("state", [{}, {"format": 1}, {"format": 1, "counts": {"newest": "x"}}, {"versions": [["a"]]}])
def test_a_damaged_state_is_left_out_with_a_line_in_the_log(
    state: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    assert not world.controller.restore(state)
    assert ("learning starts from nothing" in caplog.text) == bool(state)
    assert world.controller.snapshot.version > 1


def test_ten_thousand_names_of_routes_are_bounded() -> None:
    world = World()
    for number in range(10_000):
        world.now += 0.01
        world.controller.fold(exchange("p", 0.02, world.now, route=f"route-{number}"))
    fleet = world.tick()
    assert len(fleet.speeds) <= MOST_CONTEXTS
    assert len(world.controller.snapshot.policies) <= MOST_CONTEXTS
    assert (OTHER_ROUTE, "und") in world.controller.snapshot.requests
    assert len(pickle.dumps(fleet)) < 1 << 20
    assert len(json.dumps(world.controller.state())) < 1 << 20


def test_snapshots_cross_processes_whole() -> None:
    fleet = learned().controller.fleet
    assert pickle.loads(pickle.dumps(fleet)) == fleet


def test_the_budget_closes_what_loses_and_leaves_what_gains() -> None:
    losing, gaining = World(), World()
    for world, seconds in ((losing, 0.06), (gaining, 0.01)):
        world.serve("p", 0.02, 40)
        world.tick()
        for _ in range(20):
            world.serve("n", seconds, 3)
            world.tick()
    assert losing.controller.fleet.trials["chat"].gate != "open"
    assert gaining.controller.fleet.trials["chat"].gate == "open"
    assert losing.controller.snapshot.safety.held
    assert losing.controller.fleet.trials["chat"].at_once < gaining.controller.fleet.trials["chat"].at_once


def test_the_ends_of_trials_are_told() -> None:
    world = World()
    world.serve("n", 0.01, 3, decision=exchange("n", 1.0, 0.0, reason=Reason.EXPLORE).decision)
    lost = replace(exchange("n", 1.0, world.now, reason=Reason.EXPLORE), end=End.BROKEN)
    world.controller.fold(lost)
    assert world.tick().trials["chat"].ended == 4

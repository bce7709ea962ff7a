"""Checks that hold a route plain, and let it try again."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from policies.stats import FinishReason, RequestStats
from policies.types import Context, Decision, Interval, KillSwitch, Mode, Pin, Reason
from tests.tuner.simulated_engine import FEATURES, GOOD, MODEL, SimulatedEngine, cycle, finished_request, sequence
from tuner.controller import ControllerOptions
from tuner.guardrails import (
    TRIED_SHARE,
    Check,
    GuardrailOptions,
    Guardrails,
    GuardrailState,
    Objective,
    Standing,
    Verdict,
)
from tuner.proportions import chance_above_bar, chance_above_other, interval

CHAT = Context(MODEL, "chat", "en")
OBJECTIVES = {"chat": Objective(ttft_p95_seconds=0.5, tpot_p95_seconds=0.02)}
OPTIONS = GuardrailOptions(objectives=OBJECTIVES, cooldown_seconds=100.0)


def request(
    key: int = 1,
    *,
    drafter: str = "ngram",
    finish: FinishReason = FinishReason.STOP,
    tpot: float = 0.01,
    ttft: float = 0.1,
    valid: bool | None = None,
    reason: Reason = Reason.LEARNED,
    route: str = "chat",
) -> RequestStats:
    decision = Decision("id", Context(MODEL, route, "en"), drafter, 8 if drafter != "none" else 0, False, reason, 1)
    stats = finished_request(key, decision, 11, 5, looped=False)
    return replace(stats, finish=finish, decode_seconds=10 * tpot, ttft_seconds=ttft, valid=valid)


def no_gain(_: str, __: int | None) -> Interval | None:
    return None


def judge(guardrails: Guardrails, now: float) -> list[GuardrailState]:
    return guardrails.judge(no_gain, 1, now, 1000.0 + now)


def state(guardrails: Guardrails, check: Check, route: str = "chat") -> GuardrailState:
    return next(one for one in guardrails.states if (one.route, one.check) == (route, check))


def tripped(check: Check = Check.ERRORS, now: float = 0.0, plain: int = 0) -> Guardrails:
    """Guardrails of which a check has just tripped."""
    guardrails = Guardrails(OPTIONS)
    for key in range(plain):
        guardrails.fold_request(request(key, drafter="none"), None, now)
    for key in range(30):
        guardrails.fold_request(BAD[check](key), None, now)
    moved = judge(guardrails, now)
    assert [(one.check, one.standing) for one in moved] == [(check, Standing.TRIPPED)]
    return guardrails


BAD = {
    Check.LATENCY: lambda key: request(key, tpot=0.03),
    Check.TTFT: lambda key: request(key, ttft=0.8),
    Check.ERRORS: lambda key: request(key, finish=FinishReason.ERROR),
    Check.VALIDITY: lambda key: request(key, valid=False),
}


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (Check.LATENCY, Reason.GUARDRAIL_LATENCY),
        (Check.TTFT, Reason.GUARDRAIL_TTFT),
        (Check.ERRORS, Reason.GUARDRAIL_ERRORS),
        (Check.VALIDITY, Reason.GUARDRAIL_VALIDITY),
    ],
)
def test_a_route_that_breaks_a_bar_is_held_plain_and_the_reason_says_which(check: Check, reason: Reason) -> None:
    guardrails = tripped(check)
    assert guardrails.guards["chat"].reason is reason
    assert guardrails.shut == {"chat"}
    found = state(guardrails, check)
    assert (found.verdict, found.requests, found.until, found.trips) == (Verdict.FAILED, 30, 1100.0, 1)
    assert found.share is not None
    assert found.share.low > found.bar


def test_a_share_above_the_bar_by_chance_trips_nothing() -> None:
    guardrails = Guardrails(OPTIONS)
    for key in range(20):
        bad = key == 0
        guardrails.fold_request(request(key, finish=FinishReason.ERROR if bad else FinishReason.STOP), None, 0.0)
    assert judge(guardrails, 0.0) == []
    found = state(guardrails, Check.ERRORS)
    assert found.share is not None
    assert found.share.estimate == 0.05 > found.bar
    assert found.verdict is Verdict.INCONCLUSIVE


def test_no_traffic_is_no_failure_and_many_good_requests_are_success() -> None:
    guardrails = Guardrails(OPTIONS)
    guardrails.fold_request(request(drafter="none"), None, 0.0)
    judge(guardrails, 0.0)
    assert {one.verdict for one in guardrails.states if one.route == "chat"} == {Verdict.NO_TRAFFIC}
    for key in range(200):
        guardrails.fold_request(request(key), None, 1.0)
    judge(guardrails, 1.0)
    assert state(guardrails, Check.ERRORS).verdict is Verdict.SUCCESS
    judge(guardrails, 1000.0)
    assert state(guardrails, Check.ERRORS).verdict is Verdict.NO_TRAFFIC


def test_an_objective_that_plain_breaks_as_well_keeps_nobody_from_speculating() -> None:
    guardrails = Guardrails(OPTIONS)
    for key in range(50):
        guardrails.fold_request(request(key, drafter="none", ttft=0.9), None, 0.0)
        guardrails.fold_request(request(key, ttft=0.9), None, 0.0)
        # Plain would have taken 1.2 times as long for the same tokens at the same load.
        guardrails.fold_request(request(key, tpot=0.03), 1.2, 0.0)
    assert judge(guardrails, 0.0) == []
    assert state(guardrails, Check.TTFT).verdict is Verdict.INCONCLUSIVE
    assert state(guardrails, Check.LATENCY).verdict is Verdict.SUCCESS
    assert guardrails.guards == {}


def test_requests_that_plain_would_have_served_in_time_count_against_the_objective() -> None:
    guardrails = Guardrails(OPTIONS)
    for key in range(50):
        guardrails.fold_request(request(key, tpot=0.03), 0.5, 0.0)
    assert [one.check for one in judge(guardrails, 0.0)] == [Check.LATENCY]


def test_what_is_pinned_and_what_its_client_left_is_not_judged() -> None:
    guardrails = Guardrails(OPTIONS)
    for key in range(50):
        guardrails.fold_request(request(key, finish=FinishReason.ERROR, reason=Reason.PINNED), None, 0.0)
        guardrails.fold_request(request(key, finish=FinishReason.CANCELLED), None, 0.0)
    assert judge(guardrails, 0.0) == []
    assert {one.route for one in guardrails.states} == {"*"}


def test_after_the_cooldown_a_share_tries_again_and_good_requests_end_it() -> None:
    guardrails = tripped(plain=50)
    assert judge(guardrails, 99.0) == []
    [trying] = judge(guardrails, 100.0)
    assert trying.standing is Standing.TRYING
    assert guardrails.guards["chat"].tried_share == TRIED_SHARE
    assert guardrails.shut == frozenset()
    for key in range(200):
        guardrails.fold_request(request(key), None, 110.0)
    [watching] = judge(guardrails, 110.0)
    assert watching.standing is Standing.WATCHING
    assert guardrails.guards == {}


def test_requests_from_before_the_retry_do_not_count_in_it() -> None:
    guardrails = tripped()
    judge(guardrails, 100.0)
    for key in range(50):
        slow = replace(request(key, finish=FinishReason.ERROR), decode_seconds=20.0)
        guardrails.fold_request(slow, None, 110.0)
    assert judge(guardrails, 110.0) == []
    assert state(guardrails, Check.ERRORS).verdict is Verdict.NO_TRAFFIC


def test_a_retry_that_fails_is_followed_by_a_longer_cooldown() -> None:
    guardrails = tripped(plain=50)
    now, waits = 100.0, []
    for _ in range(6):
        judge(guardrails, now)
        for key in range(30):
            guardrails.fold_request(request(key, finish=FinishReason.ERROR), None, now + 5.0)
        [again] = judge(guardrails, now + 5.0)
        assert again.until is not None
        waits.append(again.until - (1000.0 + now + 5.0))
        now += 5.0 + waits[-1]
    assert waits == [200.0, 400.0, 800.0, 800.0, 800.0, 800.0]
    assert state(guardrails, Check.ERRORS).trips == 7


def test_a_retry_that_fails_as_plain_does_ends_and_the_cause_is_looked_for_elsewhere() -> None:
    guardrails = tripped()
    for key in range(60):
        guardrails.fold_request(request(key, drafter="none", finish=FinishReason.ERROR), None, 50.0)
    judge(guardrails, 100.0)
    for key in range(30):
        guardrails.fold_request(request(key, finish=FinishReason.ERROR), None, 120.0)
    assert judge(guardrails, 120.0) == []
    [watching] = judge(guardrails, 200.0)
    assert watching.standing is Standing.WATCHING


def test_a_measured_gain_below_one_trips_only_when_its_interval_says_so() -> None:
    guardrails = Guardrails(OPTIONS)
    for key in range(30):
        guardrails.fold_request(request(key), None, 0.0)
    unsure, sure = Interval(0.8, 0.72, 0.88), Interval(0.8, 0.79, 0.81)
    assert guardrails.judge(lambda route, _: unsure if route == "chat" else None, 1, 0.0, 0.0) == []
    assert state(guardrails, Check.GAIN).verdict is Verdict.INCONCLUSIVE
    [moved] = guardrails.judge(lambda route, _: sure if route == "chat" else None, 1, 1.0, 1.0)
    assert (moved.check, moved.share) == (Check.GAIN, sure)
    assert guardrails.guards["chat"].reason is Reason.GUARDRAIL_LATENCY


def test_a_route_that_its_neighbours_slow_within_their_bound_goes_on_unless_everything_loses() -> None:
    guardrails = Guardrails(OPTIONS)
    for key in range(30):
        guardrails.fold_request(request(key), None, 0.0)
    slowed = Interval(0.92, 0.915, 0.925)
    assert guardrails.judge(lambda route, _: slowed if route == "chat" else None, 1, 0.0, 0.0) == []
    assert state(guardrails, Check.GAIN).verdict is Verdict.SUCCESS
    [moved] = guardrails.judge(lambda route, _: slowed if route == "*" else None, 1, 1.0, 1.0)
    assert (moved.route, moved.check) == ("*", Check.GAIN)
    assert guardrails.shut == {"*"}


def test_memory_that_runs_out_holds_everything_after_three_readings_and_an_unread_one_holds_nothing() -> None:
    guardrails = Guardrails(OPTIONS)
    for reading, verdict in ((None, Verdict.ERROR), (0.01, Verdict.INCONCLUSIVE), (0.01, Verdict.INCONCLUSIVE)):
        guardrails.fold_memory(reading)
        assert judge(guardrails, 0.0) == []
        assert state(guardrails, Check.MEMORY, "*").verdict is verdict
    guardrails.fold_memory(0.01)
    [moved] = judge(guardrails, 1.0)
    assert (moved.route, moved.check) == ("*", Check.MEMORY)
    assert guardrails.guards["*"].reason is Reason.GUARDRAIL_MEMORY
    guardrails.fold_memory(0.5)
    judge(guardrails, 101.0)
    [rested] = judge(guardrails, 102.0)
    assert rested.standing is Standing.WATCHING
    assert guardrails.guards == {}


def test_guardrails_that_are_off_hold_nothing() -> None:
    guardrails = Guardrails(replace(OPTIONS, enabled=False))
    for key in range(50):
        guardrails.fold_request(request(key, finish=FinishReason.ERROR), None, 0.0)
        guardrails.fold_memory(0.0)
    assert judge(guardrails, 0.0) == []
    assert guardrails.guards == {}
    assert guardrails.states == ()


def test_thousands_of_names_of_routes_do_not_grow_the_guardrails() -> None:
    guardrails = Guardrails(OPTIONS)
    for key in range(10_000):
        guardrails.fold_request(request(key, route=f"route-{key}"), None, 0.0)
    assert len({one.route for one in guardrails.states}) <= 257


def test_a_route_that_just_keeps_its_bar_seldom_trips_in_thousands_of_requests() -> None:
    chance = random.Random(3)
    trips = 0
    for _ in range(10):
        guardrails = Guardrails(OPTIONS)
        for key in range(3000):
            bad = chance.random() < 0.5 * OPTIONS.max_error_share
            guardrails.fold_request(
                request(key, finish=FinishReason.ERROR if bad else FinishReason.STOP), None, float(key)
            )
            if key % 10 == 0:
                judge(guardrails, float(key))
        trips += state(guardrails, Check.ERRORS).trips
    assert trips <= 1


def test_an_error_share_of_a_tenth_trips_within_fifty_requests() -> None:
    chance = random.Random(4)
    needed = []
    for _ in range(100):
        guardrails = Guardrails(OPTIONS)
        for key in range(400):
            bad = chance.random() < 0.1
            guardrails.fold_request(request(key, finish=FinishReason.ERROR if bad else FinishReason.STOP), None, 0.0)
            if judge(guardrails, 0.0):
                needed.append(key)
                break
    assert len(needed) == 100
    assert sorted(needed)[50] <= 75


def test_chances_are_those_of_the_exact_tests() -> None:
    assert chance_above_bar(2, 10, 0.1) == pytest.approx(1 - 0.9**10 - 10 * 0.1 * 0.9**9)
    assert chance_above_bar(0, 10, 0.1) == 1.0
    assert chance_above_bar(1, 10, 0.0) == 0.0
    # The lady tasting tea: three of four right or better, 17 of 70.
    assert chance_above_other(3, 4, 1, 4) == pytest.approx(17 / 70)
    found = interval(10, 100)
    assert [found.low, found.high] == pytest.approx([0.0552, 0.1744], abs=1e-4)


# In the controller.


def engine(**options: object) -> SimulatedEngine:
    guardrails = GuardrailOptions(objectives=OBJECTIVES, cooldown_seconds=100.0)
    base = ControllerOptions(guardrails=guardrails)
    return SimulatedEngine({("chat", "en"): GOOD, ("story", "en"): GOOD}, replace(base, **options))  # type: ignore[arg-type]


def fail(served: SimulatedEngine, count: int = 30, route: str = "chat") -> None:
    """Requests that speculated and failed, and the recomputation after them."""
    for key in range(count):
        decision = served.controller.decide(Context(MODEL, route, "en"), FEATURES)
        stats = replace(finished_request(10_000 + key, decision, 0, 0, looped=False), finish=FinishReason.ERROR)
        served.controller.fold_request(stats)
    after(served, 1.0)


def after(served: SimulatedEngine, seconds: float) -> None:
    served.clock.advance(seconds)
    served.controller.tick()


def decisions(served: SimulatedEngine, count: int, route: str = "chat") -> Iterator[Decision]:
    return (served.controller.decide(Context(MODEL, route, "en"), FEATURES) for _ in range(count))


def test_new_requests_of_the_route_are_plain_at_once_and_running_ones_stop_with_the_next_cycle_policy() -> None:
    served = engine()
    before = served.policy.version
    fail(served)
    assert {(one.drafter, one.reason) for one in decisions(served, 20)} == {("none", Reason.GUARDRAIL_ERRORS)}
    assert {one.drafter for one in decisions(served, 20, "story")} == {"ngram"}
    assert served.policy.version > before
    assert served.policy.killed_routes == {"chat"}
    assert not served.policy.kill
    [moved] = served.controller.take_moved_guardrails()
    assert (moved.route, moved.check, moved.standing) == ("chat", Check.ERRORS, Standing.TRIPPED)
    assert served.controller.take_moved_guardrails() == []


def test_while_some_try_again_both_sides_know_their_propensity() -> None:
    served = engine()
    fail(served)
    after(served, 101.0)
    assert served.policy.killed_routes == frozenset()
    made = list(decisions(served, 4000))
    tried = [one for one in made if one.drafter == "ngram"]
    assert len(tried) / len(made) == pytest.approx(TRIED_SHARE, abs=0.02)
    assert {one.propensity for one in tried} == {TRIED_SHARE}
    held = [one for one in made if one.drafter == "none"]
    assert {(one.reason, one.propensity) for one in held} == {(Reason.GUARDRAIL_ERRORS, 1.0 - TRIED_SHARE)}


def test_the_share_of_a_canary_is_the_propensity_of_both_its_sides() -> None:
    served = engine(modes={"chat": Mode.CANARY}, canary_share=0.25)
    made = list(decisions(served, 2000))
    by_drafter = {one.drafter: one.propensity for one in made}
    assert by_drafter == {"ngram": 0.25, "none": 0.75}
    assert sum(one.drafter == "ngram" for one in made) / len(made) == pytest.approx(0.25, abs=0.04)
    assert {one.propensity for one in decisions(served, 20, "story")} == {1.0}


def test_a_pin_is_stronger_than_a_guardrail_and_a_kill_switch_stronger_than_both() -> None:
    served = engine()
    served.controller.set_pin(Pin("chat", "en", "ngram", 4, "trial", "ann", 1000.0, 9000.0))
    fail(served)  # pinned, so not judged
    assert served.controller.snapshot.guards == {}
    served.controller.remove_pin("chat", "en")
    fail(served)
    served.controller.set_pin(Pin("chat", "en", "ngram", 4, "trial", "ann", 1000.0, 9000.0))
    [pinned] = decisions(served, 1)
    assert (pinned.drafter, pinned.reason, pinned.forced) == ("ngram", Reason.PINNED, True)
    assert served.policy.killed_routes == frozenset()
    assert served.policy.survivals["ngram", "chat", "en"].by_confidence == ()
    served.controller.set_kill(KillSwitch("chat", "incident", "ann", 1000.0, None))
    [killed] = decisions(served, 1)
    assert killed.reason is Reason.KILL_SWITCH


def test_memory_that_runs_out_stops_every_route() -> None:
    served = engine()
    for _ in range(3):
        served.controller.fold_memory(0.001)
    after(served, 1.0)
    assert served.policy.kill
    assert {one.reason for route in ("chat", "story") for one in decisions(served, 5, route)} == {
        Reason.GUARDRAIL_MEMORY
    }


def test_a_drafter_that_makes_a_route_slower_than_measured_plain_is_caught_by_its_measured_gain() -> None:
    served = engine()
    controller = served.controller
    decision = next(decisions(served, 1))
    window_id, number = 1, 0
    for key in range(400):
        for step in range(10):
            window = replace(served.policy.window, window_id=window_id, plain=window_id % 2 == 0)
            one = sequence(CHAT, key=key, accepted=0, verified=0 if window.plain else 8)
            controller.fold_cycle(
                cycle(
                    load=1,
                    tokens=1 if window.plain else 9,
                    kv_tokens=100,
                    seconds=0.010 if window.plain else 0.013,
                    window=window,
                    first_after_switch=step == 0 and number % 4 == 0,
                    sequences=(one,),
                )
            )
            number += 1
        controller.fold_request(finished_request(key, decision, 10, 10, looped=False))
        if key % 4 == 3:
            window_id += 1
        after(served, 0.11)
    moved = {(one.route, one.check): one for one in controller.take_moved_guardrails()}
    for route, bar in (("chat", 0.87), ("*", 0.98)):
        found = moved[route, Check.GAIN]
        assert found.standing is Standing.TRIPPED
        assert found.share is not None
        assert found.share.high < bar

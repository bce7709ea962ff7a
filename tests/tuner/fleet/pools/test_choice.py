"""Where a request goes: the ladder, prices, draws with their chances, sessions, and what a request asks for."""

import math
import pickle
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from policies.decision_id import describe
from policies.ladder import ANY
from policies.language_detection import LanguageDetector
from policies.types import OTHER_ROUTE, PLAIN, PLAIN_ARM, UNKNOWN_LENGTH, Arm, KillSwitch, Mode, Pin, Reason
from tuner.decider import RouteModes
from tuner.fleet.pools.chooser import PoolChooser
from tuner.fleet.pools.courses import Course
from tuner.fleet.pools.price import cost, seconds_at
from tuner.fleet.pools.rows import PLAIN_KIND, Kind
from tuner.fleet.pools.sessions import MOST_SESSIONS, Home, Sessions, fraction
from tuner.fleet.pools.snapshot import ContextSpeed, Curve, FleetSnapshot, LaneSpeed, Trials
from tuner.fleet.pools.weighing import PROBED_SHARE, TRIED_SHARE
from tuner.fleet.types import Asked, Choice, EngineKind, Lane
from tuner.guardrails import Guard
from tuner.safety import Gate

SLOW: Curve = (0.02, 0.021, 0.023, 0.028, 0.04)
FAST: Curve = (0.01, 0.011, 0.013, 0.018, 0.03)
NGRAM = Kind("ngram", 5)
BODY: Mapping[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "Please tell me how the old harbour was built, in a hundred words."}],
}
_DETECTOR = LanguageDetector()


def lane(name: str, drafter: str = PLAIN, length: int = 0, **more: Any) -> LaneSpeed:
    given: dict[str, Any] = {
        "engine": EngineKind.VLLM,
        "version": "0.32.0",
        "models": ("m",),
        "curve": SLOW,
        "error": 0.4,
        "prefill_seconds": 1e-4,
        "crowd": SLOW,
        "launched_speculating": bool(length),
    }
    return LaneSpeed(Lane(name, name, drafter, length), **{**given, **more})


def context(plain: Curve = SLOW, ngram: Curve = FAST, error: float = 0.01) -> ContextSpeed:
    errors = (error,) * len(SLOW)
    return ContextSpeed({"p": plain, "n": ngram}, {PLAIN_KIND: errors, NGRAM: errors}, 100.0)


def snapshot(mode: Mode = Mode.AUTO, **more: Any) -> FleetSnapshot:
    given: dict[str, Any] = {
        "lanes": (lane("p"), lane("n", "ngram", 5)),
        "routes": frozenset({"chat", "edit"}),
        "modes": RouteModes({}, mode, {}, PLAIN_ARM, 0.1),
        "speeds": {("m", "chat", "en"): context(), ("m", "edit", "en"): context()},
        "learned": frozenset({("chat", "en"), ("edit", "en")}),
    }
    return FleetSnapshot(1, "m", **{**given, **more})


def asked(body: Mapping[str, Any] | None = BODY, **more: Any) -> Asked:
    given: dict[str, Any] = {
        "path": "/v1/chat/completions",
        "body_bytes": 4000,
        "route": "chat",
        "language": "en",
        "mode": None,
        "debug": False,
        "session": None,
        "in_flight": {"p": 0, "n": 0},
        "arrived_at": 100.0,
    }
    return Asked(body=body, **{**given, **more})


def chooser(given: FleetSnapshot) -> PoolChooser:
    made = PoolChooser(_DETECTOR)
    made.swap(given)
    return made


def reasons(given: FleetSnapshot, request: Asked, count: int = 400) -> Counter[tuple[str, str]]:
    """(lane, reason) of `count` equal requests."""
    made = chooser(given)
    choices = [made.choose(request) for _ in range(count)]
    assert made.faults == 0
    return Counter((one.lane, one.decision.reason.value) for one in choices if one.decision is not None)


def decided(choice: Choice) -> tuple[str, Reason]:
    assert choice.decision is not None
    return choice.lane, choice.decision.reason


def test_the_cheaper_lane_serves_and_others_are_probed_by_a_few() -> None:
    found = reasons(snapshot(), asked(), 4000)
    assert found["n", "LEARNED"] > 0.98 * 4000
    assert 1 <= found["p", "EXPLORE"] <= 4 * PROBED_SHARE * 4000
    assert sum(found.values()) == 4000


def test_a_loaded_lane_costs_its_own_time_and_that_of_those_who_are_there() -> None:
    one = lane("p")
    alone = cost(one, SLOW, 0, 100, 0.0)
    assert alone == pytest.approx(100 * 0.02)
    crowded = cost(one, SLOW, 7, 100, 0.0)
    lost = 1.0 - seconds_at(SLOW, 7) / seconds_at(SLOW, 8)
    assert crowded == pytest.approx(100 * 0.028 * (1 + 7 * lost))
    assert cost(one, SLOW, 0, 100, 2000.0) == pytest.approx(alone + 2000 * 1e-4)
    assert chooser(snapshot()).choose(asked(in_flight={"p": 0, "n": 14})).lane == "p"


@pytest.mark.parametrize(("load", "found"), [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (6, 6.0), (8, 8.0), (16, 16.0)])
def test_seconds_are_read_between_the_knots_and_beyond_them(load: int, found: float) -> None:
    assert seconds_at((1.0, 2.0, 4.0, 8.0), load) == pytest.approx(found)


def test_a_session_stays_where_its_prefix_is_unless_another_lane_is_worth_computing_it_again() -> None:
    even = context(SLOW, SLOW)
    given = snapshot(speeds={("m", "chat", "en"): even})
    made = chooser(given)
    first = made.choose(asked(session=5, body_bytes=16_000, in_flight={"p": 0, "n": 3}))
    assert first.upstream == "p"
    # A little more load is cheaper than 4,000 tokens of prompt; much more is not.
    assert made.choose(asked(session=5, body_bytes=16_000, in_flight={"p": 1, "n": 0})).upstream == "p"
    assert made.choose(asked(session=6, in_flight={"p": 1, "n": 0})).upstream == "n"
    assert made.choose(asked(session=5, body_bytes=16_000, in_flight={"p": 15, "n": 0})).upstream == "n"


def test_a_context_goes_elsewhere_only_for_more_than_the_margin() -> None:
    made = chooser(snapshot())
    assert made.choose(asked()).lane == "n"
    slightly = context(SLOW, tuple(value * 1.01 for value in SLOW), 0.0)
    made.swap(snapshot(speeds={("m", "chat", "en"): slightly}))
    assert Counter(made.choose(asked()).lane for _ in range(200))["n"] > 150
    clearly = context(SLOW, tuple(value * 1.05 for value in SLOW), 0.0)
    made.swap(snapshot(speeds={("m", "chat", "en"): clearly}))
    assert Counter(made.choose(asked()).lane for _ in range(200))["p"] > 150


def test_what_may_be_better_is_tried_by_a_bounded_share_and_by_few_at_once() -> None:
    unsure = context(SLOW, tuple(value * 1.1 for value in SLOW), 0.3)
    given = snapshot(speeds={("m", "chat", "en"): unsure})
    many = reasons(replace(given, new_trials=Trials(at_once=10_000)), asked(), 2000)
    assert many["n", "EXPLORE"] == pytest.approx(TRIED_SHARE * 2000, rel=0.2)
    few = reasons(replace(given, new_trials=Trials(at_once=3)), asked(), 2000)
    assert few["n", "EXPLORE"] == 3


def test_trials_that_ended_make_room_for_others() -> None:
    unsure = context(SLOW, tuple(value * 1.1 for value in SLOW), 0.3)
    given = snapshot(speeds={("m", "chat", "en"): unsure})
    made = chooser(given)
    for ended in (0, 1, 3):
        made.swap(replace(given, trials={"chat": Trials(at_once=2, ended=ended)}))
        tried = sum(decided(made.choose(asked()))[1] is Reason.EXPLORE for _ in range(400))
        assert tried == (2 if ended == 0 else ended if ended == 1 else 2)
    # And one whose end nobody told of is taken for ended after a while.
    later = [decided(made.choose(asked(arrived_at=10_000.0)))[1] for _ in range(400)]
    assert later.count(Reason.EXPLORE) == 2


def test_a_lane_that_nobody_knows_is_not_taken_for_as_good_as_one_that_is_known() -> None:
    errors = {PLAIN_KIND: (0.02,) * 5, NGRAM: (0.5,) * 5}
    same = ContextSpeed({"p": SLOW, "n": SLOW}, errors, 100.0)
    found = reasons(snapshot(speeds={("m", "chat", "en"): same}, new_trials=Trials(at_once=0)), asked())
    assert found == {("p", "LEARNED"): 400}


def test_with_a_spent_budget_plain_serves_and_with_a_low_one_what_surely_beats_it() -> None:
    assert reasons(snapshot(trials={"chat": Trials(Gate.HELD)}), asked()) == {("p", "LEARNED"): 400}
    assert reasons(snapshot(trials={"chat": Trials(Gate.PROVEN)}), asked()) == {("n", "LEARNED"): 400}
    unsure = {("m", "chat", "en"): context(SLOW, FAST, 0.6)}
    assert reasons(snapshot(trials={"chat": Trials(Gate.PROVEN)}, speeds=unsure), asked()) == {("p", "LEARNED"): 400}


def test_a_share_of_sessions_is_held_plain_for_good_and_the_chance_is_told() -> None:
    made = chooser(snapshot(plain_share=0.2, new_trials=Trials(at_once=10**6)))
    held = 0
    for session in range(1000):
        request = asked(session=session * 7919)
        first, second = made.choose(request), made.choose(request)
        assert first.decision is not None
        if first.decision.reason is Reason.SWITCHBACK:
            held += 1
            assert decided(second) == ("p", Reason.SWITCHBACK)
            assert first.decision.propensity == pytest.approx(0.2 + 0.8 * PROBED_SHARE)
        elif first.decision.reason is Reason.LEARNED:
            assert first.decision.propensity == pytest.approx(0.8 * (1 - PROBED_SHARE))
    assert held == pytest.approx(200, rel=0.15)


def test_chances_add_up_over_kinds() -> None:
    made = chooser(snapshot(plain_share=0.1, new_trials=Trials(at_once=10**6)))
    by_kind: dict[str, set[float]] = {}
    for _ in range(3000):
        decision = made.choose(asked()).decision
        assert decision is not None
        by_kind.setdefault(decision.drafter, set()).add(round(decision.propensity, 9))
    assert by_kind["ngram"] == {round(0.9 * (1 - PROBED_SHARE), 9)}
    assert round(0.1 + 0.9 * PROBED_SHARE, 9) in by_kind[PLAIN]


def test_a_falling_share_only_lets_sessions_go() -> None:
    draws = [fraction(session, 0) for session in range(10_000)]
    assert sum(draw < 0.2 for draw in draws) == pytest.approx(2000, rel=0.1)
    both = sum(fraction(session, 0) < 0.5 and fraction(session, 1) < 0.5 for session in range(10_000))
    assert both == pytest.approx(2500, rel=0.1)


def test_in_observe_nothing_is_edited_told_or_steered() -> None:
    made = chooser(snapshot(Mode.OBSERVE, plain_share=0.5, speeds={("m", "chat", "en"): context(FAST, SLOW)}))
    assert not made.reads("/v1/chat/completions", "chat")
    for load, upstream in (({"p": 5, "n": 1}, "n"), ({"p": 1, "n": 5}, "p")):
        choice = made.choose(asked(in_flight=load, mode="off"))
        assert (choice.upstream, choice.edits, choice.strip_usage, choice.answer_headers) == (upstream, (), False, ())
        assert decided(choice) == (upstream, Reason.ROUTE_DEFAULT)


def test_what_passed_unread_is_known_by_its_lane() -> None:
    choice = chooser(snapshot(Mode.OBSERVE)).choose(asked(sent_to="n", in_flight={"p": 0, "n": 9}))
    assert (choice.upstream, choice.lane) == ("n", "n")
    assert choice.decision is not None
    assert (choice.decision.drafter, choice.decision.cap) == ("ngram", 5)


def test_advise_asks_for_usage_and_steers_nothing() -> None:
    made = chooser(snapshot(Mode.ADVISE, plain_share=0.5))
    assert made.reads("/v1/chat/completions", "chat")
    choice = made.choose(asked(in_flight={"p": 0, "n": 4}))
    assert choice.upstream == "p"
    assert choice.edits == (("stream_options", {"include_usage": True}),)
    assert choice.strip_usage
    assert [name for name, _ in choice.answer_headers] == ["x-paceline-decision", "x-paceline-policy"]


@pytest.mark.parametrize(
    ("body", "edits"),
    [
        ({**BODY, "stream_options": {"include_usage": True}}, ()),
        ({**BODY, "stream": False}, ()),
        (
            {**BODY, "stream_options": {"include_usage": False, "other": 1}},
            (("stream_options", {"include_usage": True, "other": 1}),),
        ),
        ({**BODY, "stream_options": None}, (("stream_options", {"include_usage": True}),)),
        ({**BODY, "stream_options": {"include_usage": None}}, (("stream_options", {"include_usage": True}),)),
        # Each engine refuses or takes these in its own way.
        ({**BODY, "stream_options": {"include_usage": 1}}, ()),
        ({**BODY, "stream_options": {"include_usage": 0}}, ()),
        ({**BODY, "stream_options": {"include_usage": "true"}}, ()),
        ({**BODY, "stream_options": "true"}, ()),
        ({**BODY, "stream_options": []}, ()),
    ],
)
def test_usage_is_asked_for_only_where_a_stream_would_not_tell_it(body: Mapping[str, Any], edits: object) -> None:
    choice = chooser(snapshot()).choose(asked(body))
    assert choice.edits == edits
    assert choice.strip_usage == bool(edits)


def test_usage_is_not_asked_for_where_the_settings_forbid_it() -> None:
    assert chooser(snapshot(add_usage=False)).choose(asked()).edits == ()


def test_canary_steers_its_share_of_sessions_and_leaves_the_others() -> None:
    made = chooser(snapshot(Mode.CANARY))
    steered = 0
    for session in range(2000):
        lane_name, reason = decided(made.choose(asked(session=session, in_flight={"p": 0, "n": 1})))
        steered += reason in (Reason.CANARY, Reason.EXPLORE)
        if reason is Reason.ENGINE_DEFAULT:
            assert lane_name == "p"
    assert steered == pytest.approx(200, rel=0.25)


def test_off_is_plain() -> None:
    assert reasons(snapshot(Mode.OFF), asked()) == {("p", "ROUTE_DEFAULT"): 400}


def test_the_ladder_decides_in_its_order() -> None:
    kill = KillSwitch(ANY, "incident", "me", 0.0, None)
    pin = Pin("chat", ANY, "ngram", 5, "trial", "me", 0.0, 1000.0)
    guard = {"chat": Guard(Reason.GUARDRAIL_ERRORS, 0.0)}
    steps: list[tuple[dict[str, Any], dict[str, Any], tuple[str, Reason]]] = [
        ({}, {}, ("n", Reason.LEARNED)),
        ({}, {"mode": " OFF "}, ("p", Reason.CLIENT_OPT_OUT)),
        ({"guards": guard}, {"mode": "off"}, ("p", Reason.GUARDRAIL_ERRORS)),
        ({"guards": guard, "pins": (pin,)}, {"mode": "off"}, ("n", Reason.PINNED)),
        ({"guards": guard, "pins": (pin,), "plain_share": 1.0}, {"mode": "off"}, ("p", Reason.SWITCHBACK)),
        (
            {"guards": guard, "pins": (replace(pin, exempt_from_switchback=True),), "plain_share": 1.0},
            {},
            ("n", Reason.PINNED),
        ),
        ({"guards": guard, "pins": (pin,), "kill_switches": (kill,)}, {}, ("p", Reason.KILL_SWITCH)),
    ]
    for settings, request, found in steps:
        made = chooser(snapshot(seed=3, **settings))
        choice = made.choose(asked(**request))
        assert decided(choice) == found, settings
        assert choice.decision is not None
        assert choice.decision.forced == (found[1] is Reason.PINNED)


def test_an_operators_order_steers_in_observe_too() -> None:
    kill = KillSwitch("chat", "incident", "me", 0.0, None)
    made = chooser(snapshot(Mode.OBSERVE, kill_switches=(kill,)))
    assert made.reads("/v1/chat/completions", "chat")
    assert not made.reads("/v1/chat/completions", "edit")
    choice = made.choose(asked(in_flight={"p": 9, "n": 0}))
    assert decided(choice) == ("p", Reason.KILL_SWITCH)
    assert choice.edits == ()


def test_a_pin_takes_the_longest_lane_that_is_no_longer() -> None:
    lanes = (lane("p"), lane("n", "ngram", 5), lane("m", "ngram", 2), lane("d", "draft", 4))
    pin = Pin("chat", "en", "ngram", 4, "trial", "me", 0.0, 1000.0)
    choice = chooser(snapshot(lanes=lanes, pins=(pin,))).choose(asked(in_flight={"p": 0, "n": 0, "m": 3, "d": 0}))
    assert decided(choice) == ("m", Reason.PINNED)
    assert choice.decision is not None
    assert choice.decision.cap == 2


def test_report_22_a_request_that_speculation_refuses_goes_to_the_plain_pool() -> None:
    for body in ({**BODY, "min_p": 0.1}, {**BODY, "logit_bias": {"5": 2}}):
        assert reasons(snapshot(), asked(body)) == {("p", "FEATURE_UNSUPPORTED"): 400}
    # It is no measure of plain either, since it is not like the others.
    assert reasons(snapshot(plain_share=1.0), asked({**BODY, "min_p": 0.1})) == {("p", "FEATURE_UNSUPPORTED"): 400}
    pin = Pin("chat", ANY, "ngram", 5, "trial", "me", 0.0, 1000.0)
    pinned = chooser(snapshot(pins=(pin,))).choose(asked({**BODY, "min_p": 0.1}))
    assert decided(pinned) == ("p", Reason.FEATURE_UNSUPPORTED)


def test_a_refused_feature_without_a_plain_pool_is_the_engines_to_refuse() -> None:
    only = snapshot(lanes=(lane("n", "ngram", 5),))
    choice = chooser(only).choose(asked({**BODY, "min_p": 0.1}, in_flight={"n": 0}))
    assert choice.upstream == "n"


def test_a_plain_lane_of_a_drafting_server_does_not_save_what_the_server_refuses() -> None:
    field = (("speculative.n_max", 0),)
    resident = lane("n", launched_speculating=True)
    resident = replace(resident, lane=Lane("n/plain", "n", PLAIN, 0, fields=field))
    given = snapshot(lanes=(lane("p"), lane("n", "ngram", 5), resident))
    assert set(reasons(given, asked({**BODY, "min_p": 0.1}))) == {("p", "FEATURE_UNSUPPORTED")}


def fields_fleet() -> FleetSnapshot:
    plain = replace(lane("l/plain"), lane=Lane("l/plain", "l", PLAIN, 0, fields=(("speculative.n_max", 0),)))
    llama = replace(lane("l", "draft", 6), engine=EngineKind.LLAMA_CPP, version="b9000")
    plain = replace(plain, engine=EngineKind.LLAMA_CPP, version="b9000", launched_speculating=True)
    return snapshot(lanes=(llama, plain), speeds={})


def test_a_lane_stamps_its_field() -> None:
    opted = chooser(fields_fleet()).choose(asked(mode="off", in_flight={"l": 0}))
    assert decided(opted) == ("l/plain", Reason.CLIENT_OPT_OUT)
    assert ("speculative.n_max", 0) in opted.edits


@pytest.mark.parametrize("own", [{"speculative.n_max": 3}, {"speculative": {"n_max": 3}}])
def test_what_the_client_set_is_left_and_tells_nothing_of_a_lane(own: Mapping[str, Any]) -> None:
    choice = chooser(fields_fleet()).choose(asked({**BODY, **own}, mode="off", in_flight={"l": 0}))
    assert "speculative.n_max" not in dict(choice.edits)
    assert choice.lane == ""


def test_an_alias_is_asked_for_by_its_name() -> None:
    alias = replace(lane("n"), lane=Lane("n/fast", "n", "ngram", 5, model="fast"))
    errors = {PLAIN_KIND: (0.0,) * 5, NGRAM: (0.0,) * 5}
    speeds = {("m", "chat", "en"): ContextSpeed({"n": SLOW, "n/fast": FAST}, errors, 100.0)}
    choice = chooser(snapshot(lanes=(lane("n"), alias), speeds=speeds)).choose(asked(in_flight={"n": 0}))
    assert choice.lane == "n/fast"
    assert ("model", "fast") in choice.edits


def test_a_model_is_asked_for_where_it_is_served_and_one_that_nobody_serves_anywhere() -> None:
    lanes = (lane("p", models=("other",)), lane("n", "ngram", 5))
    given = snapshot(lanes=lanes, plain_share=1.0)
    assert {name for name, _ in reasons(given, asked({**BODY, "model": "m"}))} == {"n"}
    assert {name for name, _ in reasons(given, asked({**BODY, "model": "other"}))} == {"p"}
    assert chooser(given).choose(asked({**BODY, "model": "nobody's"}, in_flight={"n": 0})).upstream == "n"


def test_report_55_an_adapter_has_a_context_of_its_own() -> None:
    lanes = (lane("p", models=("m", "adapter")), lane("n", "ngram", 5, models=("m", "adapter")))
    speeds = {("m", "chat", "en"): context(), ("adapter", "chat", "en"): context(FAST, SLOW)}
    made = chooser(snapshot(lanes=lanes, speeds=speeds))
    assert Counter(made.choose(asked()).lane for _ in range(100)).most_common(1)[0][0] == "n"
    adapted = [made.choose(asked({**BODY, "model": "adapter"})) for _ in range(100)]
    assert Counter(one.lane for one in adapted).most_common(1)[0][0] == "p"
    assert {one.decision.context.model for one in adapted if one.decision} == {"adapter"}


def test_upstreams_that_cannot_take_a_request_are_not_chosen() -> None:
    pin = Pin("chat", ANY, "ngram", 5, "trial", "me", 0.0, 1000.0)
    choice = chooser(snapshot(pins=(pin,))).choose(asked(in_flight={"p": 9}))
    assert decided(choice) == ("p", Reason.PINNED)
    assert choice.decision is not None
    assert (choice.decision.drafter, choice.decision.forced) == (PLAIN, False)


def test_a_default_arm_serves_where_nothing_is_learned_by_configuration() -> None:
    modes = RouteModes({}, Mode.CANARY, {"chat": Arm.fixed("ngram", 5)}, PLAIN_ARM, 0.0)
    assert reasons(snapshot(modes=modes), asked()) == {("n", "ROUTE_DEFAULT"): 400}


@pytest.mark.parametrize("route", [None, "unheard", "x" * 10_000])
def test_routes_are_a_closed_set(route: str | None) -> None:
    choice = chooser(snapshot()).choose(asked(route=route))
    assert choice.decision is not None
    assert choice.decision.context.route == OTHER_ROUTE


@pytest.mark.parametrize(
    ("header", "content", "found"),
    [
        ("DA-dk", "Please tell me how the harbour was built in the old days.", "da"),
        ("klingon", "Please tell me how the harbour was built in the old days.", "en"),
        (None, "Fortæl mig hvordan havnen blev bygget i gamle dage, og hvem der byggede den.", "da"),
        (None, [{"type": "text", "text": "Wie wurde der Hafen früher gebaut, und wer hat ihn gebaut?"}], "de"),
        (None, None, "und"),
    ],
)
def test_the_language_is_the_headers_or_that_of_the_last_user_turn(
    header: str | None, content: object, found: str
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    choice = chooser(snapshot()).choose(asked(body, language=header))
    assert choice.decision is not None
    assert choice.decision.context.language == found


@pytest.mark.parametrize(
    "body", [None, {}, {"messages": 5}, {"messages": [None, 3]}, {"prompt": [1, 2]}, {"model": []}]
)
def test_any_body_is_passed_on(body: Mapping[str, Any] | None) -> None:
    made = chooser(snapshot())
    assert made.choose(asked(body, language=None)).upstream in ("p", "n")
    assert made.faults == 0


def test_a_fault_passes_the_request_on_and_is_counted() -> None:
    made = chooser(snapshot(speeds=None))
    choice = made.choose(asked(in_flight={"p": 3, "n": 1}))
    assert (choice.upstream, choice.edits, choice.decision) == ("n", (), None)
    assert made.faults == 1


def test_before_a_snapshot_everything_is_passed_on_as_it_comes() -> None:
    made = PoolChooser(_DETECTOR)
    assert not made.reads("/v1/chat/completions", "chat")
    assert made.choose(asked(in_flight={"p": 3, "n": 1})) == Choice("n")
    assert made.choose(asked(sent_to="p", in_flight={"p": 3, "n": 1})) == Choice("p")


def test_debug_tells_more() -> None:
    told = dict(chooser(snapshot()).choose(asked(debug=True)).answer_headers)
    assert told["x-paceline-lane"] in ("n", "p")
    assert told["x-paceline-route"] == "chat"


def test_sessions_are_bounded() -> None:
    sessions = Sessions()
    for session in range(MOST_SESSIONS + 10):
        sessions.note(session, Home("p", 1.0))
    assert len(sessions) == MOST_SESSIONS
    assert sessions.home(0) is None
    assert sessions.home(MOST_SESSIONS) == Home("p", 1.0)


def test_keys_of_requests_are_unique_and_a_snapshot_crosses_processes() -> None:
    made = chooser(pickle.loads(pickle.dumps(snapshot())))
    keys = [made.choose(asked()).request_key for _ in range(100)]
    assert len(set(keys)) == 100
    assert all(0 < key < 1 << 63 for key in keys)


def test_the_share_that_is_held_does_not_hang_on_the_draw_for_canary() -> None:
    draws = random.Random(1)
    sessions = [draws.getrandbits(63) for _ in range(4000)]
    held = [fraction(session, 0) < 0.2 for session in sessions]
    canary = [fraction(session, 1) < 0.1 for session in sessions]
    both = sum(map(min, held, canary)) / len(sessions)
    assert both == pytest.approx(0.02, abs=4 * math.sqrt(0.02 / len(sessions)))


def test_a_lane_that_nobody_knows_is_tried_within_ten_requests_whatever_the_draws_are() -> None:
    # Learned from nothing yet, or long learned of the others: a new kind of lane does not wait for its luck.
    unknown = context(error=0.5)
    for seed in range(200):
        for learned in (frozenset[tuple[str, str]](), frozenset({("chat", "en")})):
            given = snapshot(speeds={("m", "chat", "en"): replace(unknown, curves={"p": SLOW, "n": SLOW})}, seed=seed)
            made = chooser(replace(given, learned=learned))
            lanes = [made.choose(asked()).lane for _ in range(5)]
            assert set(lanes) == {"p", "n"}


def test_each_request_has_the_chance_of_a_trial_that_its_decision_tells() -> None:
    found: Counter[int] = Counter()
    for seed in range(2000):
        course = Course(random.Random(seed))
        found.update(place for place in range(20) if course.tries(TRIED_SHARE))
    assert all(found[place] == pytest.approx(TRIED_SHARE * 2000, abs=5 * math.sqrt(400)) for place in range(20))


def test_until_something_is_learned_requests_explore_and_only_trials_are_bounded() -> None:
    given = snapshot(
        learned=frozenset(), speeds={("m", "chat", "en"): context(error=0.5)}, new_trials=Trials(at_once=1)
    )
    assert set(reasons(given, asked())) == {("n", "EXPLORE"), ("p", "EXPLORE")}
    assert reasons(given, asked())["p", "EXPLORE"] == 1
    assert set(reasons(snapshot(Mode.CANARY, learned=frozenset()), asked(session=None), 40)) >= {("n", "EXPLORE")}


def test_where_there_is_one_kind_of_lane_nothing_was_learned_or_held() -> None:
    alone = snapshot(lanes=(lane("n", "unknown", UNKNOWN_LENGTH),), speeds={}, plain_share=1.0, learned=frozenset())
    assert reasons(alone, asked(in_flight={"n": 0})) == {("n", "ENGINE_DEFAULT"): 400}
    plain = replace(alone, lanes=(lane("p"),))
    assert reasons(plain, asked(in_flight={"p": 0})) == {("p", "ENGINE_DEFAULT"): 400}


def test_a_length_that_nobody_knows_is_told_as_unknown() -> None:
    alone = snapshot(lanes=(lane("n", "ngram", UNKNOWN_LENGTH),), speeds={}, learned=frozenset())
    choice = chooser(alone).choose(asked(in_flight={"n": 0}, debug=True))
    assert dict(choice.answer_headers)["x-paceline-cap"] == "unknown"
    assert choice.decision is not None
    assert choice.decision.cap == describe(choice.decision.decision_id).cap == UNKNOWN_LENGTH


@pytest.mark.parametrize(
    "garbage",
    [{"max_tokens": 10**400}, {"max_tokens": True}, {"stream_options": {"x": "\ud800"}}, {"stream_options": 5}],
)
def test_what_a_client_garbles_is_no_fault_of_the_chooser(garbage: Mapping[str, Any]) -> None:
    made = chooser(snapshot())
    assert made.choose(asked({**BODY, **garbage})).decision is not None
    assert made.faults == 0

"""The admin API over HTTP, with a steering that is scripted and a recorder with a real store."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from policies import Arm, BlockEnd, Context, Interval, Policy, PolicyState, Reason
from policies.cycle_policy import Copier, Outlook
from policies.decision_id import DecisionFields, encode
from policies.store import Store
from policies.testing import FakeClock
from tests.policies import store_samples as samples
from tests.tuner.scripted_steering import ScriptedSteering, snapshot
from tests.tuner.simulated_engine import cycle, sequence
from tuner.acceptance import Acceptance
from tuner.api.app import create_admin_app
from tuner.api.drafters import DrafterConflictError, DrafterControl
from tuner.api.durations import describe_duration, parse_duration
from tuner.api.explain import LADDER, REASON_SENTENCES, explain, schedule_words
from tuner.api.views import policies_view
from tuner.guardrails import Check, Guard, GuardrailState, Standing, Verdict
from tuner.recorder import Recorder, RecorderOptions
from tuner.safety import Gate, SafetyState
from tuner.settings import RouteSettings, Settings

DEADLINE_SECONDS = 60.0
PIN = {"drafter": "ngram", "block_length": 4, "reason": "a trial", "expires_in": "2h"}
PIN_PATH = "/api/v1/policies/code-edit/code/pin"
POLICY_PATH = "/api/v1/policies/code-edit/code"


@dataclass
class Admin:
    client: TestClient
    steering: ScriptedSteering
    recorder: Recorder
    store: Store
    clock: FakeClock
    ready: bool = True


Start = Callable[..., Admin]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    recorders: list[Recorder] = []

    def start_admin(settings: Settings | None = None, control: DrafterControl | None = None) -> Admin:
        store = Store(f"sqlite:///{tmp_path / 'paceline.db'}")
        clock = FakeClock(1_000.0)
        recorder = Recorder(store, RecorderOptions(samples.MODEL, flush_seconds=3600.0), clock)
        recorder.start()
        recorders.append(recorder)
        steering = ScriptedSteering(snapshot())

        async def render() -> bytes:
            return b"paceline_store_up 1.0\n"

        started: Admin
        settings = settings or Settings()
        app = create_admin_app(steering, recorder, render, lambda: started.ready, settings, clock, control)
        started = Admin(TestClient(app, raise_server_exceptions=False), steering, recorder, store, clock)
        return started

    yield start_admin
    for recorder in recorders:
        recorder.close(DEADLINE_SECONDS)


@pytest.fixture
def admin(start: Start) -> Admin:
    return start()


def problem(response: Any, status: int) -> dict[str, Any]:
    """The problem of an answer, checked for what every problem has."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert set(body) >= {"type", "title", "status", "detail", "instance"}
    assert body["status"] == status
    assert body["detail"].endswith(".")
    return body


def test_status_says_what_is_in_force(admin: Admin) -> None:
    body = admin.client.get("/api/v1/status").json()
    assert body["model"] == samples.MODEL
    assert body["ready"] is True
    assert body["policies"] == {"on": 1}
    assert body["requests"] == 37
    assert body["throughput"]["plain_tokens"] == 300
    assert body["store"]["dropped"] == 0


def test_policies_has_one_line_for_each_context(admin: Admin) -> None:
    (line,) = admin.client.get("/api/v1/policies").json()["policies"]
    assert (line["route"], line["language"], line["drafter"], line["state"]) == ("code-edit", "code", "ngram", "on")
    assert (line["speedup"], line["speedup_low"], line["speedup_high"]) == (1.62, 1.5, 1.74)
    assert line["schedule"][0] == {"load_low": 1, "load_high": 2, "block_length": 8, "drafter": "ngram"}
    assert line["pinned"] is False


def test_a_policy_comes_with_its_ladder_and_its_evidence(admin: Admin) -> None:
    response = admin.client.get(POLICY_PATH)
    body = response.json()
    assert response.headers["etag"].startswith('"')
    assert body["policy"]["version"] == 7
    explanation = body["explanation"]
    assert explanation["reason"] == "LEARNED"
    assert [rung["name"] for rung in explanation["ladder"]] == list(LADDER)
    standings = [rung["standing"] for rung in explanation["ladder"]]
    assert standings == ["above"] * 5 + ["decides"] + ["below"] * 2
    evidence = " ".join(explanation["evidence"])
    for part in (
        "37 requests and 412 cycles",
        "1: 80%, 2: 60%",
        "+70% at load 1",
        "1.62x plain, 95 % interval 1.50 to 1.74",
    ):
        assert part in evidence


def test_a_guardrail_that_holds_a_route_decides_and_says_what_was_measured(admin: Admin) -> None:
    share = Interval(0.2, 0.1, 0.37)
    held = GuardrailState(
        "code-edit", Check.ERRORS, Verdict.FAILED, Standing.TRIPPED, 0.02, 30, share, admin.clock() + 240.0, 1
    )
    fine = GuardrailState("*", Check.MEMORY, Verdict.SUCCESS, bar=0.03, share=Interval(0.4, 0.4, 0.4))
    guards = {"code-edit": Guard(Reason.GUARDRAIL_ERRORS, 0.0)}
    steering = admin.steering
    steering.snapshot = replace(steering.snapshot, guards=guards, guardrails=(held, fine))
    explanation = admin.client.get(POLICY_PATH).json()["explanation"]
    assert (explanation["reason"], explanation["drafter"]) == ("GUARDRAIL_ERRORS", "none")
    rung = next(one for one in explanation["ladder"] if one["name"] == "guardrail")
    assert rung["standing"] == "decides"
    assert rung["note"] == "errors: 20% (10% to 37%) of 30 requests, at most 2%; plain for 4m more"
    assert [one["check"] for one in explanation["guardrails"]] == ["errors", "memory"]
    assert [one["check"] for one in admin.client.get("/api/v1/status").json()["guardrails"]] == ["errors"]
    trying = replace(held, standing=Standing.TRYING, until=None)
    steering.snapshot = replace(steering.snapshot, guardrails=(trying, fine))
    rungs = admin.client.get(POLICY_PATH).json()["explanation"]["ladder"]
    assert "10% of the requests try again" in next(one["note"] for one in rungs if one["name"] == "guardrail")


def test_a_guardrail_that_watches_says_what_it_found(admin: Admin) -> None:
    states = (
        GuardrailState("code-edit", Check.GAIN, Verdict.INCONCLUSIVE),
        GuardrailState("code-edit", Check.TTFT, Verdict.NO_TRAFFIC),
        GuardrailState("chat", Check.ERRORS, Verdict.SUCCESS),
        GuardrailState("*", Check.GAIN, Verdict.INCONCLUSIVE),
    )
    admin.steering.snapshot = replace(admin.steering.snapshot, guardrails=states)
    explanation = admin.client.get(POLICY_PATH).json()["explanation"]
    assert explanation["reason"] == "LEARNED"
    note = next(one["note"] for one in explanation["ladder"] if one["name"] == "guardrail")
    assert note == "none tripped; gain inconclusive, ttft no traffic, gain everywhere inconclusive"


def test_the_status_tells_the_gain_of_everything_with_its_interval_and_the_budget(admin: Admin) -> None:
    assert admin.client.get("/api/v1/status").json()["gain"] is None
    safety = SafetyState(Gate.HELD, -0.1, 5.0, 2)
    admin.steering.snapshot = replace(
        admin.steering.snapshot, engine_gain=Interval(1.5, 1.4, 1.6), safety=safety, shadow_share=0.004
    )
    body = admin.client.get("/api/v1/status").json()
    assert body["gain"] == {"estimate": 1.5, "low": 1.4, "high": 1.6}
    assert body["safety"] == {"gate": "held", "budget_seconds": -0.1, "cap_seconds": 5.0, "held": 2}
    assert body["shadow_share"] == 0.004


def test_every_drafter_that_was_seen_in_a_context_is_explained_with_its_intervals(admin: Admin) -> None:
    acceptance = Acceptance()
    context = Context(samples.MODEL, "code-edit", "code")
    for key in range(1, 51):
        stats = sequence(context, key=key, accepted=4, verified=8, end=BlockEnd.REJECTED, drafter="suffix")
        acceptance.fold(cycle(load=1, tokens=9, kv_tokens=100, seconds=0.02, sequences=(stats,)))
        acceptance.finish(key)
    pooled, by_key = acceptance.curves("suffix", [("code-edit", "code")])
    curves = {"suffix": {**by_key, ("*", "*"): pooled}}
    admin.steering.snapshot = replace(admin.steering.snapshot, curves=curves)
    [found] = admin.client.get(POLICY_PATH).json()["explanation"]["drafters"]
    assert (found["drafter"], found["blocks"]) == ("suffix", pytest.approx(50.0, rel=0.1))
    assert found["low"][3] <= found["survival"][3] <= found["high"][3]
    assert found["survival"][3] > 0.9 > 0.2 > found["survival"][4]


def test_a_configured_route_without_traffic_has_no_policy_yet(admin: Admin) -> None:
    body = admin.client.get("/api/v1/policies/chat/da").json()
    assert body["policy"] is None
    assert body["explanation"]["reason"] == "EXPLORE"


def test_a_pin_is_in_force_before_it_is_recorded_and_is_audited(admin: Admin) -> None:
    response = admin.client.put(PIN_PATH, json=PIN, headers={"x-paceline-actor": "ada"})
    assert response.status_code == 200
    body = response.json()
    assert body["pin"]["expires_at"] == 1_000.0 + 7_200.0
    assert body["explanation"]["reason"] == "PINNED"
    note = "ngram at 4 for code, 2h left, by ada: a trial; `paceline unpin code-edit --language code` takes it back"
    assert note in [rung["note"] for rung in body["explanation"]["ladder"]]
    assert admin.steering.calls == ["set_pin"]
    assert admin.recorder.flush(DEADLINE_SECONDS)
    assert admin.store.load_state(samples.MODEL).pins == admin.steering.snapshot.pins
    (entry,) = admin.store.audit(10)
    assert (entry.action, entry.actor, entry.reason) == ("pin", "ada", "a trial")


def test_a_pin_for_every_language_holds_each_of_them_and_an_expired_one_none(admin: Admin) -> None:
    admin.client.put("/api/v1/policies/code-edit/*/pin", json={"mode": "off", "reason": "slow", "expires_in": "30m"})
    pinned = admin.client.get(POLICY_PATH).json()
    assert (pinned["pin"]["language"], pinned["pin"]["drafter"], pinned["pin"]["block_length"]) == ("*", "none", 0)
    assert pinned["explanation"]["reason"] == "PINNED"
    admin.clock.advance(30 * 60.0)
    assert admin.client.get(POLICY_PATH).json()["pin"] is None
    assert admin.client.get("/api/v1/status").json()["pins"] == []


class ScriptedDrafters:
    """A `DrafterControl` that keeps a list."""

    def __init__(self) -> None:
        self.drafters: tuple[str, ...] = ("none", "ngram")

    async def load_drafter(self, source: str) -> None:
        if source == "eagle":
            raise DrafterConflictError("there is no drafter 'eagle'; give one of ngram, suffix.")
        self.drafters = (*self.drafters, source)

    async def unload_drafter(self, name: str) -> None:
        self.drafters = tuple(drafter for drafter in self.drafters if drafter != name)


def test_drafters_come_and_go_and_are_audited(start: Start) -> None:
    admin = start(control=ScriptedDrafters())
    assert admin.client.get("/api/v1/drafters").json() == {"drafters": ["none", "ngram"]}
    body = {"source": "suffix", "reason": "a trial"}
    loaded = admin.client.post("/api/v1/drafters", json=body, headers={"x-paceline-actor": "ada"})
    assert loaded.json() == {"drafters": ["none", "ngram", "suffix"]}
    assert admin.client.get("/api/v1/status").json()["drafters"] == ["none", "ngram", "suffix"]
    refused = problem(admin.client.post("/api/v1/drafters", json=body | {"source": "eagle"}), 409)
    assert refused["detail"] == "there is no drafter 'eagle'; give one of ngram, suffix."
    assert "reason" in problem(admin.client.delete("/api/v1/drafters/suffix"), 422)["detail"]
    unloaded = admin.client.delete("/api/v1/drafters/suffix", params={"reason": "it lost"})
    assert unloaded.json() == {"drafters": ["none", "ngram"]}
    assert admin.recorder.flush(DEADLINE_SECONDS)
    assert [(entry.action, entry.actor, entry.reason, entry.details) for entry in admin.store.audit(10)] == [
        ("unload", "unknown", "it lost", {"drafter": "suffix"}),
        ("load", "ada", "a trial", {"drafter": "suffix"}),
    ]


def test_the_drafters_of_an_engine_without_control_are_fixed(admin: Admin) -> None:
    answer = admin.client.post("/api/v1/drafters", json={"source": "suffix", "reason": "a trial"})
    assert problem(answer, 409)["detail"] == "The drafters of this engine are fixed."


def test_a_pin_of_every_language_is_named_where_one_of_a_single_language_is_not(admin: Admin) -> None:
    admin.client.put("/api/v1/policies/chat/*/pin", json=PIN)
    refused = problem(admin.client.delete("/api/v1/policies/chat/da/pin"), 404)
    assert "the one that holds there is for every language, '*': take that back." in refused["detail"]
    ladder = admin.client.get("/api/v1/policies/chat/da").json()["explanation"]["ladder"]
    rungs = {rung["name"]: rung["note"] for rung in ladder}
    assert rungs["pin"].endswith("a trial; `paceline unpin chat --language '*'` takes it back")


def test_the_rung_of_the_kill_switch_names_the_command_that_changes_it(admin: Admin) -> None:
    def note() -> str:
        ladder = admin.client.get("/api/v1/policies/chat/da").json()["explanation"]["ladder"]
        found: str = ladder[0]["note"]
        return found

    assert note() == "none; `paceline off` sets one, which stops speculation"
    admin.client.post("/api/v1/kill-switch", json={"route": "chat", "active": True, "reason": "slow"})
    assert note().endswith("by unknown: slow; `paceline on chat` takes it back")
    admin.client.post("/api/v1/kill-switch", json={"route": "chat", "active": False})
    admin.client.post("/api/v1/kill-switch", json={"route": "*", "active": True, "reason": "slow"})
    assert note().endswith("by unknown: slow; `paceline on --all` takes it back")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/health", "/version"])
def test_what_is_on_the_data_port_is_a_problem_that_says_so(admin: Admin, path: str) -> None:
    assert "is on the data port" in problem(admin.client.get(path), 404)["detail"]


def test_a_pin_to_plain_needs_no_block_length(admin: Admin) -> None:
    pin = admin.client.put(PIN_PATH, json={key: PIN[key] for key in PIN if key != "block_length"} | {"drafter": "none"})
    assert (pin.json()["pin"]["drafter"], pin.json()["pin"]["block_length"]) == ("none", 0)


def test_unpin_takes_the_pin_back_once(admin: Admin) -> None:
    admin.client.put(PIN_PATH, json=PIN)
    assert admin.client.delete(PIN_PATH, headers={"x-paceline-actor": "grace"}).json()["pin"] is None
    assert "no pin for route 'code-edit'" in problem(admin.client.delete(PIN_PATH), 404)["detail"]
    assert admin.recorder.flush(DEADLINE_SECONDS)
    assert admin.store.load_state(samples.MODEL).pins == ()
    assert [(entry.action, entry.actor) for entry in admin.store.audit(10)] == [("unpin", "grace"), ("pin", "unknown")]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"reason": None}, "reason is missing; give a text of 1 to 500 characters."),
        ({"reason": "  "}, 'reason is "  "; give a text of 1 to 500 characters.'),
        ({"reason": "a\u0000b"}, "reason: 'a\\x00b' has control characters: leave them out."),
        ({"reason": "line\nline"}, "has control characters"),
        ({"reason": "x" * 501}, "xxx…; give a text of 1 to 500 characters."),
        ({"reason": 5}, "reason is 5; give a text"),
        ({"expires_in": None}, "expires_in is missing; give a time such as 90s"),
        ({"expires_in": 7200}, "expires_in is 7200; give a time such as 90s, 30m, 2h or 1d, as a string."),
        ({"expires_in": "99999999999h"}, "'99999999999h' is too long a duration: write at most 999999d"),
        ({"expires_in": "1000000d"}, "too long a duration"),
        ({"expires_in": "9" * 5000 + "h"}, "too long a duration"),
        ({"expires_in": "soon"}, "expires_in: 'soon' is not a duration above zero: write 90s, 30m, 2h or 1d"),
        ({"expires_in": "0s"}, "'0s' is not a duration above zero"),
        ({"drafter": ""}, 'drafter is ""; give the name of a drafter'),
        ({"drafter": None}, "give drafter and block_length, or mode: off"),
        ({"block_length": -1}, "block_length is -1; give a whole number from 0 to 16."),
        ({"block_length": 17}, "block_length is 17; give a whole number from 0 to 16."),
        ({"block_length": "4"}, 'block_length is "4"; give a whole number from 0 to 16.'),
        ({"block_length": True}, "block_length is true; give a whole number from 0 to 16."),
        ({"block_length": 4.0}, "block_length is 4.0; give a whole number from 0 to 16."),
        ({"exempt_from_switchback": "yes"}, 'exempt_from_switchback is "yes"; give true or false.'),
        ({"exempt_from_switchback": 1}, "exempt_from_switchback is 1; give true or false."),
        ({"drafter": "ngram\u0007"}, "drafter: 'ngram\\x07' has control characters"),
        ({"drafter": "none"}, "drafter 'none' proposes nothing"),
        ({"mode": "off"}, "mode off goes alone"),
        ({"mode": "on"}, "mode"),
        ({"colour": "red"}, 'colour is "red", but there is no such field; remove it.'),
        ({"reason": "refused"}, "drafter 'ngram' is unknown to this engine; use one of none"),
    ],
)
def test_a_pin_that_cannot_be_is_a_problem_that_names_the_field(
    admin: Admin, change: dict[str, Any], complaint: str
) -> None:
    body = {key: value for key, value in (PIN | change).items() if value is not None}
    assert complaint in problem(admin.client.put(PIN_PATH, json=body), 422)["detail"]
    assert admin.steering.snapshot.pins == ()


def test_a_write_after_somebody_elses_is_refused_by_if_match(admin: Admin) -> None:
    tag = admin.client.get(POLICY_PATH).headers["etag"]
    first = admin.client.put(PIN_PATH, json=PIN, headers={"if-match": tag})
    assert first.status_code == 200
    stale = admin.client.put(PIN_PATH, json=PIN | {"block_length": 8}, headers={"if-match": tag})
    assert "has changed since you read it" in problem(stale, 412)["detail"]
    problem(admin.client.delete(PIN_PATH, headers={"if-match": tag}), 412)
    assert admin.steering.snapshot.pins[0].block_length == 4
    assert admin.client.delete(PIN_PATH, headers={"if-match": first.headers["etag"]}).status_code == 200
    assert admin.client.put(PIN_PATH, json=PIN, headers={"if-match": "*"}).status_code == 200


def test_if_match_takes_a_list_in_one_line_or_in_several(admin: Admin) -> None:
    def answered(headers: Any) -> int:
        return admin.client.put(PIN_PATH, json=PIN, headers=headers).status_code

    def tag() -> str:
        return admin.client.get(POLICY_PATH).headers["etag"]

    assert answered({"if-match": f'"a", {tag()}'}) == 200
    assert answered([("if-match", '"a"'), ("if-match", tag())]) == 200
    assert answered([("if-match", '"a"'), ("if-match", '"b"')]) == 412


def test_an_actor_is_named_once(admin: Admin) -> None:
    refused = admin.client.put(PIN_PATH, json=PIN, headers=[("x-paceline-actor", "ada"), ("x-paceline-actor", "bob")])
    assert "x-paceline-actor is given more than once" in problem(refused, 422)["detail"]
    assert admin.steering.snapshot.pins == ()


def test_an_order_of_a_route_that_is_no_longer_configured_can_be_taken_back_and_not_given(admin: Admin) -> None:
    admin.steering.set_pin(replace(samples.pin(), route="gone"))
    admin.steering.set_kill(samples.kill_switch("gone"))
    path, switch = "/api/v1/policies/gone/code/pin", {"route": "gone", "active": False}
    assert admin.client.delete(path).json()["pin"] is None
    assert admin.client.post("/api/v1/kill-switch", json=switch).json()["in_force"] == []
    assert (admin.steering.snapshot.pins, admin.steering.snapshot.kill_switches) == ((), ())
    assert admin.recorder.flush(DEADLINE_SECONDS)
    assert [(entry.action, entry.route) for entry in admin.store.audit(10)] == [("unkill", "gone"), ("unpin", "gone")]
    for refused in (
        admin.client.delete(path),
        admin.client.put(path, json=PIN),
        admin.client.post("/api/v1/kill-switch", json=switch),
        admin.client.post("/api/v1/kill-switch", json=switch | {"active": True, "reason": "x"}),
        admin.client.get("/api/v1/policies/*/code"),
    ):
        assert "is not configured" in problem(refused, 404)["detail"]


def test_of_many_routes_a_refusal_names_ten(start: Start) -> None:
    admin = start(Settings(routes={f"r{number:04}": RouteSettings() for number in range(1000)}))
    detail = problem(admin.client.get("/api/v1/policies/nowhere/da"), 404)["detail"]
    assert detail.endswith("r0008 and 991 more.")
    assert len(detail) < 200


def test_the_kill_switch_is_in_force_at_once_and_can_be_taken_back(admin: Admin) -> None:
    body = {"route": "*", "active": True, "reason": "an incident", "expires_in": "2h"}
    killed = admin.client.post("/api/v1/kill-switch", json=body, headers={"x-paceline-actor": "ada"}).json()
    assert killed["active"] is True
    assert killed["in_force"][0]["expires_at"] == 1_000.0 + 7_200.0
    assert admin.steering.calls == ["set_kill"]
    assert admin.client.get(POLICY_PATH).json()["explanation"]["reason"] == "KILL_SWITCH"
    cleared = admin.client.post("/api/v1/kill-switch", json={"route": "*", "active": False}).json()
    assert cleared == {"route": "*", "active": False, "in_force": [], "unmet": ""}
    again = admin.client.post("/api/v1/kill-switch", json={"route": "*", "active": False})
    assert again.status_code == 200
    assert admin.recorder.flush(DEADLINE_SECONDS)
    assert [entry.action for entry in admin.store.audit(10)] == ["unkill", "kill"]
    assert admin.store.load_state(samples.MODEL).kill_switches == ()


@pytest.mark.parametrize(("text", "seconds"), [("12d", 1_036_800), ("999999s", 999_999), ("999999d", 86_399_913_600)])
def test_a_long_time_is_taken_as_it_was_written(admin: Admin, text: str, seconds: int) -> None:
    pinned = admin.client.put(PIN_PATH, json=PIN | {"expires_in": text})
    assert pinned.status_code == 200
    assert pinned.json()["pin"]["expires_at"] == 1_000.0 + seconds
    body = {"route": "chat", "active": True, "reason": "an incident", "expires_in": text}
    killed = admin.client.post("/api/v1/kill-switch", json=body)
    assert killed.status_code == 200
    assert killed.json()["in_force"][0]["expires_at"] == 1_000.0 + seconds


def test_a_route_stays_killed_while_everything_is(admin: Admin) -> None:
    admin.client.post("/api/v1/kill-switch", json={"route": "*", "active": True, "reason": "all"})
    admin.client.post("/api/v1/kill-switch", json={"route": "chat", "active": True, "reason": "one"})
    body = admin.client.post("/api/v1/kill-switch", json={"route": "chat", "active": False}).json()
    assert body["active"] is True
    assert [kill["route"] for kill in body["in_force"]] == ["*"]


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        ({"route": "*", "active": True}, 422, "give a reason"),
        (
            {"route": "nowhere", "active": True, "reason": "x"},
            404,
            "the routes are chat, code-edit, extract, other, story",
        ),
        ({"active": True, "reason": "x"}, 422, "route is missing; give the name of a configured route"),
        ({"route": "*", "active": "true", "reason": "x"}, 422, 'active is "true"; give true or false.'),
        ({"route": "*", "active": 1, "reason": "x"}, 422, "active is 1; give true or false."),
        ({"route": "*", "active": True, "reason": "\u0000"}, 422, "control characters"),
        ({"route": "*", "active": True, "reason": "x", "expires_in": "-1h"}, 422, "not a duration"),
    ],
)
def test_a_kill_switch_that_cannot_be_is_a_problem(
    admin: Admin, body: dict[str, Any], status: int, complaint: str
) -> None:
    assert complaint in problem(admin.client.post("/api/v1/kill-switch", json=body), status)["detail"]
    assert admin.steering.calls == []


def test_a_sampled_decision_comes_from_the_store_and_another_from_its_id(admin: Admin) -> None:
    stats = samples.request_stats(1)
    admin.recorder.record_decision(stats)
    assert admin.recorder.flush(DEADLINE_SECONDS)
    stored = admin.client.get(f"/api/v1/decisions/{stats.decision.decision_id}").json()
    assert (stored["source"], stored["accepted"], stored["finish"]) == ("store", 28, "stop")
    other = encode(DecisionFields(12, "ngram", 8, Reason.EXPLORE, "chat", "da", "5f3a09-1c"))
    read = admin.client.get(f"/api/v1/decisions/{other}").json()
    assert (read["source"], read["policy_version"], read["drafter"], read["cap"]) == ("id", 12, "ngram", 8)
    assert (read["route"], read["language"], read["reason"]) == ("chat", "da", "EXPLORE")
    assert read["sentence"] == REASON_SENTENCES[Reason.EXPLORE]
    assert read["accepted"] is None
    assert "decision id 'nonsense'" in problem(admin.client.get("/api/v1/decisions/nonsense"), 404)["detail"]


def test_a_decision_whose_row_is_damaged_is_read_from_its_id(admin: Admin, tmp_path: Path) -> None:
    made = samples.decision(encode(DecisionFields(7, "ngram", 8, Reason.LEARNED, "code-edit", "code", "5f")))
    admin.recorder.record_decision(samples.request_stats(1, made=made))
    assert admin.recorder.flush(DEADLINE_SECONDS)
    path = f"/api/v1/decisions/{made.decision_id}"
    assert admin.client.get(path).json()["source"] == "store"
    with sqlite3.connect(tmp_path / "paceline.db") as connection:
        connection.execute("UPDATE decisions SET reason = 'NEWREASON'")
    connection.close()
    assert admin.client.get(path).json()["source"] == "id"


def test_a_decision_is_read_from_its_id_while_the_database_is_gone(admin: Admin, tmp_path: Path) -> None:
    assert admin.recorder.flush(DEADLINE_SECONDS)
    (tmp_path / "paceline.db").unlink()
    decision_id = encode(DecisionFields(1, "none", 0, Reason.ERROR, "chat", "und", "a-1"))
    assert admin.client.get(f"/api/v1/decisions/{decision_id}").json()["source"] == "id"


def test_ready_means_that_it_can_serve_whatever_the_database_does(admin: Admin, tmp_path: Path) -> None:
    assert admin.recorder.flush(DEADLINE_SECONDS)
    (tmp_path / "paceline.db").unlink()
    admin.recorder.record_audit(samples.audit_entry())
    assert not admin.recorder.flush(DEADLINE_SECONDS)
    assert admin.client.get("/api/v1/status").json()["store"]["up"] is False
    assert admin.client.get("/readyz").status_code == 200
    admin.ready = False
    problem(admin.client.get("/readyz"), 503)
    assert admin.client.get("/livez").status_code == 200


def test_metrics_are_what_the_renderer_gives(admin: Admin) -> None:
    response = admin.client.get("/metrics")
    assert response.text == "paceline_store_up 1.0\n"
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/api/v1/status", 405),
        ("GET", "/api/v1/policies/nowhere/da", 404),
        ("GET", "/api/v1/policies/chat/Danish", 422),
        ("PUT", PIN_PATH, 422),
    ],
)
def test_every_error_is_a_problem(admin: Admin, method: str, path: str, status: int) -> None:
    problem(admin.client.request(method, path), status)


def test_a_fault_of_our_own_is_a_problem_without_its_details(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr("tuner.api.views.policies_view", fail)
    body = problem(admin.client.get("/api/v1/policies"), 500)
    assert "secret" not in str(body)


@pytest.mark.parametrize(
    ("content", "kind", "told"),
    [
        (
            b"{",
            "json",
            "The body is not JSON (Expecting property name enclosed in double quotes); send one JSON object.",
        ),
        (b"[1]", "json", "The body is [1]; send one JSON object."),
        (b"", "json", "The body is missing; send one JSON object."),
        (b'{"reason": "a", "reason": "b"}', "json", 'The body names "reason" twice in one object; give it once.'),
        (
            b'{"reason": "a"}',
            "text",
            "The body is not sent as JSON; send it with the header content-type: application/json.",
        ),
        (b"(" * 10, "text", "The body is not sent as JSON; send it with the header content-type:"),
    ],
)
def test_a_body_that_is_no_json_object_is_a_problem_of_one_sentence(
    admin: Admin, content: bytes, kind: str, told: str
) -> None:
    types = {"json": "application/json", "text": "text/plain"}
    response = admin.client.put(PIN_PATH, content=content, headers={"content-type": types[kind]})
    assert problem(response, 422)["detail"].startswith(told)


def test_a_load_without_a_source_says_what_to_give(start: Start) -> None:
    admin = start(control=ScriptedDrafters())
    refused = problem(admin.client.post("/api/v1/drafters", json={"reason": "x"}), 422)
    assert refused["detail"].startswith("source is missing; give ngram, suffix")
    refused = problem(admin.client.post("/api/v1/drafters", json={"reason": "x", "source": "a\u0000"}), 422)
    assert "control characters" in refused["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/v1/policies?limit=-1"), ("GET", "/api/v1/status?limit=-1"), ("PUT", f"{PIN_PATH}?limit=-1")],
)
def test_a_parameter_that_a_route_does_not_have_is_refused(admin: Admin, method: str, path: str) -> None:
    refused = problem(admin.client.request(method, path, json=PIN if method == "PUT" else None), 422)
    assert refused["detail"] == 'limit is "-1", but there is no such parameter; remove it.'
    assert admin.steering.snapshot.pins == ()


def test_a_language_is_named_by_the_rule_of_the_header(admin: Admin) -> None:
    pinned = admin.client.put("/api/v1/policies/code-edit/CODE/pin", json=PIN).json()
    assert pinned["pin"]["language"] == "code"
    assert admin.client.get("/api/v1/policies/chat/DE").json()["language"] == "de"
    for language in ("xx", "de-AT", "x" * 5000):
        assert (
            "is no language: write a subtag"
            in problem(admin.client.get(f"/api/v1/policies/chat/{language}"), 422)["detail"]
        )


def test_the_id_of_a_decision_has_no_control_characters(admin: Admin) -> None:
    assert "control characters" in problem(admin.client.get("/api/v1/decisions/a%00b"), 422)["detail"]


def test_a_problem_shows_a_long_path_in_part(admin: Admin) -> None:
    assert len(admin.client.get("/" + "x" * 50_000).content) < 1000


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_head_asks_the_probes_and_the_metrics_too(admin: Admin, path: str) -> None:
    assert admin.client.head(path).status_code == 200
    assert admin.client.get("/api/v1/openapi.json").status_code == 200


def test_a_token_is_asked_for_everywhere_but_at_health_and_metrics(start: Start) -> None:
    admin = start(Settings.model_validate({"admin": {"token": "hunter2"}}))
    for headers in ({}, {"authorization": "Bearer hunter3"}, {"authorization": "Basic hunter2"}):
        response = admin.client.get("/api/v1/status", headers=headers)
        assert "admin.token" in problem(response, 401)["detail"]
        assert response.headers["www-authenticate"] == "Bearer"
    problem(admin.client.post("/api/v1/kill-switch", json={"route": "*", "active": False}), 401)
    assert admin.client.get("/api/v1/status", headers={"authorization": "Bearer hunter2"}).status_code == 200
    for path in ("/livez", "/readyz", "/metrics"):
        assert admin.client.get(path).status_code == 200


def test_the_deciding_rung_follows_the_ladder() -> None:
    steering = ScriptedSteering(snapshot())
    auto = RouteSettings()

    def reason(configured: RouteSettings = auto, language: str = "code") -> Reason:
        return explain(steering.snapshot, "code-edit", language, configured, "ngram", 1_000.0).reason

    assert reason(RouteSettings.model_validate({"mode": "off"})) is Reason.ROUTE_DEFAULT
    assert reason() is Reason.LEARNED
    steering.set_pin(samples.pin())
    assert reason() is Reason.PINNED
    assert reason(language="da") is Reason.EXPLORE
    steering.open_plain_window()
    assert reason() is Reason.SWITCHBACK
    steering.set_kill(samples.kill_switch())
    assert reason() is Reason.KILL_SWITCH


def test_what_is_not_measured_here_is_not_told_as_evidence() -> None:
    unseen = replace(
        samples.policy(1), evidence=replace(samples.policy(1).evidence, cycles=0, requests=0, speedup=None)
    )
    found = explain(snapshot({("code-edit", "code"): unseen}), "code-edit", "code", RouteSettings(), "ngram", 1_000.0)
    told = " ".join(found.evidence)
    assert "0 requests and 0 cycles" in told
    assert "are kept" not in told
    assert "not known yet. It is measured again since the server started" in told


def test_a_copier_is_told_with_the_load_up_to_which_it_proposes_first() -> None:
    served = snapshot({("code-edit", "code"): samples.policy(1)})
    copier = Copier("suffix", 6, (Outlook((0.9,), (1.0,)),))
    copied = replace(served, cycle_policy=replace(served.cycle_policy, copiers={("code-edit", "code"): copier}))
    sentence = "Up to load 6, suffix proposes first"
    for found, told in ((copied, True), (served, False)):
        evidence = explain(found, "code-edit", "code", RouteSettings(), "ngram", 1_000.0).evidence
        assert any(sentence in each and "predicted and measured, include it" in each for each in evidence) is told
        [summary] = policies_view(found, {}, 1_000.0).policies
        assert (summary.copier, summary.copier_most_load) == (("suffix", 6) if told else (None, None))


@pytest.mark.parametrize(("high", "told"), [(1.23, True), (1.7, False)])
def test_a_measure_that_stays_below_the_prediction_is_commented(high: float, told: bool) -> None:
    basis = samples.policy(1).evidence
    basis = replace(basis, speedup=Interval(0.96, 0.75, high), predicted_speedup=((1, 1.88), (4, 1.64)))
    found = snapshot({("code-edit", "code"): replace(samples.policy(1), evidence=basis)})
    evidence = explain(found, "code-edit", "code", RouteSettings(), "ngram", 1_000.0).evidence
    assert any(each.startswith("That is less than predicted.") for each in evidence) is told


def test_the_learned_rung_of_a_pinned_context_does_not_show_the_pin() -> None:
    pinned = replace(samples.policy(1), state=PolicyState.PINNED, reason=Reason.PINNED)
    found = explain(snapshot({("code-edit", "code"): pinned}), "code-edit", "code", RouteSettings(), "ngram", 1_000.0)
    learned = next(rung for rung in found.ladder if rung.name == "learned")
    assert learned.note == "goes on learning; its arm comes back when nothing stronger holds"


def test_every_reason_has_a_sentence() -> None:
    assert set(REASON_SENTENCES) == set(Reason)
    assert all(sentence.endswith(".") for sentence in REASON_SENTENCES.values())


def test_a_schedule_is_told_in_words() -> None:
    policy: Policy = samples.policy(1)
    assert policy.state is PolicyState.ON
    assert schedule_words(policy.arm) == "ngram K=8 at load 1-2, suffix K=4 at load 3-8"
    one = replace(policy.arm, schedule=tuple(replace(step, drafter="ngram") for step in policy.arm.schedule))
    assert schedule_words(one) == "ngram, K=8 at load 1-2, K=4 at load 3-8"
    assert schedule_words(Arm.fixed("ngram", 4)) == "ngram, K=4 at every load"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1d", 86_400), ("1h30m", 5_400)]
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 h", "1m1h", "-1h", "1.5h", "٣h", "0h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 30m, 2h or 1d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (59.6, "1m"), (7_199, "2h"), (7_140, "1h 59m"), (86_399.5, "1d"), (90_061, "1d 2h"), (-5, "0s")],
)
def test_a_length_of_time_is_told_in_two_units(seconds: float, words: str) -> None:
    assert describe_duration(seconds) == words


UNMET = "no server here is known to decode plain"


def test_an_order_for_plain_that_cannot_be_met_says_so_wherever_it_is_shown(start: Start) -> None:
    admin = start()
    admin.steering.snapshot = replace(admin.steering.snapshot, unmet=UNMET, plain_sessions=True)
    assert admin.client.get("/api/v1/status").json()["unmet"] == ""
    assert admin.client.get(POLICY_PATH).json()["unmet"] == ""
    pinned = {"drafter": "none", "reason": "a trial", "expires_in": "2h"}
    assert admin.client.put(PIN_PATH, json=pinned).json()["unmet"] == UNMET
    assert admin.client.get("/api/v1/status").json()["unmet"] == UNMET
    assert admin.client.delete(PIN_PATH).json()["unmet"] == ""
    killed = admin.client.post("/api/v1/kill-switch", json={"route": "*", "active": True, "reason": "an incident"})
    assert killed.json()["unmet"] == UNMET
    assert admin.client.get(POLICY_PATH).json()["unmet"] == UNMET
    cleared = admin.client.post("/api/v1/kill-switch", json={"route": "*", "active": False})
    assert cleared.json()["unmet"] == ""


def test_a_fleet_claims_no_cycles_and_no_default_of_its_own() -> None:
    start_of = snapshot()
    default = replace(start_of.policies["code-edit", "code"], reason=Reason.ENGINE_DEFAULT, state=PolicyState.ON)
    told = replace(start_of, policies={("code-edit", "code"): default}, plain_sessions=True)
    found = explain(told, "code-edit", "code", RouteSettings(), "ngram", 0.0)
    assert found.reason is Reason.ENGINE_DEFAULT
    assert [rung.note for rung in found.ladder if rung.standing == "decides"] == ["as without Paceline"]
    assert not any("cycle" in sentence for sentence in found.evidence if sentence.startswith("Seen"))

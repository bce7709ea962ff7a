"""The whole service over HTTP: what clients get, what operators read, and what they change."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from policies.stats import CycleStats
from tests.dashboards.prometheus_process import until
from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import DEADLINE_SECONDS, ENDLESS, CycleLog, LiveService, live_service, tiny_settings
from tuner.metrics import CONTENT_TYPE

PIN = {"drafter": "ngram", "block_length": 8, "reason": "a trial", "expires_in": "2h", "exempt_from_switchback": True}
OFF = {"route": "*", "active": True, "reason": "an incident"}
ON = {"route": "*", "active": False}
CYCLES = 20
"""Cycles that are looked at behind each change."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    folder = tmp_path_factory.mktemp("service")
    with live_service(tiny_settings(make_tiny_model(folder / "model"), folder / "paceline.db")) as service:
        yield service


@pytest.fixture
def pinned(live: LiveService) -> Iterator[None]:
    """n-gram drafts of 8 on the route of the tests, while a test runs."""
    answer = live.admin.put("/api/v1/policies/chat/en/pin", json=PIN, headers={"x-paceline-actor": "ada"})
    assert answer.status_code == 200, answer.text
    yield
    assert live.admin.delete("/api/v1/policies/chat/en/pin").status_code == 200


def get(live: LiveService, path: str) -> Any:
    answer = live.admin.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def switch(live: LiveService, body: dict[str, object]) -> Any:
    answer = live.admin.post("/api/v1/kill-switch", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def reason(live: LiveService, **headers: str) -> str:
    return live.complete(max_tokens=2, headers=headers).headers["x-paceline-reason"]


def verified(cycles: Sequence[CycleStats]) -> int:
    return sum(sequence.verified for stats in cycles for sequence in stats.sequences)


def test_a_stream_gives_the_text_of_the_whole_answer(live: LiveService) -> None:
    messages = [{"role": "user", "content": "Who pulls?"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 20, "seed": 3, "logit_bias": ENDLESS}
    whole = live.data.post("/v1/chat/completions", json=body).json()
    assert whole["usage"]["completion_tokens"] == 20
    with live.data.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
        *chunks, end = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert end == "[DONE]"
    texts = [json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(texts) == whole["choices"][0]["message"]["content"] != ""


def test_speculation_changes_no_text(live: LiveService, pinned: None) -> None:
    fields: dict[str, Any] = {"max_tokens": 200, "temperature": 0.8, "logit_bias": ENDLESS}
    log = CycleLog()
    with live.service.listening(log):
        drafted = live.complete(**fields).json()["choices"]
        live.fold()
    assert verified(log.cycles) > 0
    switch(live, OFF)
    plain = live.complete(**fields)
    switch(live, ON)
    assert plain.headers["x-paceline-reason"] == "KILL_SWITCH"
    assert drafted == plain.json()["choices"]


def test_traffic_shows_in_status_policies_and_metrics(live: LiveService) -> None:
    before = get(live, "/api/v1/status")["requests"]
    for _ in range(3):
        live.complete(route="story")
    assert live.complete(route="nobody-configured-this").headers["x-paceline-route"] == "other"

    def counted() -> Any:
        status = get(live, "/api/v1/status")
        return status if status["requests"] >= before + 4 else None

    status = until(counted, DEADLINE_SECONDS, "the requests are counted")
    assert (status["model"], status["ready"]) == ("tiny", True)
    lines = {(line["route"], line["language"]): line for line in get(live, "/api/v1/policies")["policies"]}
    assert lines["story", "en"]["requests"] == 3
    assert lines["story", "en"]["version"] >= 1
    assert lines["other", "en"]["requests"] >= 1
    assert live.metric("paceline_requests_total", route="story", language="en") == 3
    assert live.metric("paceline_output_tokens_total", route="story", language="en") == 3 * 24
    assert live.metric("paceline_policy_info", route="story") == 1
    assert live.metric("paceline_engine_up") == 1
    live.until_metric("paceline_store_up", 1)


def test_a_policy_is_explained(live: LiveService) -> None:
    live.complete(route="extract")
    view = until(lambda: seen(live, "extract"), DEADLINE_SECONDS, "the context has a policy")
    assert view["policy"]["state"] == "learning"
    assert view["explanation"]


def seen(live: LiveService, route: str) -> Any:
    view = get(live, f"/api/v1/policies/{route}/en")
    return view if view["policy"] is not None else None


def test_probes_answer_and_metrics_have_their_content_type(live: LiveService) -> None:
    assert get(live, "/livez") == {"status": "alive"}
    assert get(live, "/readyz") == {"status": "ready"}
    answer = live.admin.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, CONTENT_TYPE)


def test_a_pin_is_in_force_in_the_next_request_and_its_removal_too(live: LiveService) -> None:
    path = "/api/v1/policies/chat/en"
    assert reason(live) != "PINNED"
    assert live.admin.put(f"{path}/pin", json=PIN).status_code == 200
    answer = live.complete(max_tokens=2)
    assert answer.headers["x-paceline-reason"] == "PINNED"
    assert (answer.headers["x-paceline-drafter"], answer.headers["x-paceline-cap"]) == ("ngram", "8")
    assert get(live, path)["policy"]["state"] == "pinned"
    assert live.admin.delete(f"{path}/pin").status_code == 200
    assert reason(live) != "PINNED"
    assert get(live, path)["pin"] is None


def test_a_client_can_opt_out_of_speculation_but_not_of_a_pin(live: LiveService) -> None:
    off = {"x-paceline-mode": "off"}
    log = CycleLog()
    with live.service.listening(log):
        answer = live.complete(max_tokens=64, headers=off)
        live.fold()
    assert answer.headers["x-paceline-reason"] == "CLIENT_OPT_OUT"
    assert answer.headers["x-paceline-cap"] == "0"
    assert log.cycles
    assert all(sequence.requested == 0 for stats in log.cycles for sequence in stats.sequences)
    assert live.admin.put("/api/v1/policies/chat/en/pin", json=PIN).status_code == 200
    assert reason(live, **off) == "PINNED"
    assert live.admin.delete("/api/v1/policies/chat/en/pin").status_code == 200


def test_a_decision_is_found_by_its_id(live: LiveService, pinned: None) -> None:
    answer = live.complete(max_tokens=2)
    decision = get(live, f"/api/v1/decisions/{answer.headers['x-paceline-decision']}")
    assert (decision["route"], decision["language"], decision["reason"]) == ("chat", "en", "PINNED")
    assert (decision["drafter"], decision["cap"]) == ("ngram", 8)
    assert live.admin.get("/api/v1/decisions/nobody-made-this").status_code == 404


def test_no_cycle_after_the_kill_switch_speculates(live: LiveService, pinned: None) -> None:
    log = CycleLog()
    fields: dict[str, Any] = {"max_tokens": 600, "temperature": 0.8, "logit_bias": ENDLESS}
    with live.service.listening(log), live.traffic(3, **fields):
        until(lambda: verified(log.cycles) or None, DEADLINE_SECONDS, "drafts are verified")
        started = time.perf_counter()
        answer = switch(live, OFF)
        in_force = (reason(live), get(live, "/api/v1/policies/chat/en")["policy"]["state"])
        seconds = time.perf_counter() - started
        # The tuner may publish again at any time; what was in force by now must have reached the engine.
        version = live.service.controller.snapshot.cycle_policy.version
        killed = live.status()
        assert killed.policy_version >= version
        until(lambda: live.status().cycle >= killed.cycle + CYCLES or None, DEADLINE_SECONDS, "cycles went by")
        last = live.status().cycle
        switch(live, ON)
        live.fold()
        until(lambda: verified(log.cycles[-CYCLES:]) or None, DEADLINE_SECONDS, "drafts are verified again")
    assert answer["active"]
    assert in_force == ("KILL_SWITCH", "killed")
    assert seconds < 1.0
    before = [stats for stats in log.cycles if stats.cycle <= killed.cycle]
    after = [stats for stats in log.cycles if killed.cycle < stats.cycle <= last]
    assert len(after) >= CYCLES
    assert verified(before) > 0
    assert verified(after) == 0
    assert all(stats.killed for stats in after)
    assert keys(before) & keys(after), "sequences that ran already were stopped from speculating"


def keys(cycles: Sequence[CycleStats]) -> set[int]:
    return {sequence.request_key for stats in cycles for sequence in stats.sequences}

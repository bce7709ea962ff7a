"""`paceline sidecar` before real llama.cpp servers, as people run it: a program of its own, over HTTP."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

from tests.tuner.fleet.llama_server import MODEL, LlamaServer, start_llama
from tests.tuner.fleet.running_sidecar import RunningSidecar, start_sidecar
from tests.tuner.fleet.tape import Tape, taped
from tests.tuner.fleet.test_llama_cpp import REPEAT, body, metrics
from tuner.cli import app

CHAT = "/v1/chat/completions"
ROUTE = {"x-paceline-route": "chat"}
UNCACHED = {"cache_prompt": False}
"""Texts are the same only where no prompt comes from the cache."""


@pytest.fixture(scope="module")
def tape(llama_ngram: LlamaServer) -> Iterator[Tape]:
    """What goes over the wire between a sidecar and the server that drafts."""
    with taped(llama_ngram.url) as tape:
        yield tape


@pytest.fixture(scope="module")
def observing(tape: Tape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSidecar]:
    with start_sidecar(tmp_path_factory.mktemp("observe"), {"a": tape.url}, "observe") as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def advising(tape: Tape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSidecar]:
    with start_sidecar(tmp_path_factory.mktemp("advise"), {"a": tape.url}, "advise") as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def tuned(
    llama_plain: LlamaServer, llama_ngram: LlamaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningSidecar]:
    """A plain pool and one that drafts, in `auto`."""
    upstreams = {"plain": llama_plain.url, "drafting": llama_ngram.url}
    # llama.cpp does not tell it, and what nobody knows cannot be pinned.
    told = {"PACELINE_FLEET__UPSTREAMS__DRAFTING__BLOCK_LENGTH": "8"}
    with start_sidecar(tmp_path_factory.mktemp("auto"), upstreams, "auto", told) as sidecar:
        yield sidecar


def ask(sidecar: RunningSidecar, headers: Mapping[str, str] = ROUTE, **fields: Any) -> httpx.Response:
    return httpx.post(f"{sidecar.url}{CHAT}", json=body(**fields), headers=dict(headers), timeout=60)


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    said: str = response.json()["choices"][0]["message"]["content"]
    return said


def operate(*arguments: str, sidecar: RunningSidecar) -> None:
    result = CliRunner().invoke(app, [*arguments, "--server", sidecar.admin_url])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_observe_leaves_every_byte_of_both_directions(observing: RunningSidecar, tape: Tape, stream: bool) -> None:
    through, direct = tape.compare(observing.url, CHAT, body(stream=stream))
    assert through == direct
    assert b"draft_n" in through.answer


def test_observe_says_what_it_cannot_learn(observing: RunningSidecar) -> None:
    told = " ".join(observing.told().split())
    assert "observe: both directions pass byte for byte. What cannot be learned so:" in told
    assert "no gain is known" in told


def test_observe_asks_the_server_for_nothing_but_what_it_is(observing: RunningSidecar, tape: Tape) -> None:
    generated = metrics_of(tape)["llamacpp:tokens_predicted_total"]
    with start_sidecar(observing.output.parent, {"a": tape.url}, "observe"):
        assert metrics_of(tape)["llamacpp:tokens_predicted_total"] == generated


def metrics_of(tape: Tape) -> dict[str, float]:
    lines = httpx.get(f"{tape.url}/metrics", timeout=60).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_advise_asks_for_usage_and_takes_it_out_again(advising: RunningSidecar, tape: Tape) -> None:
    tape.rewind()
    answer = ask(advising, stream=True)
    assert answer.status_code == 200
    passed = tape.wire(CHAT.encode())
    assert b'"include_usage":true' in passed.request.replace(b" ", b"")
    assert b'"usage"' in passed.answer
    assert '"usage"' not in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.headers["x-paceline-decision"]


def test_advise_leaves_usage_where_the_client_asked_for_it(advising: RunningSidecar) -> None:
    answer = ask(advising, stream=True, stream_options={"include_usage": True})
    pieces = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert json.loads(pieces[-2])["usage"]["completion_tokens"] > 0


def test_auto_finds_both_pools_and_serves_from_them(tuned: RunningSidecar) -> None:
    told = " ".join(tuned.told().split())
    assert "upstream plain is llama.cpp" in told
    assert "it decodes plain" in told
    assert "it drafts with ngram-simple" in told
    answer = ask(tuned, ROUTE | {"x-paceline-debug": "true"})
    assert text(answer)
    assert answer.headers["x-paceline-lane"] in ("plain", "drafting")
    assert answer.headers["x-paceline-route"] == "chat"


def test_a_pin_chooses_the_pool_and_the_text_stays(
    tuned: RunningSidecar, llama_plain: LlamaServer, llama_ngram: LlamaServer
) -> None:
    texts = {}
    headers = {"x-paceline-route": "story", "x-paceline-language": "code"}
    for drafter, length, server in (("none", "0", llama_plain), ("ngram-simple", "8", llama_ngram)):
        operate(
            *("pin", "story", "--language", "code", "--drafter", drafter, "--block-length", length),
            *("--for", "1h", "--reason", "a test", "--exempt-from-switchback"),
            sidecar=tuned,
        )
        before = metrics(server)["llamacpp:tokens_predicted_total"]
        tuned.wait_for_decision(rf"\.{drafter}-\d+\.PINNED\.", headers)
        answer = ask(tuned, headers, **UNCACHED)
        texts[drafter] = text(answer)
        assert "PINNED" in answer.headers["x-paceline-decision"]
        assert metrics(server)["llamacpp:tokens_predicted_total"] > before
        assert ("draft_n" in answer.json()["timings"]) == (drafter != "none")
    assert texts["none"] == texts["ngram-simple"]


def test_a_client_that_wants_none_gets_the_plain_pool(tuned: RunningSidecar) -> None:
    for _ in range(3):
        assert "draft_n" not in ask(tuned, ROUTE | {"x-paceline-mode": "off"}).json()["timings"]


def test_the_official_client_streams_through_the_sidecar(tuned: RunningSidecar) -> None:
    with openai.OpenAI(base_url=f"{tuned.url}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list().data
        stream = client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": REPEAT}], max_tokens=24, temperature=0, stream=True
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert model.id == MODEL
    assert said.startswith("def area")


def test_a_refusal_comes_as_the_server_gave_it(tuned: RunningSidecar, llama_plain: LlamaServer) -> None:
    refused = ask(tuned, messages="text")
    direct = httpx.post(f"{llama_plain.url}{CHAT}", json=body(messages="text"), timeout=60)
    assert (refused.status_code, refused.content) == (direct.status_code, direct.content) == (400, direct.content)


def test_requests_go_on_while_the_control_process_is_dead(tuned: RunningSidecar) -> None:
    os.kill(tuned.control_process(), signal.SIGKILL)
    assert text(ask(tuned))


def test_canary_steers_a_share_of_the_sessions(
    llama_plain: LlamaServer, llama_ngram: LlamaServer, tmp_path: Path
) -> None:
    upstreams = {"plain": llama_plain.url, "drafting": llama_ngram.url}
    headers = ROUTE | {"x-paceline-debug": "true"}
    with start_sidecar(tmp_path, upstreams, "canary") as sidecar:
        # Each is a session of its own, and its session says whether it is one of those that are steered.
        answers = [ask(sidecar, headers, content=f"{number} and", max_tokens=1) for number in range(40)]
    reasons = Counter(answer.headers["x-paceline-reason"] for answer in answers)
    untouched = reasons["ROUTE_DEFAULT"] + reasons["ENGINE_DEFAULT"]
    assert 20 < untouched < 40, reasons


def test_requests_go_on_without_a_database(llama_plain: LlamaServer, tmp_path: Path) -> None:
    folder = {"PACELINE_DATABASE__URL": f"sqlite:///{tmp_path}"}  # which is no file
    with start_sidecar(tmp_path, {"a": llama_plain.url}, "auto", folder) as sidecar:
        assert text(ask(sidecar))
        assert sidecar.admin("/readyz").status_code == 200
        assert sidecar.admin("/api/v1/status").json()["store"]["up"] is False


def test_a_pool_that_dies_is_left_to_the_others(default_gguf: Path, llama_plain: LlamaServer, tmp_path: Path) -> None:
    with (
        start_llama(default_gguf) as doomed,
        start_sidecar(tmp_path, {"a": doomed.url, "b": llama_plain.url}, "observe") as sidecar,
    ):
        doomed.kill()
        answers = [ask(sidecar, max_tokens=2) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 6

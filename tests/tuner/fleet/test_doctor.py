"""The doctor's verdicts: on real llama.cpp servers, and on engines made on purpose."""

import asyncio
import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from typer.testing import CliRunner

from tests.tuner.fleet.engines.recordings import changed, page
from tests.tuner.fleet.engines.stub_engine import Honours, StubEngine
from tests.tuner.fleet.llama_server import LlamaServer, start_llama
from tuner.cli import app
from tuner.cli.sidecar import named
from tuner.fleet.doctor import Verdict, examine
from tuner.fleet.engines.identity import Identity
from tuner.fleet.engines.known_faults import KNOWN_FAULTS, Facts, known_faults
from tuner.fleet.engines.reading import EngineDelta, read_page
from tuner.fleet.types import Effect, EngineKind, Lever
from tuner.settings_loader import load_settings

URL = "http://engine"
DELTA = EngineDelta(1.0, False, 1000.0, 5000.0, 2000.0, (), 9000.0, None, None)
TWO_ENGINES = read_page(page("vllm_two_engines"), 0.0)
NOBODY = Identity(EngineKind.UNKNOWN, "", (), (), None, "", 0, None, "")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of tests share a machine with other tests."""
    monkeypatch.setattr(import_module("tuner.cli.doctor"), "DOCTOR_SECONDS", 120.0)


def examined(engine: StubEngine) -> Verdict:
    return asyncio.run(examine(URL, transport=engine.transport))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    return result.exit_code, result.output


def test_a_real_server_that_drafts_gets_a_plain_one_beside_it(llama_ngram: LlamaServer) -> None:
    code, said = run("--url", f"{llama_ngram.url}/v1/")
    assert code == 0, said
    assert "speculation  on: drafter ngram-simple" in said
    assert "drafting     yes, of a text that repeats: " in said
    assert "With speculative.n_max 0 it drafted" in said
    assert f"paceline sidecar --upstream drafting={llama_ngram.url} --upstream plain=http://HOST:PORT" in said


def test_a_real_server_without_a_drafter_is_a_dont(llama_plain: LlamaServer) -> None:
    code, said = run("--url", llama_plain.url, "-o", "json")
    assert code == 3
    told = json.loads(said)
    assert (told["engine"], told["launched"], told["advisable"]) == ("llama.cpp", False, False)
    assert told["sentence"].startswith("Don't, with this server alone: it decodes plain")
    assert told["command"].startswith("llama-server ")
    assert [each["lever"] for each in told["capabilities"]] == ["plugin", "request_length", "aliases", "corpora"]
    assert told["requests"] == 1


def test_a_server_that_is_gone_is_one_sentence_and_exit_1(default_gguf: Any) -> None:
    with start_llama(default_gguf) as server:
        server.kill()
        code, said = run("--url", server.url)
    assert code == 1
    assert said.startswith(server.url)
    assert said.count("\n") == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "", "http://", "http://höst", "http://h/a b"])
def test_what_is_no_url_is_a_usage_error(url: str) -> None:
    code, said = run("--url", url)
    assert code == 2
    assert "give http://HOST:PORT" in said


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines", "one "])
def test_a_key_that_no_header_takes_is_a_usage_error(key: str) -> None:
    code, said = run("--url", URL, "--key", key)
    assert code == 2
    assert said.startswith("--key has characters")


def test_a_lever_that_works_is_a_go_and_the_speeds_are_compared() -> None:
    found = examined(StubEngine(EngineKind.LLAMA_CPP, Honours.IT))
    assert found.advisable is True
    assert found.command == f"paceline sidecar --upstream {URL} --mode advise"
    assert [one.text for one in found.speeds] == ["repeating", "story"]
    assert all(one.ratio == pytest.approx(1.0) for one in found.speeds)


def test_drafting_that_is_slower_on_every_text_is_a_dont() -> None:
    found = examined(StubEngine(EngineKind.LLAMA_CPP, Honours.IT, slow=0.01))
    assert found.advisable is False
    assert "drafting is slower than plain even here, 50 tokens a second against 100" in found.sentence


def test_a_vllm_with_the_plug_in_is_a_go() -> None:
    found = examined(StubEngine(EngineKind.VLLM, Honours.IT))
    assert found.upstream.effect(Lever.PLUGIN) is Effect.WORKS
    assert found.command == f"paceline sidecar --upstream {URL} --admin-port 8001 --plugin-port 8002 --mode advise"
    assert len(found.speeds) == 2


def test_a_vllm_without_the_plug_in_is_told_to_get_it() -> None:
    found = examined(StubEngine(EngineKind.VLLM))
    assert (found.advisable, found.command) == (True, "paceline plugin vllm --out .")
    assert found.speeds == ()
    assert any("refuses requests with min_p, logit_bias" in warning for warning in found.warnings)


def test_what_everybodys_requests_had_accepted_is_told() -> None:
    found = examined(StubEngine(EngineKind.VLLM))
    assert found.served_drafted == 101.0
    assert found.served_acceptance == pytest.approx(68 / 101)
    assert found.served_tokens_per_cycle == pytest.approx(1 + 68 / 21)


def test_an_acceptance_of_nearly_nothing_is_a_dont() -> None:
    text = changed(page("vllm_ngram"), "vllm:spec_decode_num_drafts_total", 2000.0)
    text = changed(text, "vllm:spec_decode_num_draft_tokens_total", 10000.0)
    text = changed(text, "vllm:spec_decode_num_accepted_tokens_total", 120.0)

    class Rejected(StubEngine):
        def _page(self) -> str:
            tokens, cycles = self.counted["tokens"], self.counted["cycles"]
            counted = changed(text, "vllm:generation_tokens_total", 9000 + tokens)
            return changed(counted, "vllm:spec_decode_num_drafts_total", 2000 + cycles)

    found = examined(Rejected(EngineKind.VLLM, tells_drafts=True))
    assert found.advisable is False
    assert found.sentence.startswith("Don't: since its start 1.2% of 10,000 drafted tokens were accepted")


def test_a_drafter_that_stays_silent_is_a_dont() -> None:
    slots = {"/slots": (200, [{"id": 0, "speculative": True}])}
    found = examined(StubEngine(EngineKind.LLAMA_CPP, block_length=0, extra=slots))
    assert (found.advisable, found.launched, found.drafting) == (False, True, False)
    assert "drafted nothing of a text that repeats itself" in found.sentence


def test_what_cannot_be_seen_is_a_dont_yet() -> None:
    found = examined(StubEngine(EngineKind.VLLM, metrics=False))
    assert (found.advisable, found.drafting) == (False, None)
    assert found.sentence.startswith("Don't yet: whether it drafts cannot be seen.")


def test_an_engine_that_nobody_knows_is_a_dont() -> None:
    found = examined(StubEngine(EngineKind.UNKNOWN))
    assert (found.advisable, found.upstream.engine) == (False, EngineKind.UNKNOWN)


def test_lossy_settings_that_a_server_tells_are_warned_of() -> None:
    told = {"version": "0.5.9", "speculative_algorithm": "EAGLE", "speculative_accept_threshold_acc": 0.7}
    found = examined(StubEngine(EngineKind.SGLANG, extra={"/server_info": (200, told)}))
    assert any(warning.startswith("speculative_accept_threshold_acc is 0.7") for warning in found.warnings)


def test_an_sglang_whose_cycles_yield_no_more_than_plain_ones_is_a_dont() -> None:
    class Rejected(StubEngine):
        def _page(self) -> str:
            return changed(super()._page(), "sglang:spec_accept_length", 1.02)

    found = examined(Rejected(EngineKind.SGLANG, extra={"/server_info": (200, {"speculative_algorithm": "EAGLE"})}))
    assert found.drafting is True
    assert found.drafted is None
    assert found.sentence.startswith("Don't: since its start a cycle yields 1.02 tokens")


def test_a_server_that_wants_a_key_says_what_to_type() -> None:
    refused = {"/v1/completions": (401, {"error": "Unauthorized"}), "/v1/models": (401, {"error": "Unauthorized"})}
    found = examined(StubEngine(EngineKind.VLLM, extra=refused))
    assert found.command == f"paceline doctor --url {URL} --key KEY"
    assert "It answered 401: Unauthorized." in found.sentence


@pytest.mark.parametrize(("key", "wants"), [(None, "a key"), ("k", "another key than the one that was given")])
def test_a_server_that_shows_nothing_without_a_key_is_told_from_an_unknown_one(key: str | None, wants: str) -> None:
    class Locked(StubEngine):
        def _answer(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(401, json={"error": "Unauthorized"})

    found = asyncio.run(examine(URL, key=key, transport=Locked(EngineKind.VLLM).transport))
    assert (found.advisable, found.upstream.engine) == (False, EngineKind.UNKNOWN)
    assert found.sentence.startswith(f"Don't yet: it wants {wants},")
    assert found.command == f"paceline doctor --url {URL} --key KEY"


def test_a_key_that_was_needed_stands_in_the_line_to_paste() -> None:
    found = asyncio.run(examine(URL, key="secret", transport=StubEngine(EngineKind.LLAMA_CPP).transport))
    line = found.command
    assert line.startswith("PACELINE_FLEET__UPSTREAMS__DRAFTING__API_KEY=KEY paceline sidecar --upstream drafting=")
    assert "secret" not in line


def test_a_key_in_the_environment_reaches_the_server_that_the_command_line_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_FLEET__UPSTREAMS__DRAFTING__API_KEY", "secret")
    (given,) = load_settings(
        None, {"fleet": {"upstreams": named([f"drafting={URL}"])}}
    ).settings.fleet.upstreams.values()
    assert given.api_key is not None
    assert (given.url, given.api_key.get_secret_value()) == (URL, "secret")


@pytest.mark.parametrize(
    ("url", "ports"),
    [("http://127.0.0.1:8000", " --port 8010"), ("http://127.0.0.1:8080", ""), ("http://10.0.0.1:8000", "")],
)
def test_the_line_to_paste_does_not_take_the_servers_own_port(url: str, ports: str) -> None:
    found = asyncio.run(examine(url, transport=StubEngine(EngineKind.LLAMA_CPP, Honours.IT).transport))
    assert found.command == f"paceline sidecar --upstream {url}{ports} --mode advise"


def test_a_models_name_cannot_add_to_the_line_to_paste() -> None:
    models = {"/v1/models": (200, {"data": [{"id": "m; rm -rf ~", "owned_by": "vllm"}]})}
    found = examined(StubEngine(EngineKind.VLLM, block_length=0, extra=models))
    assert shlex.split(found.command)[:5] == [
        "python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "m; rm -rf ~",
    ]


def _traffic(engine: StubEngine, monkeypatch: pytest.MonkeyPatch) -> str:
    found = examined(engine)
    monkeypatch.setattr(import_module("tuner.cli.doctor"), "examine", AsyncMock(return_value=found))
    (line,) = [line for line in run("--url", URL)[1].splitlines() if line.startswith("traffic ")]
    return line


class Told(StubEngine):
    """What its counters say of drafts, whatever was asked of it."""

    said: Mapping[str, float]

    def _page(self) -> str:
        text = super()._page()
        for name, value in self.said.items():
            text = changed(text, f"vllm:spec_decode_{name}_total", value)
        return text


def test_metrics_that_cannot_be_read_are_not_taken_for_no_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown: It has no metrics: launch" in _traffic(StubEngine(EngineKind.VLLM, metrics=False), monkeypatch)


def test_counters_that_contradict_each_other_are_not_taken_for_no_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Told(EngineKind.VLLM, tells_drafts=True)
    engine.said = {"num_draft_tokens": 10.0, "num_accepted_tokens": 20.0}
    assert "unknown: Its counters contradict each other: more tokens" in _traffic(engine, monkeypatch)


def test_no_drafts_since_the_start_are_told_where_they_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Told(EngineKind.VLLM, tells_drafts=True)
    engine.said = dict.fromkeys(("num_drafts", "num_draft_tokens", "num_accepted_tokens"), 0.0)
    assert _traffic(engine, monkeypatch).endswith("no drafts since its start")
    assert _traffic(StubEngine(EngineKind.VLLM, block_length=0), monkeypatch).endswith("no drafts since its start")


def test_a_key_goes_with_every_request() -> None:
    engine = StubEngine(EngineKind.VLLM)
    asyncio.run(examine(URL, key="secret", transport=engine.transport))
    assert {headers["authorization"] for headers in engine.headers} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("facts", "source"),
    [
        (Facts(replace(NOBODY, engine=EngineKind.VLLM), replace(DELTA, accepted=0.0)), "vllm#52479"),
        (Facts(replace(NOBODY, engine=EngineKind.SGLANG), replace(DELTA, accepted=5.0)), "sglang#24795"),
        (Facts(replace(NOBODY, block_length=10), replace(DELTA, accepted=500.0)), "vllm#21278"),
        (
            Facts(
                replace(
                    NOBODY, engine=EngineKind.VLLM, launched=True, reading=read_page(page("vllm_two_engines"), 0.0)
                ),
                None,
            ),
            "dynamic_speculative_decoding.md",
        ),
        (Facts(replace(NOBODY, engine=EngineKind.VLLM, launched=True, adapters=("legal",)), None), "vllm#52038"),
        (
            Facts(
                replace(
                    NOBODY,
                    engine=EngineKind.SGLANG,
                    settings={"speculative_adaptive": True, "enable_dp_attention": True},
                ),
                None,
            ),
            "sglang#35898",
        ),
        (Facts(replace(NOBODY, engine=EngineKind.SGLANG, launched=True, settings={"device": "cpu"}), None), "#31214"),
        (
            Facts(replace(NOBODY, engine=EngineKind.LLAMA_CPP, drafter="draft-simple"), replace(DELTA, accepted=350.0)),
            "llama.cpp#25908",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_known_fault_is_told_with_its_source(facts: Facts, source: str) -> None:
    (told,) = known_faults(facts)
    assert source in told


def test_a_healthy_server_has_no_known_fault() -> None:
    for kind in EngineKind:
        assert known_faults(Facts(replace(NOBODY, engine=kind, launched=True, block_length=8), DELTA)) == []
    assert len(KNOWN_FAULTS) == 8

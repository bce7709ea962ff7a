"""Who answers, and what it lets be steered, by its effect: a real llama.cpp, and engines made on purpose."""

import asyncio
from typing import Any

import httpx
import pytest

from policies.types import PLAIN
from tests.tuner.fleet.engines.stub_engine import Honours, StubEngine
from tests.tuner.fleet.llama_server import MODEL, LlamaServer
from tuner.fleet.engines.fetching import FetchError
from tuner.fleet.engines.probe import Found, find_out, probe
from tuner.fleet.engines.trial import MARK
from tuner.fleet.types import UNKNOWN_DRAFTER, Capability, Effect, EngineKind, Lever, Upstream

URL = "http://engine"
PATIENT = 120.0
"""Seconds for a real server on a machine that tests share."""


def found_at(engine: StubEngine, seconds: float = 8.0) -> Found:
    async def run() -> Found:
        async with httpx.AsyncClient(transport=engine.transport) as client:
            return await find_out(URL, client=client, name="a", seconds=seconds)

    return asyncio.run(run())


def probed(url: str) -> Upstream:
    async def run() -> Upstream:
        async with httpx.AsyncClient() as client:
            return await probe(url, client=client, name="a", seconds=PATIENT)

    return asyncio.run(run())


def lever(upstream: Upstream, wanted: Lever) -> Capability:
    return next(one for one in upstream.capabilities if one.lever is wanted)


def test_a_real_llama_cpp_that_drafts_is_known_by_what_it_does(llama_ngram: LlamaServer) -> None:
    found = probed(llama_ngram.url)
    assert (found.engine, found.models, found.speculates) == (EngineKind.LLAMA_CPP, (MODEL,), True)
    assert found.version
    assert found.drafter == "ngram-simple"
    asked = lever(found, Lever.REQUEST_LENGTH)
    assert asked.effect is Effect.IGNORED
    assert asked.sentence.startswith("With speculative.n_max 0 it drafted ")
    assert found.effect(Lever.PLUGIN) is Effect.ABSENT
    assert found.effect(Lever.ALIASES) is Effect.ABSENT
    assert found.effect(Lever.CORPORA) is Effect.ABSENT


def test_a_real_llama_cpp_without_a_drafter_is_known_to_have_none(llama_plain: LlamaServer) -> None:
    found = probed(llama_plain.url)
    assert (found.speculates, found.drafter, found.block_length) == (False, PLAIN, 0)
    assert found.effect(Lever.REQUEST_LENGTH) is Effect.UNKNOWN


@pytest.mark.parametrize(
    ("honours", "effect"),
    [(Honours.IT, Effect.WORKS), (Honours.NOTHING, Effect.IGNORED), (Honours.REFUSED, Effect.REFUSED)],
)
def test_a_block_length_in_the_request_is_tested_by_what_it_does(honours: Honours, effect: Effect) -> None:
    """As llama.cpp before b9115 and ik_llama.cpp; as llama.cpp since; as one that refuses keys it does not know."""
    found = found_at(StubEngine(EngineKind.LLAMA_CPP, honours)).upstream
    assert found.effect(Lever.REQUEST_LENGTH) is effect


@pytest.mark.parametrize("tells", [True, False], ids=["answers", "counters"])
@pytest.mark.parametrize(("honours", "effect"), [(Honours.IT, Effect.WORKS), (Honours.NOTHING, Effect.ABSENT)])
def test_the_plug_in_is_known_by_a_request_that_stops_drafting(honours: Honours, effect: Effect, tells: bool) -> None:
    engine = StubEngine(EngineKind.VLLM, honours, tells_drafts=tells)
    found = found_at(engine).upstream
    assert found.effect(Lever.PLUGIN) is effect
    assert (found.version, found.speculates, found.block_length) == ("0.32.0", True, 5)
    assert found.effect(Lever.REQUEST_LENGTH) is Effect.ABSENT
    assert [body.get("vllm_xargs") for body in engine.requests][:2] == [None, {"paceline_k": 0}]


def test_counters_that_others_moved_too_prove_nothing() -> None:
    found = found_at(StubEngine(EngineKind.VLLM, Honours.NOTHING, others=7))
    assert found.upstream.speculates is None
    assert found.upstream.drafter == UNKNOWN_DRAFTER
    plugin = lever(found.upstream, Lever.PLUGIN)
    assert plugin.effect is Effect.UNKNOWN
    assert plugin.sentence.startswith("Other requests ran at the same time")


def test_answers_that_tell_of_their_drafts_prove_it_whatever_others_do() -> None:
    found = found_at(StubEngine(EngineKind.VLLM, Honours.IT, others=7, tells_drafts=True))
    assert found.upstream.effect(Lever.PLUGIN) is Effect.WORKS


def test_a_vllm_without_a_drafter_has_none() -> None:
    found = found_at(StubEngine(EngineKind.VLLM, block_length=0)).upstream
    assert (found.speculates, found.drafter, found.block_length) == (False, PLAIN, 0)


def test_sglang_drafts_as_its_answers_tell_and_has_no_field_for_a_length() -> None:
    told = {"version": "0.5.9", "speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "api_key": "no"}
    found = found_at(StubEngine(EngineKind.SGLANG, extra={"/server_info": (200, told)}))
    upstream = found.upstream
    assert (upstream.engine, upstream.version) == (EngineKind.SGLANG, "0.5.9")
    assert (upstream.speculates, upstream.drafter, upstream.block_length) == (True, "eagle", 3)
    assert upstream.effect(Lever.REQUEST_LENGTH) is Effect.ABSENT
    assert upstream.effect(Lever.CORPORA) is Effect.ABSENT
    assert "api_key" not in found.identity.settings


@pytest.mark.parametrize(
    ("answer", "effect"),
    [
        ((200, {"success": True, "corpus_token_counts": {"da": 7}}), Effect.UNKNOWN),
        ((400, {"success": False}), Effect.ABSENT),
        ((403, {}), Effect.UNKNOWN),
    ],
)
def test_corpora_are_listed_and_none_is_added(answer: tuple[int, Any], effect: Effect) -> None:
    engine = StubEngine(EngineKind.SGLANG, extra={"/list_external_corpora": answer})
    assert found_at(engine).upstream.effect(Lever.CORPORA) is effect


def router(*models: tuple[str, str, list[str]]) -> dict[str, tuple[int, Any]]:
    data = [{"id": name, "status": {"value": value, "args": args}} for name, value, args in models]
    return {"/models": (200, {"data": data})}


def test_aliases_that_differ_in_drafting_are_tried_if_they_are_loaded() -> None:
    launch = ["llama-server", "-m", "m.gguf", "--port"]
    models = router(
        ("m-fast", "loaded", [*launch, "1", "--spec-type", "ngram-simple"]),
        ("m", "loaded", [*launch, "2"]),
        ("other", "loaded", ["llama-server", "-m", "n.gguf"]),
    )
    engine = StubEngine(EngineKind.LLAMA_CPP, extra=models)
    found = found_at(engine).upstream
    assert {body["model"] for body in engine.requests} == {"m", "m-fast"}
    assert found.effect(Lever.ALIASES) is Effect.IGNORED
    engine = StubEngine(EngineKind.LLAMA_CPP, extra=models, plain_models=frozenset({"m"}))
    assert found_at(engine).upstream.effect(Lever.ALIASES) is Effect.WORKS
    unloaded = router(("m-fast", "unloaded", [*launch, "1", "--spec-type", "x"]), ("m", "loaded", [*launch, "2"]))
    engine = StubEngine(EngineKind.LLAMA_CPP, extra=unloaded)
    said = lever(found_at(engine).upstream, Lever.ALIASES)
    assert said.effect is Effect.UNKNOWN
    assert said.sentence.startswith("m-fast and m differ in drafting only, but are not loaded together")
    assert all(body["model"] == "m" for body in engine.requests)


def test_a_drafter_that_stays_silent_is_asked_for_a_longer_text_once() -> None:
    slots = [{"id": 0, "speculative": True}]
    engine = StubEngine(EngineKind.LLAMA_CPP, block_length=0, extra={"/slots": (200, slots)})
    found = found_at(engine)
    assert [body["max_tokens"] for body in engine.requests] == [16, 64]
    assert (found.upstream.speculates, found.identity.launched) == (None, True)


def test_requests_are_few_and_marked_for_the_operator() -> None:
    engine = StubEngine(EngineKind.VLLM, Honours.IT)
    found = found_at(engine)
    assert found.trier.sent == len(engine.requests) == 3
    assert all(body["user"] == MARK and body["max_tokens"] <= 64 for body in engine.requests)
    assert [headers["x-request-id"] for headers in engine.headers] == [f"{MARK}-{n}" for n in (1, 2, 3)]


def test_time_that_is_up_makes_a_lever_unknown_and_says_so() -> None:
    found = found_at(StubEngine(EngineKind.LLAMA_CPP), seconds=0.0)
    said = lever(found.upstream, Lever.REQUEST_LENGTH)
    assert (said.effect, said.sentence) == (Effect.UNKNOWN, "There was no time left to try it.")
    assert found.trier.sent == 0


def test_a_server_that_still_loads_is_no_fault_of_its_levers() -> None:
    engine = StubEngine(EngineKind.LLAMA_CPP, extra={"/v1/models": (503, {"error": {"message": "Loading model"}})})
    with pytest.raises(FetchError, match="still loads its model"):
        found_at(engine)


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
            await probe(URL, client=client)

    with pytest.raises(FetchError, match='could not be read \\("refused"\\): start the server'):
        asyncio.run(run())


def test_an_engine_that_nobody_knows_is_unknown() -> None:
    found = found_at(StubEngine(EngineKind.UNKNOWN)).upstream
    assert (found.engine, found.models, found.speculates) == (EngineKind.UNKNOWN, ("m",), None)


def test_without_metrics_an_engine_is_known_by_its_models() -> None:
    found = found_at(StubEngine(EngineKind.VLLM, metrics=False))
    assert found.upstream.engine is EngineKind.VLLM
    assert found.upstream.speculates is None
    assert found.bare.sentence == "The answer does not tell its drafts, and the metrics cannot be read."


@pytest.mark.parametrize(
    ("settings", "full"),
    [
        ({}, True),
        ({"speculative_adaptive": True}, False),
        ({"speculative_eagle_topk": 4}, False),
        ({"speculative_algorithm": "NGRAM"}, False),
    ],
    ids=str,
)
def test_report_49_only_a_chain_of_fixed_length_says_how_much_was_drafted(settings: dict[str, Any], full: bool) -> None:
    told = {
        "speculative_algorithm": "EAGLE3",
        "speculative_eagle_topk": 1,
        "speculative_adaptive": False,
        "speculative_num_draft_tokens": 4,
    } | settings
    found = found_at(StubEngine(EngineKind.SGLANG, extra={"/server_info": (200, told)}))
    assert found.identity.full_blocks is full

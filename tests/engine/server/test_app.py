"""The endpoints in front of a scripted engine: what clients get, what the engine is told, what is measured."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version

import pytest

from engine.messages import Submit
from engine.process import EngineGoneError
from engine.server.sequence import OUTPUT_LANGUAGE_TOKENS
from engine.server.tools import Message
from kernels.sampling import Sampling
from policies.stats import FinishReason, RequestStats
from policies.testing import FakeClock, ListSink, ScriptedSource
from policies.types import Context, Decision, Reason, RequestFeatures, SamplingClass
from tests.engine.server.double import CONTEXT_LIMIT, EOS, MODEL, ByteTokenizer, ScriptedEngine, Step, says
from tests.engine.server.harness import (
    CHAT,
    COMPLETIONS,
    MODELS,
    OPTIONS,
    app_for,
    ask,
    chat_body,
    completion_body,
    send,
)

NONE_CACHED = {"prompt_tokens_details": {"cached_tokens": 0}}
DANISH = "Det var en mørk og stormfuld aften, "


def learned(context: Context, features: RequestFeatures) -> Decision:
    return Decision(f"d-{context.language}", context, "ngram", 5, False, Reason.LEARNED, 7)


@pytest.mark.parametrize(("turns", "elsewhere"), [(3, False), (300, True)])
def test_a_long_conversation_of_empty_turns_is_tokenised_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, turns: int, elsewhere: bool
) -> None:
    threads: list[threading.Thread] = []

    def encode_chat(
        self: ByteTokenizer, messages: Sequence[Message], tools: object, template_arguments: object
    ) -> list[int]:
        threads.append(threading.current_thread())
        return [1]

    monkeypatch.setattr(ByteTokenizer, "encode_chat", encode_chat)
    body = chat_body() | {"messages": [{"role": "user", "content": ""}] * turns}
    assert send(ScriptedEngine(says("Hi")), CHAT, body).status == 200
    assert [thread is not threading.current_thread() for thread in threads] == [elsewhere]


class BrokenSource:
    def decide(self, context: Context, features: RequestFeatures) -> Decision:
        raise RuntimeError("broken")


class BrokenSink(ListSink):
    def record_request(self, stats: RequestStats) -> None:
        raise RuntimeError("broken")


def test_a_chat_answer_has_the_shape_of_openai() -> None:
    reply = send(ScriptedEngine(says("Hel", "lo")), CHAT, chat_body("Hi"))
    assert reply.status == 200
    body = reply.json
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == MODEL
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9, **NONE_CACHED}


def test_a_completion_answer_has_the_shape_of_openai() -> None:
    body = send(ScriptedEngine(says("Hello, world and more")), COMPLETIONS, completion_body("Hi")).json
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "logprobs": None, "finish_reason": "length", "text": "Hello, world and"}]
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 16, "total_tokens": 18, **NONE_CACHED}


def test_a_stream_has_a_chunk_for_each_message_of_the_engine() -> None:
    engine = ScriptedEngine(says("Hel", "lø", "!"))
    body = chat_body(stream=True, stream_options={"include_usage": True})
    *chunks, last = send(engine, CHAT, body).events
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert [delta["delta"] for delta in deltas] == [
        {"role": "assistant", "content": "Hel"},
        {"content": "lø"},
        {"content": "!"},
        {"content": ""},
    ]
    assert [delta["finish_reason"] for delta in deltas] == [None, None, None, "stop"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in (*chunks, last)}) == 1
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14, **NONE_CACHED}


def test_a_stream_without_usage_asked_for_has_none() -> None:
    events = send(ScriptedEngine(says("a")), COMPLETIONS, completion_body(stream=True)).events
    assert [event["choices"][0]["text"] for event in events] == ["a", ""]
    assert all("usage" not in event for event in events)


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_over_several_tokens_is_cut_exactly(stream: bool) -> None:
    engine = ScriptedEngine(lambda _: [(byte,) for byte in b"one STOP two"])
    reply = send(engine, COMPLETIONS, completion_body(stop=["STOP", "two"], stream=stream))
    choices = [event["choices"][0] for event in reply.events] if stream else reply.json["choices"]
    assert "".join(choice["text"] for choice in choices) == "one "
    assert choices[-1]["finish_reason"] == "stop"
    if not stream:
        assert reply.json["usage"]["completion_tokens"] == len("one STOP"), "as the engine emitted them"
    assert engine.cancelled == []
    assert engine.submitted[0].stops == ("STOP", "two")


def test_text_held_back_for_a_stop_comes_when_the_length_ends_the_answer() -> None:
    body = completion_body(stop="STOP", max_tokens=7)
    reply = send(ScriptedEngine(lambda _: [tuple(b"one STO!")]), COMPLETIONS, body)
    assert reply.json["choices"][0] == {"index": 0, "logprobs": None, "finish_reason": "length", "text": "one STO"}


def test_choices_have_their_own_noise_and_index() -> None:
    texts = ("zero", "one", "two")
    engine = ScriptedEngine(lambda submit: says(texts[submit.sampling.choice])(submit))
    body = send(engine, CHAT, chat_body(n=3, seed=-5)).json
    assert [choice["message"]["content"] for choice in body["choices"]] == list(texts)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {submit.sampling.seed for submit in engine.submitted} == {(1 << 64) - 5}
    assert len({submit.request_key for submit in engine.submitted}) == 3
    assert body["usage"]["completion_tokens"] == sum(len(text) + 1 for text in texts)


def test_prompts_in_a_list_are_answered_as_if_they_had_been_sent_alone() -> None:
    engine = ScriptedEngine(lambda submit: says(chr(submit.prompt[0]) * 2)(submit))
    body = send(engine, COMPLETIONS, completion_body(["a", "b"], n=2, seed=1)).json
    assert [choice["text"] for choice in body["choices"]] == ["aa", "aa", "bb", "bb"]
    assert [submit.sampling.choice for submit in engine.submitted] == [0, 1, 0, 1]
    tokens = send(engine, COMPLETIONS, completion_body([[97], [98, 99]])).json
    assert tokens["usage"]["prompt_tokens"] == 3
    assert engine.submitted[-1].prompt == (98, 99)


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_tokens_from_the_cache_are_counted_once_for_each_prompt(stream: bool) -> None:
    """Choices after the first one find the prompt in the cache that the first has filled."""
    engine = ScriptedEngine(
        says("a", "b"), reused=lambda submit: len(submit.prompt) - (3 if submit.sampling.choice else 8)
    )
    fields: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    reply = send(engine, COMPLETIONS, completion_body(["x" * 10, "y" * 20], n=2, **fields))
    usage = reply.events[-1]["usage"] if stream else reply.json["usage"]
    assert usage["prompt_tokens"] == 30
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2 + 12}
    reply = send(engine, CHAT, chat_body("Hello, world", **fields))
    usage = reply.events[-1]["usage"] if stream else reply.json["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 5}


def test_without_a_seed_every_prompt_has_its_own_noise() -> None:
    engine = ScriptedEngine(says("x"))
    send(engine, COMPLETIONS, completion_body(["a", "a"], n=2))
    seeds = [submit.sampling.seed for submit in engine.submitted]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_the_engine_is_told_every_setting() -> None:
    engine = ScriptedEngine(says("x"))
    settings = {
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"65": 5},
        "seed": 3,
    }
    send(engine, CHAT, chat_body("Hi", max_completion_tokens=11, stop="S", **settings))
    [submit] = engine.submitted
    assert submit.sampling == Sampling(0.5, 9, 0.9, 0.1, 1.1, 0.2, 0.3, ((65, 5.0),), 3, 0)
    assert submit.prompt == (EOS, *b"Hi")
    assert (submit.max_tokens, submit.stops, submit.stop_token_ids) == (11, ("S",), (EOS,))


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, (EOS,)),
        ({"ignore_eos": True}, ()),
        ({"stop_token_ids": [90, 66, 90]}, (66, 90, EOS)),
        ({"ignore_eos": True, "stop_token_ids": [66]}, (66,)),
        ({"ignore_eos": True, "stop_token_ids": []}, ()),
    ],
)
def test_the_engine_is_told_which_tokens_end_the_output(fields: dict[str, object], ends: tuple[int, ...]) -> None:
    engine = ScriptedEngine(says("x" * 50))
    send(engine, CHAT, chat_body("Hi", max_tokens=9, min_tokens=2, **fields))
    [submit] = engine.submitted
    assert submit.stop_token_ids == ends
    assert submit.sampling.end_tokens == ends


def test_a_stop_token_ends_the_text_before_itself_and_an_ignored_end_is_no_text() -> None:
    stopped = send(ScriptedEngine(says("abc", "def")), CHAT, chat_body("Hi", stop_token_ids=[ord("e")]))
    [choice] = stopped.json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("abcd", "stop")
    assert stopped.json["usage"]["completion_tokens"] == 5
    engine = ScriptedEngine(lambda _: [(97, EOS, 98), (99,)])
    [choice] = send(engine, CHAT, chat_body("Hi", ignore_eos=True, max_tokens=4)).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("abc", "length")


def test_health_and_version_answer_as_those_of_vllm() -> None:
    engine = ScriptedEngine(says("x"))
    healthy = asyncio.run(ask(app_for(engine), "/health", method="GET"))
    assert (healthy.status, healthy.body) == (200, b"")
    told = asyncio.run(ask(app_for(engine), "/version", method="GET"))
    assert told.json == {"version": version("paceline")}
    engine.alive = False
    assert asyncio.run(ask(app_for(engine), "/health", method="GET")).status == 503


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_is_the_room_that_the_prompt_leaves_or_what_the_client_gives(field: str) -> None:
    engine = ScriptedEngine(says("x"))
    for limit in (None, CONTEXT_LIMIT - 6, 3):
        assert send(engine, CHAT, chat_body("Hello", **{field: limit})).status == 200
    assert [submit.max_tokens for submit in engine.submitted] == [CONTEXT_LIMIT - 6, CONTEXT_LIMIT - 6, 3]


@pytest.mark.parametrize("limit", [CONTEXT_LIMIT - 5, CONTEXT_LIMIT, 1_000_000])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_than_the_context_has_room_for_are_a_400_that_tells_the_room(field: str, limit: int) -> None:
    engine = ScriptedEngine(says("x"))
    reply = send(engine, CHAT, chat_body("Hello", **{field: limit}))
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, field, "context_length_exceeded")
    assert reply.error["message"] == (
        f"{field} is {limit}, but the context holds 64 tokens and the prompt has 6 of them; give at most 58, or a "
        "shorter prompt."
    )
    assert engine.submitted == []


def test_the_longest_of_several_prompts_must_leave_room_for_what_the_client_gives() -> None:
    engine = ScriptedEngine(says("x"))
    reply = send(engine, COMPLETIONS, completion_body(["a", "b" * 50], max_tokens=20))
    assert (reply.status, reply.error["param"]) == (400, "max_tokens")
    assert "give at most 14" in reply.error["message"]
    assert engine.submitted == []


def test_a_completions_own_limit_is_shortened_to_the_room() -> None:
    engine = ScriptedEngine(says("x"))
    assert send(engine, COMPLETIONS, completion_body(["a", "b" * 60])).status == 200
    assert [submit.max_tokens for submit in engine.submitted] == [16, 4]


def test_models_are_listed_and_found() -> None:
    async def run() -> None:
        app = app_for(ScriptedEngine(says("x")))
        listed = await ask(app, MODELS, method="GET")
        [model] = listed.json["data"]
        assert (model["id"], model["object"]) == (MODEL, "model")
        assert (await ask(app, f"{MODELS}/{MODEL}", method="GET")).json == model

    asyncio.run(run())


def test_the_decision_is_in_the_headers_and_the_rest_only_with_debug() -> None:
    source = ScriptedSource(learned)
    engine = ScriptedEngine(says("x"))
    plain = send(engine, CHAT, chat_body("What is the capital of France?"), decisions=source)
    assert plain.headers["x-paceline-decision"] == "d-en"
    assert plain.headers["x-paceline-policy"] == "7"
    assert "x-paceline-reason" not in plain.headers
    headers = {"x-paceline-debug": "true", "x-paceline-route": "code-edit", "x-paceline-language": "DA"}
    debug = send(engine, CHAT, chat_body(stream=True), decisions=source, headers=headers).headers
    assert debug["x-paceline-reason"] == "LEARNED"
    assert debug["x-paceline-drafter"] == "ngram"
    assert debug["x-paceline-cap"] == "5"
    assert debug["x-paceline-language"] == "da"
    assert debug["x-paceline-route"] == "code-edit"
    whole = send(engine, CHAT, chat_body(), decisions=source, headers=headers).headers
    assert whole["x-paceline-looped"] == "false"
    assert source.asked[-1][0] == Context(MODEL, "code-edit", "da")


def test_the_decision_source_is_asked_with_the_context_of_the_request() -> None:
    source = ScriptedSource(learned)
    body = chat_body("Schreib mir eine kurze Geschichte", temperature=0.2, max_tokens=9)
    headers = {"x-paceline-route": "not-configured", "x-paceline-mode": "off"}
    engine = ScriptedEngine(says("x"))
    send(engine, CHAT, body, decisions=source, headers=headers)
    expected = RequestFeatures(SamplingClass.LOW, structured=False, prompt_tokens=34, max_tokens=9, opt_out=True)
    assert source.asked == [(Context(MODEL, "other", "de"), expected)]
    assert engine.submitted[0].decision.decision_id == "d-de"


def test_where_clients_are_not_trusted_only_the_opt_out_counts() -> None:
    source = ScriptedSource(learned)
    headers = {"x-paceline-route": "chat", "x-paceline-language": "da", "x-paceline-debug": "true"}
    reply = send(
        ScriptedEngine(says("x")),
        CHAT,
        chat_body("What is the capital of France?"),
        decisions=source,
        options=replace(OPTIONS, trust_headers=False),
        headers={**headers, "x-paceline-mode": "off"},
    )
    [(context, features)] = source.asked
    assert (context.route, context.language, features.opt_out) == ("other", "en", True)
    assert "x-paceline-reason" not in reply.headers


def test_the_request_id_is_echoed_or_made() -> None:
    engine = ScriptedEngine(says("x"))
    assert send(engine, CHAT, chat_body(), headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert send(engine, CHAT, {}, headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {send(engine, CHAT, chat_body()).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2


@pytest.mark.parametrize("source", [BrokenSource(), ScriptedSource(lambda c, f: replace(learned(c, f), drafter="x"))])
def test_a_fault_of_the_decision_source_serves_plain(source: BrokenSource | ScriptedSource) -> None:
    engine = ScriptedEngine(says("fine"))
    reply = send(engine, CHAT, chat_body(), decisions=source, headers={"x-paceline-debug": "true"})
    assert reply.json["choices"][0]["message"]["content"] == "fine"
    assert reply.headers["x-paceline-reason"] == "ERROR"
    assert engine.submitted[0].decision.cap == 0


def test_a_fault_of_the_sink_does_not_reach_the_request() -> None:
    reply = send(ScriptedEngine(says("fine")), CHAT, chat_body(), sink=BrokenSink())
    assert reply.json["choices"][0]["message"]["content"] == "fine"


def test_the_output_language_redirects_once_and_is_what_is_reported() -> None:
    source, sink = ScriptedSource(learned), ListSink()
    pieces = [DANISH[start : start + 4] for start in range(0, len(DANISH), 4)]
    engine = ScriptedEngine(says(*pieces, "og så"))
    reply = send(engine, CHAT, chat_body("Tell me, in Danish"), decisions=source, sink=sink)
    assert len(reply.json["choices"][0]["message"]["content"]) > OUTPUT_LANGUAGE_TOKENS
    assert [context.language for context, _ in source.asked] == ["en", "da"]
    [(key, decision)] = engine.redirected
    assert (key, decision.decision_id) == (engine.submitted[0].request_key, "d-da")
    assert sink.requests[0].decision == decision


@pytest.mark.parametrize(
    ("prompt", "output", "headers"),
    [
        ("Fortæl mig en lille historie", DANISH + "og så", {}),
        ("Tell me, in Danish", DANISH + "og så", {"x-paceline-language": "en"}),
        ("Tell me, in Danish", DANISH[:20], {}),
        ("Tell me a little story", "0123456789 " * 4, {}),
    ],
)
def test_the_decision_stays_where_the_output_gives_no_sure_other_language(
    prompt: str, output: str, headers: dict[str, str]
) -> None:
    engine = ScriptedEngine(says(*output))
    send(
        engine, COMPLETIONS, completion_body(prompt, max_tokens=60), decisions=ScriptedSource(learned), headers=headers
    )
    assert engine.redirected == []


def test_request_stats_hold_the_times_of_the_server_and_the_counts_of_the_engine() -> None:
    clock, sink = FakeClock(100.0), ListSink()

    def script(_: Submit) -> Iterator[Step]:
        clock.advance(0.5)
        yield tuple(b"ab")
        clock.advance(0.25)
        yield tuple(b"c")
        yield (EOS,)

    send(ScriptedEngine(script), CHAT, chat_body("Hi"), sink=sink, clock=clock)
    [stats] = sink.requests
    assert stats.ttft_seconds == pytest.approx(0.5)
    assert stats.decode_seconds == pytest.approx(0.25)
    assert stats.output_tokens == 4
    assert stats.tpot_seconds == pytest.approx(0.25 / 3)
    assert stats.finish is FinishReason.STOP
    assert stats.cycles == 3
    assert stats.features.prompt_tokens == 3


def test_a_failed_sequence_is_reported_too() -> None:
    sink = ListSink()
    send(ScriptedEngine(lambda _: [(97,), EngineGoneError("gone")]), CHAT, chat_body(), sink=sink)
    assert [(stats.finish, stats.output_tokens) for stats in sink.requests] == [(FinishReason.ERROR, 1)]

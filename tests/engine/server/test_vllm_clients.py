"""Clients of vLLM are at home: its fields at their defaults, its model list, /ping, /tokenize and /detokenize."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.process import EngineGoneError, SequenceFailedError
from engine.server.errors import ApiError
from engine.server.schema import parse_chat, parse_completion
from engine.server.token_endpoints import MAX_TOKENS
from engine.server.tokenizer import load_tokenizer
from engine.server.tools import Message, Tools
from tests.engine.server.double import CONTEXT_LIMIT, EOS, MODEL, VOCABULARY, ByteTokenizer, ScriptedEngine, says
from tests.engine.server.harness import (
    CHAT,
    COMPLETIONS,
    MODELS,
    OPTIONS,
    Reply,
    app_for,
    ask,
    chat_body,
    completion_body,
    send,
)
from tests.engine.tiny_model import make_tiny_model

SHARED_DEFAULTS: dict[str, Any] = {
    "frequency_penalty": None,
    "logit_bias": None,
    "max_tokens": None,
    "n": 1,
    "best_of": None,
    "presence_penalty": None,
    "response_format": None,
    "seed": None,
    "stop": [],
    "stream": False,
    "stream_options": None,
    "temperature": None,
    "top_p": None,
    "user": None,
    "use_beam_search": False,
    "top_k": None,
    "min_p": None,
    "repetition_penalty": None,
    "watermarking": None,
    "length_penalty": 1.0,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
    "truncation_side": None,
    "prompt_logprobs": None,
    "logprob_token_ids": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "echo": False,
    "structured_outputs": None,
    "priority": 0,
    "session_id": None,
    "return_tokens_as_token_ids": None,
    "return_token_ids": None,
    "routed_experts_prompt_start": 0,
    "return_token_offsets": False,
    "return_mm_kwargs": True,
    "cache_salt": None,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "vllm_xargs": None,
    "repetition_detection": None,
    "thinking_token_budget": None,
    "stream_interval": None,
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
    "structural_tag": None,
    "guided_decoding_backend": None,
    "guided_whitespace_pattern": None,
    "logits_processors": None,
}
"""The fields of vLLM's requests, also those of its earlier versions, as a client writes them that gives none."""
CHAT_DEFAULTS: dict[str, Any] = SHARED_DEFAULTS | {
    "logprobs": False,
    "top_logprobs": 0,
    "max_completion_tokens": None,
    "tools": None,
    "tool_choice": "none",
    "reasoning_effort": None,
    "include_reasoning": True,
    "parallel_tool_calls": True,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": False,
    "documents": None,
    "chat_template": None,
    "chat_template_kwargs": None,
    "media_io_kwargs": None,
    "mm_processor_kwargs": None,
    "return_prompt_text": None,
}
COMPLETION_DEFAULTS: dict[str, Any] = SHARED_DEFAULTS | {
    "logprobs": None,
    "suffix": None,
    "add_special_tokens": True,
    "prompt_embeds": None,
    "max_tokens": 16,
}


def test_a_request_that_writes_out_the_defaults_of_vllm_is_the_one_that_gives_none_of_them() -> None:
    assert parse_chat(chat_body(**CHAT_DEFAULTS), MODEL, VOCABULARY) == parse_chat(chat_body(), MODEL, VOCABULARY)
    written = parse_completion(completion_body(**COMPLETION_DEFAULTS), MODEL, VOCABULARY)
    assert written == parse_completion(completion_body(max_tokens=16), MODEL, VOCABULARY)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"detokenize": True, "best_of": 2, "n": 2, "stream_interval": 1, "thinking_token_budget": -1}),
        (CHAT, {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}}),
        (CHAT, {"return_token_ids": False, "watermarking": False, "truncation_side": "left"}),
        (COMPLETIONS, {"response_format": {"type": "text"}, "detokenize": True}),
        (
            COMPLETIONS,
            {"structured_outputs": {"choice": ["a"], "disable_any_whitespace": False, "whitespace_pattern": None}},
        ),
    ],
)
def test_what_vllm_means_by_a_value_and_this_server_does_anyway_is_taken(path: str, fields: dict[str, Any]) -> None:
    body = chat_body(**fields) if path == CHAT else completion_body(**fields)
    assert send(ScriptedEngine(says("fine")), path, body).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("add_generation_prompt", False),
        ("continue_final_message", True),
        ("add_special_tokens", True),
        ("best_of", 2),
        ("detokenize", False),
        ("priority", 1),
        ("priority", False),
        ("return_token_ids", True),
        ("return_tokens_as_token_ids", True),
        ("prompt_logprobs", 0),
        ("prompt_logprobs", 1),
        ("logprob_token_ids", [1]),
        ("truncate_prompt_tokens", -1),
        ("cache_salt", "x"),
        ("kv_transfer_params", {}),
        ("vllm_xargs", {"a": 1}),
        ("stream_interval", 2),
        ("thinking_token_budget", 5),
        ("include_reasoning", False),
        ("documents", [{"title": "a", "text": "b"}]),
        ("chat_template", "{{ messages }}"),
        ("mm_processor_kwargs", {"a": 1}),
        ("chat_template_kwargs", ["enable_thinking"]),
        ("chat_template_kwargs", {str(name): 1 for name in range(65)}),
        ("request_id", "a b"),
        ("request_id", "a" * 129),
        ("session_id", 5),
    ],
)
def test_another_value_is_a_400_in_one_sentence(field: str, value: object) -> None:
    engine = ScriptedEngine(says("unused"))
    reply = send(engine, CHAT, chat_body() | {field: value})
    assert (reply.status, reply.error["param"]) == (400, field)
    assert reply.error["message"].startswith(f"{field} is ")
    assert reply.error["message"].endswith(".")
    assert engine.submitted == []


def test_every_chunk_tells_the_usage_so_far_where_that_is_asked_for() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    engine = ScriptedEngine(says("ab", "c"), reused=lambda _: 1)
    *chunks, last = send(engine, COMPLETIONS, completion_body("Hello", stream=True, stream_options=options)).events
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [2, 3, 4]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {5}
    assert chunks[-1]["usage"] == last["usage"]
    alone = completion_body(stream=True, stream_options={"continuous_usage_stats": True})
    refused = send(ScriptedEngine(says("unused")), COMPLETIONS, alone)
    assert (refused.status, refused.error["param"]) == (400, "stream_options.continuous_usage_stats")


def test_a_completion_without_special_tokens_is_refused() -> None:
    reply = send(ScriptedEngine(says("unused")), COMPLETIONS, completion_body(add_special_tokens=False))
    assert (reply.status, reply.error["param"]) == (400, "add_special_tokens")


def test_a_response_format_holds_for_a_completion_too() -> None:
    engine = ScriptedEngine(says("{}"))
    assert send(engine, COMPLETIONS, completion_body(response_format={"type": "json_object"})).status == 200
    assert engine.submitted[0].grammar is not None


def test_the_id_of_an_answer_ends_with_the_request_id_that_the_body_gives() -> None:
    whole = send(ScriptedEngine(says("x")), CHAT, chat_body(request_id="job-7"))
    assert whole.json["id"] == "chatcmpl-job-7"
    streamed = send(ScriptedEngine(says("x")), COMPLETIONS, completion_body(request_id="job-7", stream=True))
    assert {event["id"] for event in streamed.events} == {"cmpl-job-7"}


def test_the_models_tell_how_long_a_context_is_served() -> None:
    app = app_for(ScriptedEngine(says("x")), options=replace(OPTIONS, context_limit=48))
    [model] = asyncio.run(ask(app, MODELS, method="GET")).json["data"]
    assert model["max_model_len"] == 48
    assert asyncio.run(ask(app, f"{MODELS}/{MODEL}", method="GET")).json["max_model_len"] == 48


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_is_health(method: str) -> None:
    engine = ScriptedEngine(says("x"))
    assert asyncio.run(ask(app_for(engine), "/ping", method=method)).status == 200
    engine.alive = False
    assert asyncio.run(ask(app_for(engine), "/ping", method=method)).status == 503


def post(path: str, body: object) -> Reply:
    return send(ScriptedEngine(says("unused")), path, body)


def test_tokenize_cuts_a_text_or_a_conversation_as_a_request_would() -> None:
    text = post("/tokenize", {"prompt": "Hé"})
    assert text.json == {
        "count": 3,
        "max_model_len": CONTEXT_LIMIT,
        "tokens": list("Hé".encode()),
        "token_strs": None,
    }
    named = {"model": MODEL, "add_generation_prompt": True, "return_token_strs": False, "tools": None}
    chat = post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}], **named})
    assert chat.json["tokens"] == [EOS, *b"Hi"]
    assert chat.json["count"] == 3


def test_detokenize_gives_the_text_of_tokens_special_ones_by_their_name() -> None:
    assert post("/detokenize", {"model": MODEL, "tokens": [*"Hé".encode(), EOS]}).json == {"prompt": "Hé<eos>"}
    assert post("/detokenize", {"tokens": []}).json == {"prompt": ""}
    assert post("/detokenize", {"tokens": [0xC3]}).json == {"prompt": "\ufffd"}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, 400, "return_token_strs"),
        ("/tokenize", {"prompt": "a", "messages": chat_body()["messages"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [0] * (MAX_TOKENS + 1)}, 400, "tokens"),
        ("/detokenize", {"tokens": [0, VOCABULARY]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [], "model": "other"}, 404, "model"),
    ],
)
def test_a_wrong_body_for_tokens_is_refused_by_its_field(path: str, body: object, status: int, param: str) -> None:
    reply = post(path, body)
    assert (reply.status, reply.error["param"]) == (status, param)


def with_template(tmp_path: Path, template: str) -> Path:
    folder = make_tiny_model(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return folder


THINKING = (
    "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %} at once{% endif %}"
    "{{ ' ' * indent }}"
)


def test_the_template_is_told_chat_template_kwargs(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(with_template(tmp_path, THINKING.removesuffix("{{ ' ' * indent }}")), 384)
    question = [Message("user", "Why?")]
    assert tokenizer.encode_chat(question, None, {"enable_thinking": False}) == tokenizer.encode("Why? at once")
    assert tokenizer.encode_chat(question, None, {"enable_thinking": True, "unread": []}) == tokenizer.encode("Why?")


@pytest.mark.parametrize(
    "name",
    [
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("conversation", "conversations", "self", "eos_token", "raise_exception", "tokenize", "return_dict", "kwargs"),
    ],
)
def test_no_argument_replaces_one_of_the_servers_own(tmp_path: Path, name: str) -> None:
    tokenizer = load_tokenizer(with_template(tmp_path, THINKING), 384)
    with pytest.raises(ApiError, match=f"chat_template_kwargs.{name} is") as caught:
        tokenizer.encode_chat([Message("user", "Why?")], None, {name: True})
    assert (caught.value.status, caught.value.param) == (400, f"chat_template_kwargs.{name}")


@pytest.mark.parametrize(
    "arguments", [{"indent": "deep"}, {"indent": {}}, {"indent": 1, "range": 1}, {"indent": float("inf")}]
)
def test_an_argument_that_the_template_cannot_reckon_with_is_a_400(
    tmp_path: Path, arguments: Mapping[str, Any]
) -> None:
    tokenizer = load_tokenizer(with_template(tmp_path, THINKING + "{% for at in range(1) %}{% endfor %}"), 384)
    with pytest.raises(ApiError, match="with these chat_template_kwargs cannot be rendered") as caught:
        tokenizer.encode_chat([Message("user", "Why?")], None, arguments)
    assert caught.value.status == 400


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_chat_template_kwargs_reach_the_tokenizer(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    told: list[Mapping[str, Any]] = []

    def encode_chat(
        self: ByteTokenizer, messages: Sequence[Message], tools: Tools | None, template_arguments: Mapping[str, Any]
    ) -> list[int]:
        told.append(template_arguments)
        return [1]

    monkeypatch.setattr(ByteTokenizer, "encode_chat", encode_chat)
    body = {"messages": chat_body()["messages"], "model": MODEL, "chat_template_kwargs": {"enable_thinking": False}}
    assert post(path, body).status == 200
    assert told == [{"enable_thinking": False}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [[], [(97,)]])
def test_a_failure_of_the_server_is_one_line_in_the_log_without_the_prompt(
    caplog: pytest.LogCaptureFixture, stream: bool, steps: list[tuple[int, ...]]
) -> None:
    failure = EngineGoneError("gone")
    send(ScriptedEngine(lambda _: [*steps, failure]), CHAT, chat_body("what was asked", stream=stream))
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        f"POST {CHAT} answered 503: The engine has stopped while it ran this request; send it again later."
    )


def test_a_request_that_is_refused_is_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    send(ScriptedEngine(says("unused")), CHAT, chat_body(n=0))
    send(ScriptedEngine(lambda _: [SequenceFailedError("Too much.")]), CHAT, chat_body(stream=True))
    assert caplog.records == []

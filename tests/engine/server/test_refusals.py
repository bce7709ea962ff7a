"""Every failure is one sentence in OpenAI's error shape that names the field; no field is ignored."""

import asyncio
import json
from dataclasses import replace
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from starlette.datastructures import Headers

from engine.process import EngineGoneError, SequenceFailedError
from engine.server.errors import ApiError
from engine.server.headers import read_steering
from engine.server.reading import MAX_BODY_BYTES
from engine.server.rules import CHAT_RULES, COMPLETION_RULES
from engine.server.schema import parse_chat, parse_completion
from tests.engine.server.double import CONTEXT_LIMIT, MODEL, VOCABULARY, ScriptedEngine, says
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

CALL: dict[str, Any] = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


def tool_with(schema: dict[str, object], **fields: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"a": schema}}
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}


def call_with(arguments: str) -> dict[str, object]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}


CHAT_REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": -1}, "temperature", "0 to 2"),
    ({"temperature": 2.01}, "temperature", "0 to 2"),
    ({"temperature": "hot"}, "temperature", "0 to 2"),
    ({"temperature": True}, "temperature", "0 to 2"),
    ({"top_p": 1.5}, "top_p", "0 to 1"),
    ({"top_k": 10**30}, "top_k", "a whole number from 1 to 2147483647, or 0 or -1"),
    ({"top_k": -2}, "top_k", "whole number"),
    ({"min_p": -0.1}, "min_p", "0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "0.01 to 10"),
    ({"presence_penalty": 2.5}, "presence_penalty", "-2 to 2"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "-2 to 2"),
    ({"max_tokens": 0}, "max_tokens", "1 to 2147483647"),
    ({"max_tokens": 10**30}, "max_tokens", "1 to 2147483647"),
    ({"max_completion_tokens": -3}, "max_completion_tokens", "1 to 2147483647"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "max_completion_tokens"),
    ({"n": 0}, "n", "1 to 8"),
    ({"n": 9}, "n", "1 to 8"),
    ({"n": True}, "n", "1 to 8"),
    ({"seed": 1 << 63}, "seed", "whole number"),
    ({"seed": 0.5}, "seed", "whole number"),
    ({"seed": "7"}, "seed", "whole number"),
    ({"stop": ""}, "stop", "non-empty"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "4"),
    ({"stop": ["a", 1]}, "stop", "string"),
    ({"stop": ["a", "b" * 1001]}, "stop", "1000 characters"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "1024"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "true or false"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "remove it"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "false"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"257": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias", '"05"; give keys that are token ids from 0 to 256, as JSON'),
    ({"logit_bias": {"1": 101}}, "logit_bias[1]", "-100 to 100"),
    ({"logit_bias": [1]}, "logit_bias", "object"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": "hi"}, "messages", "at least one"),
    ({"messages": None}, "messages", "list of messages"),
    ({"messages": ["hi"]}, "messages[0]", "object"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "assistant"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "id of the call"),
    ({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}, "messages[0].tool_call_id", "role tool"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls", "assistant"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}]},
        "messages[0].tool_calls[0].type",
        "function",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
        "JSON",
    ),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role", "assistant"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "user"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "text parts"),
    ({"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages[0].name", "leave it out"),
    ({"messages": [{"role": "user", "content": "x", "tone": 1}]}, "messages[0].tone", "remove it"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "text",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "string"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": "json"}, "response_format", "object"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "JSON schema"),
    ({"response_format": {"type": "text", "json_schema": {}}}, "response_format.type", "json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}},
        "response_format",
        "strin",
    ),
    ({"guided_json": {"not": {"type": "string"}}}, "guided_json", "not"),
    ({"guided_json": "{"}, "guided_json", "JSON schema"),
    ({"guided_json": "3"}, "guided_json", "JSON schema"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
    ({"guided_choice": []}, "guided_choice", "at least one"),
    ({"guided_grammar": "root ::= nothing"}, "guided_grammar", "nothing"),
    ({"guided_grammar": "root ::="}, "guided_grammar", "empty text"),
    ({"guided_regex": "(a{1000}){1000}"}, "guided_regex", "simpler"),
    ({"guided_choice": [f"choice {index}" for index in range(20_000)]}, "guided_choice", "50000"),
    ({"guided_json": {"const": 10**400}}, "guided_json", "kept to exactly"),
    ({"guided_json": '{"const": 1' + "0" * 5000 + "}"}, "guided_json", "JSON schema"),
    ({"guided_json": '{"const": NaN}'}, "guided_json", "JSON schema"),
    ({"guided_json": '{"const": "\\ud800"}'}, "guided_json", "JSON schema"),
    ({"guided_json": '{"not":' * 100_000}, "guided_json", "JSON schema"),
    ({"guided_json": '{"const": 1e999}'}, "guided_json", "kept to exactly"),
    ({"guided_json": {"type": "integer", "minimum": 10**29, "maximum": 10**30}}, "guided_json", "its m"),
    ({"guided_regex": "a\\"}, "guided_regex", "lone backslash"),
    ({"guided_json": {"oneOf": [{"type": "string"}, {"minLength": 3}]}}, "guided_json", "give anyOf instead"),
    ({"guided_grammar": 'root ::= "a"\nroot ::= "b"'}, "guided_grammar", "twice"),
    ({"structured_outputs": {"json": {"const": 10**400}}}, "structured_outputs.json", "kept to exactly"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"maximum": 10**400}}}},
        "response_format",
        "kept to exactly",
    ),
    ({"tools": [tool_with({"const": 10**400}, strict=True)]}, "tools", "kept to exactly"),
    ({"tools": [tool_with({"const": 10**400})], "tool_choice": "required"}, "tools", "kept to exactly"),
    ({"messages": [call_with("[" * 100_000)]}, "messages[0].tool_calls[0].function.arguments", "JSON in a string"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "only one"),
    ({"structured_outputs": {}}, "structured_outputs", "one of"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "one of"),
    ({"structured_outputs": {"xml": 1}}, "structured_outputs.xml", "remove it"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "true"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "function"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "object"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "letters"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "its own name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        "tools[0].function.parameters.type",
        "object",
    ),
    (
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
            "tool_choice": "required",
        },
        "tools",
        "not",
    ),
    ({"tool_choice": "required"}, "tools", "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice", "required"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name",
        "f",
    ),
    ({"tools": [TOOL], "guided_regex": "a"}, "guided_regex", "tools"),
    ({"tools": [TOOL], "forced_prefix": "a"}, "forced_prefix", "tools"),
    ({"logprobs": 1}, "logprobs", "true or false"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "0 to 20"),
    ({"min_tokens": 10**20}, "min_tokens", "0 to 2147483647"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "at most 4"),
    ({"min_tokens": CONTEXT_LIMIT}, "min_tokens", "context"),
    ({"ignore_eos": 1}, "ignore_eos", "true or false"),
    ({"stop_token_ids": 2}, "stop_token_ids", "list"),
    ({"stop_token_ids": [1] * 257}, "stop_token_ids", "256"),
    ({"stop_token_ids": [1, VOCABULARY]}, "stop_token_ids[1]", "256"),
    ({"stop_token_ids": [1], "guided_regex": "a"}, "stop_token_ids", "where the output ends"),
    ({"ignore_eos": True, "guided_regex": "a"}, "ignore_eos", "where the output ends"),
    ({"ignore_eos": True, "tools": [TOOL], "tool_choice": "required"}, "ignore_eos", "where the output ends"),
    ({"skip_special_tokens": False}, "skip_special_tokens", "true"),
    ({"include_stop_str_in_output": True}, "include_stop_str_in_output", "false"),
    ({"use_beam_search": True}, "use_beam_search", "false"),
    ({"length_penalty": 0.5}, "length_penalty", "1"),
    ({"echo": True}, "echo", "false"),
    ({"top_key": 5}, "top_key", "top_k"),
    ({"penalty": 5}, "penalty", "remove it"),
    ({"bad_words": "x"}, "bad_words", "strings"),
    ({"bad_words": ["x", " "]}, "bad_words", "1 to 200 characters and not just blanks"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "1 to"),
    ({"allowed_token_ids": [1, VOCABULARY]}, "allowed_token_ids[1]", "256"),
    ({"forced_prefix": ""}, "forced_prefix", "not empty"),
    ({"forced_prefix": [VOCABULARY]}, "forced_prefix[0]", "256"),
    ({"forced_prefix": "abcd", "max_tokens": 3}, "forced_prefix", "room for 3"),
    ({"forced_prefix": "a", "guided_regex": "a"}, "forced_prefix", "guided_regex"),
    ({"watermark": True}, "watermark", "object"),
    ({"watermark": {"gamma": 1}}, "watermark.gamma", "0.999"),
    ({"watermark": {"seed": 1}}, "watermark.seed", "remove it"),
    ({"verifier": "typical"}, "verifier", "coupled"),
    ({"store": True}, "store", "false"),
    ({"service_tier": "flex"}, "service_tier", "auto"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "none"),
    ({"modalities": ["audio"]}, "modalities", "text"),
    ({"metadata": {"a": 1}}, "metadata", "strings"),
    ({"user": 5}, "user", "string"),
    ({"tempreature": 1}, "tempreature", "temperature"),
    ({"prompt": "x"}, "prompt", "no such field"),
    ({"x" * 500: 1}, "x" * 500, "no such field"),
    ({"temperature": int("9" * 4000)}, "temperature", "0 to 2"),
]

COMPLETION_REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt", "non-empty"),
    ({"prompt": []}, "prompt", "non-empty"),
    ({"prompt": None}, "prompt", "string"),
    ({"prompt": {"a": 1}}, "prompt", "string or list"),
    ({"prompt": [1, -1]}, "prompt[1]", "256"),
    ({"prompt": [VOCABULARY]}, "prompt[0]", "256"),
    ({"prompt": [True]}, "prompt[0]", "256"),
    ({"prompt": [[1], [1, 999]]}, "prompt[1][1]", "256"),
    ({"prompt": ["a", ""]}, "prompt[1]", "non-empty"),
    ({"prompt": ["a", []]}, "prompt[1]", "non-empty"),
    ({"prompt": [1, "a"]}, "prompt[0]", "non-empty"),
    ({"prompt": ["a"] * 65}, "prompt", "64"),
    ({"echo": True}, "echo", "false"),
    ({"suffix": "x"}, "suffix", "leave it out"),
    ({"logprobs": True}, "logprobs", "0 to 20"),
    ({"logprobs": 21}, "logprobs", "0 to 20"),
    ({"tools": []}, "tools", "no such field"),
    ({"best_of": 3}, "best_of", "n"),
    ({"messages": []}, "messages", "no such field"),
]


@pytest.mark.parametrize(("fields", "param", "remedy"), CHAT_REFUSALS)
def test_a_chat_field_that_cannot_be_honoured_is_a_400_that_names_it(
    fields: dict[str, Any], param: str, remedy: str
) -> None:
    engine = ScriptedEngine(says("unused"))
    reply = send(engine, CHAT, chat_body(**fields))
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["message"].startswith(param[:50])
    assert remedy in reply.error["message"]
    assert engine.submitted == []


@pytest.mark.parametrize(("fields", "param", "remedy"), COMPLETION_REFUSALS)
def test_a_completion_field_that_cannot_be_honoured_is_a_400_that_names_it(
    fields: dict[str, Any], param: str, remedy: str
) -> None:
    reply = send(ScriptedEngine(says("unused")), COMPLETIONS, completion_body(**{"prompt": "x", **fields}))
    assert reply.status == 400
    assert reply.error["param"] == param
    assert remedy in reply.error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"nonsense",
        b"[1]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"model": "\\ud800"}',
        b'{"model": NaN}',
        b"[" * 5000,
        b'{"a":' * 5000,
        b'{"temperature": ' + b"9" * 10_000 + b"}",
        b'{"temperature": 1e999}',
        b"\x00",
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(path: str, content: bytes) -> None:
    reply = asyncio.run(ask(app_for(ScriptedEngine(says("unused"))), path, content=content))
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


def test_a_body_beyond_the_limit_is_a_413() -> None:
    content = json.dumps(chat_body("x" * MAX_BODY_BYTES)).encode()
    reply = asyncio.run(ask(app_for(ScriptedEngine(says("unused"))), CHAT, content=content))
    assert reply.status == 413
    assert reply.error["code"] == "body_too_large"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_missing_or_wrong_model_is_refused(path: str) -> None:
    body = chat_body() if path == CHAT else completion_body()
    other = send(ScriptedEngine(says("unused")), path, {**body, "model": "gpt-4"})
    assert other.status == 404
    assert other.error["code"] == "model_not_found"
    assert MODEL in other.error["message"]
    del body["model"]
    none = send(ScriptedEngine(says("unused")), path, body)
    assert none.status == 400
    assert none.error["param"] == "model"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/openapi.json", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", COMPLETIONS, 405, "method_not_allowed"),
        ("POST", MODELS, 405, "method_not_allowed"),
        ("GET", MODELS + "/gpt-4", 404, "model_not_found"),
        ("GET", MODELS + "/", 404, "model_not_found"),
        ("GET", CHAT + "/", 404, "not_found"),
    ],
)
def test_unknown_paths_methods_and_models_have_the_error_shape(method: str, path: str, status: int, code: str) -> None:
    reply = asyncio.run(ask(app_for(ScriptedEngine(says("unused"))), path, {}, method=method))
    assert reply.status == status
    assert reply.error["code"] == code
    assert "x-request-id" in reply.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body("x" * CONTEXT_LIMIT)),
        (COMPLETIONS, completion_body("x" * CONTEXT_LIMIT)),
        (COMPLETIONS, completion_body(["x", "x" * 20_000])),
        (COMPLETIONS, completion_body([7] * CONTEXT_LIMIT)),
    ],
)
def test_a_prompt_beyond_the_context_is_a_400(path: str, body: dict[str, object]) -> None:
    reply = send(ScriptedEngine(says("unused")), path, body)
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
    assert reply.error["param"] == ("messages" if path == CHAT else "prompt")
    assert str(CONTEXT_LIMIT - 1) in reply.error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-paceline-mode", "on"),
        ("x-paceline-language", "english"),
        ("x-paceline-language", "de-AT"),
        ("x-paceline-language", "xx"),
        ("x-paceline-debug", "1"),
        ("x-paceline-langauge", "en"),
        ("x-request-id", "a b"),
        ("x-request-id", "x" * 129),
        ("x-request-id", ""),
    ],
)
def test_a_header_that_cannot_be_honoured_is_a_400_that_names_it(name: str, value: str) -> None:
    reply = send(ScriptedEngine(says("unused")), CHAT, chat_body(), headers={name: value})
    assert reply.status == 400
    assert reply.error["param"] == name
    assert name in reply.error["message"]
    assert "x-request-id" in reply.headers


@pytest.mark.parametrize("name", ["x-paceline-route", "x-paceline-language", "x-paceline-mode", "x-paceline-debug"])
def test_a_steering_header_is_given_once(name: str) -> None:
    headers = Headers(raw=[(name.encode(), b"off"), (name.encode(), b"off")])
    with pytest.raises(ApiError, match=f"The header {name} is given more than once; give it once"):
        read_steering(headers, (), trusted=True)


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/readyz", "/api/v1/status"])
def test_what_is_on_the_admin_port_is_a_404_that_says_where(path: str) -> None:
    options = replace(OPTIONS, admin_url="http://127.0.0.1:8001")
    reply = asyncio.run(ask(app_for(ScriptedEngine(says("unused")), options=options), path, method="GET"))
    assert reply.status == 404
    assert f"http://127.0.0.1:8001{path}" in reply.error["message"]


@pytest.mark.parametrize("fields", [{}, {"skip_special_tokens": True, "length_penalty": 1, "echo": False}])
def test_fields_of_vllm_that_change_nothing_are_taken(fields: dict[str, Any]) -> None:
    assert send(ScriptedEngine(says("fine")), CHAT, chat_body(**fields)).status == 200


def test_without_an_engine_a_request_is_a_503() -> None:
    engine = ScriptedEngine(says("unused"))
    engine.alive = False
    reply = send(engine, CHAT, chat_body())
    assert reply.status == 503
    assert (reply.error["type"], reply.error["code"]) == ("server_error", "unavailable")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (EngineGoneError("gone"), 503),
        (SequenceFailedError("It needs too much context."), 400),
        (SequenceFailedError("Its logits are no numbers.", fault=True), 500),
    ],
)
def test_an_engine_that_fails_before_the_first_token_gives_a_status(
    stream: bool, failure: Exception, status: int
) -> None:
    reply = send(ScriptedEngine(lambda _: [failure]), CHAT, chat_body(stream=stream))
    assert reply.status == status
    assert reply.error["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [tool_with({})], "tool_choice": "required"}, "tools"),
    ],
)
def test_a_grammar_that_the_engine_cannot_follow_is_a_400_that_names_its_field(
    fields: dict[str, Any], param: str, stream: bool
) -> None:
    failure = SequenceFailedError("The grammar cannot be followed any further.", of_grammar=True)
    reply = send(ScriptedEngine(lambda _: [failure]), CHAT, chat_body(stream=stream, **fields))
    assert reply.status == 400
    assert (reply.error["param"], reply.error["code"]) == (param, "sequence_refused")
    other = SequenceFailedError("It needs too much context.")
    assert send(ScriptedEngine(lambda _: [other]), CHAT, chat_body(**fields)).error["param"] is None


def test_an_engine_that_fails_later_ends_the_stream_with_an_error_event() -> None:
    reply = send(ScriptedEngine(lambda _: [(97,), EngineGoneError("gone")]), CHAT, chat_body(stream=True))
    first, last, rest = reply.body.decode().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["content"] == "a"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unavailable"
    assert rest == ""
    assert "[DONE]" not in reply.body.decode()


def test_every_field_of_the_official_client_is_known() -> None:
    for module, rules in ((chat_create_params, CHAT_RULES), (completion_create_params, COMPLETION_RULES)):
        streaming = module.CompletionCreateParamsStreaming
        assert set(get_type_hints(streaming)) - set(rules) == set()


def test_fields_at_their_neutral_value_are_accepted() -> None:
    neutral: dict[str, Any] = {
        "logprobs": False,
        "top_logprobs": 0,
        "n": 1,
        "user": "u",
        "metadata": {"team": "a"},
        "store": False,
        "tools": [],
        "tool_choice": "auto",
        "functions": [],
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "service_tier": "auto",
        "modalities": ["text"],
        "logit_bias": {},
        "stop": [],
        "seed": None,
    }
    assert set(neutral) <= set(CHAT_RULES)
    parsed = parse_chat(chat_body(**neutral), MODEL, VOCABULARY)
    assert parsed == parse_chat(chat_body(), MODEL, VOCABULARY)
    assert parse_chat(chat_body() | dict.fromkeys(neutral), MODEL, VOCABULARY) == parsed


def test_defaults_are_those_of_openai() -> None:
    chat = parse_chat(chat_body(), MODEL, VOCABULARY).fields
    assert (chat.temperature, chat.top_p, chat.max_tokens, chat.choices, chat.stream) == (1.0, 1.0, None, 1, False)
    assert parse_completion(completion_body(), MODEL, VOCABULARY).fields.max_tokens == 16


def test_an_answer_may_be_sent_back_as_it_came() -> None:
    reply = send(ScriptedEngine(says("fine")), CHAT, chat_body())
    messages = [*chat_body()["messages"], reply.json["choices"][0]["message"], {"role": "user", "content": "more"}]  # type: ignore[misc]
    assert parse_chat(chat_body() | {"messages": messages}, MODEL, VOCABULARY).messages[1].content == "fine"


def test_text_parts_are_joined_as_they_are() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    body = chat_body() | {"messages": [{"role": "user", "content": parts}]}
    assert parse_chat(body, MODEL, VOCABULARY).messages[0].content == "one two"


def test_the_edges_of_the_ranges_are_accepted_and_mean_what_they_say() -> None:
    fields = parse_chat(
        chat_body(temperature=1e-50, top_p=0, top_k=-1, seed=-(1 << 63), logit_bias={"3": -100, "1": 2.5}),
        MODEL,
        VOCABULARY,
    ).fields
    assert fields.temperature == 0.0
    assert 0 < fields.top_p < 1e-6
    assert fields.top_k == 0
    assert fields.seed == -(1 << 63)
    assert fields.logit_bias == ((1, 2.5), (3, -100.0))

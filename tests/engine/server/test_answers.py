"""Log-probabilities, tools and forms through the app: what reaches the engine, and what the client reads."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from engine.server.errors import ApiError
from engine.server.logprobs import LEAST
from engine.server.schema import parse_chat
from engine.server.tools import Message, parse_tools, plain_turns, template_turns
from kernels.sampling import Verifier, Watermark
from policies.testing import ListSink
from tests.engine.server.double import EOS, MODEL, VOCABULARY, ByteTokenizer, ScriptedEngine, Step, logprob, says
from tests.engine.server.harness import CHAT, COMPLETIONS, OPTIONS, app_for, ask, chat_body, completion_body, send

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
WIDE = dataclasses.replace(OPTIONS, context_limit=400)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


def steps(*pieces: bytes, end: bool = True) -> ScriptedEngine:
    script: list[Step] = [tuple(piece) for piece in pieces]
    return ScriptedEngine(lambda _: [*script, (EOS,)] if end else script)


@pytest.mark.parametrize("stream", [False, True])
def test_report_25_chat_logprobs_have_one_entry_for_each_counted_token_in_order(stream: bool) -> None:
    engine = steps(b"Hi ", "é".encode())
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    reply = send(engine, CHAT, chat_body(logprobs=True, top_logprobs=2, **fields))
    if stream:
        chunks = [chunk["choices"][0] for chunk in reply.events[:-1]]
        content = [entry for chunk in chunks for entry in chunk["logprobs"]["content"]]
        usage = reply.events[-1]["usage"]
        assert [len(chunk["logprobs"]["content"]) for chunk in chunks] == [3, 2, 1]
    else:
        content, usage = reply.json["choices"][0]["logprobs"]["content"], reply.json["usage"]
    assert len(content) == usage["completion_tokens"] == 6
    assert [entry["token"] for entry in content] == ["H", "i", " ", "\\xc3", "\\xa9", "<eos>"]
    assert [entry["bytes"] for entry in content] == [[72], [105], [32], [195], [169], None]
    assert [entry["logprob"] for entry in content] == [-0.72, -1.05, -0.32, -1.95, -1.69, -2.56]
    assert content[0]["top_logprobs"] == [
        {"token": "H", "logprob": 0.0, "bytes": [72]},
        {"token": "I", "logprob": -0.125, "bytes": [73]},
    ]
    assert engine.submitted[0].top_logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
def test_report_25_completion_logprobs_are_lists_of_one_length_with_offsets_into_the_text(stream: bool) -> None:
    engine = steps(b"ab", "é!".encode())
    reply = send(engine, COMPLETIONS, completion_body("x", logprobs=1, stream=stream))
    parts = (
        [chunk["choices"][0]["logprobs"] for chunk in reply.events]
        if stream
        else [reply.json["choices"][0]["logprobs"]]
    )
    merged = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    assert merged["tokens"] == ["a", "b", "\\xc3", "\\xa9", "!", "<eos>"]
    assert merged["text_offset"] == [0, 1, 2, 2, 3, 4]
    assert merged["token_logprobs"] == [-0.97, -0.98, -1.95, -1.69, -0.33, -2.56]
    assert merged["top_logprobs"][0] == {"a": -0.97}
    none = send(steps(b"ab"), COMPLETIONS, completion_body("x", logprobs=0)).json["choices"][0]["logprobs"]
    assert none["top_logprobs"] is None
    assert none["tokens"] == ["a", "b", "<eos>"]


def test_without_the_wish_there_are_no_logprobs() -> None:
    engine = steps(b"Hi")
    assert send(engine, CHAT, chat_body()).json["choices"][0]["logprobs"] is None
    assert engine.submitted[0].top_logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_report_32_vllm_47616_nothing_is_listed_past_a_stop_string_in_mid_block(stream: bool) -> None:
    reply = send(steps(b"one two STOP three", end=False), CHAT, chat_body(logprobs=True, stop=" STOP", stream=stream))
    if stream:
        choices = [chunk["choices"][0] for chunk in reply.events]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        content = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    else:
        text = reply.json["choices"][0]["message"]["content"]
        content = reply.json["choices"][0]["logprobs"]["content"]
        assert reply.json["usage"]["completion_tokens"] == len(content)
    assert text == "one two"
    assert "".join(entry["token"] for entry in content) == "one two STOP"


def test_a_token_without_any_chance_is_written_as_openai_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.engine.server.double.logprob", lambda token, top: logprob(10**9, 0))
    reply = send(steps(b"a"), CHAT, chat_body(logprobs=True))
    assert reply.json["choices"][0]["logprobs"]["content"][0]["logprob"] == LEAST


def test_every_control_reaches_the_engine_as_tokens() -> None:
    engine = ScriptedEngine(says("fine"))
    body = chat_body(
        min_tokens=2,
        bad_words=["no", " way"],
        allowed_token_ids=[102, 105],
        forced_prefix="fi",
        watermark={"gamma": 0.5, "key": -1},
        verifier="rejection",
    )
    assert send(engine, CHAT, body).status == 200
    sampling = engine.submitted[0].sampling
    assert (sampling.min_tokens, sampling.end_tokens) == (2, (EOS,))
    assert sampling.bad_words == (tuple(b"no"), tuple(b" no"), tuple(b"way"), tuple(b" way"))
    assert sampling.allowed_tokens == (102, 105)
    assert sampling.forced_prefix == tuple(b"fi")
    assert sampling.watermark == Watermark(gamma=0.5, delta=2.0, key=(1 << 64) - 1)
    assert sampling.verifier is Verifier.REJECTION


def test_the_servers_verifier_and_watermark_hold_where_a_request_names_none() -> None:
    mark = Watermark(key=5)
    options = dataclasses.replace(OPTIONS, verifier=Verifier.BLOCK, watermark=mark)
    engine = ScriptedEngine(says("fine"))
    app = app_for(engine, options=options)
    assert asyncio.run(ask(app, CHAT, chat_body())).status == 200
    assert engine.submitted[0].sampling.verifier is Verifier.BLOCK
    assert engine.submitted[0].sampling.watermark == mark
    refused = asyncio.run(ask(app, CHAT, chat_body(watermark={})))
    assert (refused.status, refused.error["param"]) == (400, "watermark")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"response_format": {"type": "json_object"}}, '"type": "object"'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 7}}}},
            '"const": 7',
        ),
        ({"guided_json": {"const": 8}}, '"const": 8'),
        ({"guided_json": '{"const": 9}'}, '"const": 9'),
        ({"guided_regex": "[a-f]+"}, "[a-f]+"),
        ({"guided_choice": ["red", "green"]}, "red|green"),
        ({"guided_grammar": 'root ::= "a" root | "b"'}, '"b"'),
        ({"structured_outputs": {"json": {"const": 10}}}, '"const": 10'),
        ({"structured_outputs": {"regex": "x+"}}, "x+"),
        ({"structured_outputs": {"json_object": True}}, '"type": "object"'),
    ],
)
def test_a_form_reaches_the_engine_as_a_grammar_and_counts_as_structured(fields: dict[str, Any], part: str) -> None:
    sink = ListSink()
    for path, body in ((CHAT, chat_body(**fields)), (COMPLETIONS, completion_body("x", **fields))):
        if path == COMPLETIONS and "response_format" in fields:
            continue
        engine = ScriptedEngine(says("x"))
        reply = send(engine, path, body, sink=sink)
        assert reply.status == 200
        assert part.replace(" ", "") in (engine.submitted[0].grammar or "").replace(" ", "")
        assert sink.requests[-1].features.structured


@pytest.mark.parametrize(
    ("fields", "said", "valid"),
    [
        ({"guided_json": {"type": "object"}}, '{"a": 1}', True),
        ({"guided_json": {"type": "object"}}, '{"a": 1', False),
        ({"response_format": {"type": "json_object"}}, "{}{}", False),
        ({"guided_choice": ["red", "green"]}, "red", True),
        ({"guided_choice": ["red", "green"]}, "redd", False),
        ({"guided_regex": "[a-f]+"}, "abc", None),
        ({"guided_json": {"type": "object"}, "stop": "1"}, '{"a": 1}', None),
        ({}, "abc", None),
    ],
)
def test_an_output_is_looked_at_for_the_form_that_was_asked_of_it(
    fields: dict[str, Any], said: str, valid: bool | None
) -> None:
    sink = ListSink()
    reply = send(ScriptedEngine(says(said[:2], said[2:])), CHAT, chat_body(**fields), sink=sink)
    assert reply.status == 200
    assert [stats.valid for stats in sink.requests] == [valid]


def test_nothing_is_said_of_the_form_of_an_output_that_a_limit_cut_off() -> None:
    sink = ListSink()
    body = chat_body(guided_json={"type": "object"}, max_tokens=4)
    assert send(ScriptedEngine(says('{"a": 1}', end=False)), CHAT, body, sink=sink).status == 200
    assert [stats.valid for stats in sink.requests] == [None]


def test_a_prompt_token_beyond_the_models_vocabulary_is_a_400_for_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: [VOCABULARY])
    engine = ScriptedEngine(says("x"))
    reply = send(engine, COMPLETIONS, completion_body("x"))
    assert (reply.status, reply.error["param"]) == (400, "prompt")
    assert str(VOCABULARY) in reply.error["message"]
    assert engine.submitted == []


@pytest.mark.parametrize("cut", [1, 3, 7, 100])
def test_report_30_a_streamed_call_is_one_delta_with_its_id_name_and_arguments(cut: int) -> None:
    text = f"Sure. {CALL}"
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    engine = ScriptedEngine(says(*pieces), 400)
    reply = send(engine, CHAT, chat_body(tools=[TOOL], stream=True, max_tokens=100), options=WIDE)
    choices = [chunk["choices"][0] for chunk in reply.events]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Sure."
    deltas = [(choice["delta"], choice["finish_reason"]) for choice in choices]
    told = [delta.get("content") or delta.get("tool_calls") or finish for delta, finish in deltas]
    assert all(told), "an empty chunk"
    (found,) = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert (found["index"], found["type"], found["function"]["name"]) == (0, "function", "weather")
    assert json.loads(found["function"]["arguments"]) == {"city": "Bonn"}
    assert found["id"].startswith("call_")
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


def test_a_whole_answer_has_its_calls_and_no_content() -> None:
    reply = send(ScriptedEngine(says(f"{CALL}\n{CALL}"), 400), CHAT, chat_body(tools=[TOOL], n=2), options=WIDE)
    for choice in reply.json["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert [json.loads(call["function"]["arguments"]) for call in choice["message"]["tool_calls"]] == [
            {"city": "Bonn"}
        ] * 2


def test_a_second_call_is_not_waited_for_where_one_was_wanted() -> None:
    engine = ScriptedEngine(says(CALL, CALL), 400)
    reply = send(engine, CHAT, chat_body(tools=[TOOL], parallel_tool_calls=False), options=WIDE)
    assert len(reply.json["choices"][0]["message"]["tool_calls"]) == 1
    assert reply.json["choices"][0]["finish_reason"] == "tool_calls"
    assert engine.cancelled == [1]


def test_text_without_a_call_is_an_ordinary_answer() -> None:
    reply = send(ScriptedEngine(says("It rains.")), CHAT, chat_body(tools=[TOOL]), options=WIDE)
    assert reply.json["choices"][0]["message"] == {"role": "assistant", "content": "It rains.", "refusal": None}
    assert reply.json["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("choice", "strict", "grammar"),
    [
        ("auto", False, None),
        ("none", True, None),
        ("auto", True, "TAG_TEXT"),
        ("required", False, " call)*"),
        ({"type": "function", "function": {"name": "weather"}}, False, "start: call\n"),
    ],
)
def test_a_tool_choice_that_promises_a_form_has_a_grammar(choice: object, strict: bool, grammar: str | None) -> None:
    tool = {**TOOL, "function": {**TOOL["function"], "strict": strict}}
    engine = ScriptedEngine(says(CALL), 400)
    assert send(engine, CHAT, chat_body(tools=[tool], tool_choice=choice), options=WIDE).status == 200
    given = engine.submitted[0].grammar
    if grammar is None:
        assert given is None
    else:
        assert grammar in (given or "")


def test_the_turns_of_a_conversation_with_tools_are_told_to_either_kind_of_template() -> None:
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
                {"id": "b", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "sun"},
    ]
    parsed = parse_chat(chat_body(tools=[TOOL]) | {"messages": messages}, MODEL, VOCABULARY)
    told = template_turns(parsed.messages)
    assert told[1]["tool_calls"][1]["function"] == {"name": "weather", "arguments": {"city": "Ulm"}}
    assert (told[2]["role"], told[3]["tool_call_id"]) == ("tool", "b")
    plain = plain_turns(parsed.messages, parsed.tools)
    assert [turn["role"] for turn in plain] == ["system", "user", "assistant", "user"]
    assert '"description": "The weather of a city."' in plain[0]["content"]
    assert plain[2]["content"].count("<tool_call>\n") == 2
    assert plain[3]["content"] == "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"


def test_a_system_message_is_kept_in_front_of_the_tools() -> None:
    tools = parse_tools({"tools": [TOOL]})
    turns = plain_turns([Message("system", "Be brief."), Message("user", "Hi")], tools)
    assert [turn["role"] for turn in turns] == ["system", "user"]
    assert turns[0]["content"].startswith("Be brief.\n\n# Tools")


def test_a_tool_choice_of_none_tells_the_model_of_no_tool() -> None:
    assert parse_tools({"tools": [TOOL], "tool_choice": "none"}) is None


def test_more_tools_than_the_limit_are_refused() -> None:
    with pytest.raises(ApiError, match="at most 128"):
        parse_chat(chat_body(tools=[TOOL] * 129), MODEL, VOCABULARY)

"""An answer is a function of its tokens, and not of how many of them came in a message: speculation changes that."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.stats import FinishReason, RequestStats
from policies.testing import ListSink
from tests.engine.server.double import EOS, ScriptedEngine, Step
from tests.engine.server.harness import CHAT, COMPLETIONS, OPTIONS, Reply, app_for, ask, chat_body, completion_body

LIMIT = 400
CALL = b'<tool_call>\n{"name": "time", "arguments": {"at": 7}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}
SMILE, E_ACUTE = "🙂".encode(), "é".encode()
PIECES = (CALL, CALL[:-4], SMILE, SMILE[:2], SMILE[2:], E_ACUTE, E_ACUTE[:1], b"\xff", b"ab", b" ", b"abababab" * 3)
STOPS = ("�", "🙂", "é", "ba", "abab", " <", "</tool_call>", "a�")


def pieces_of(tokens: list[int], cuts: list[int]) -> list[Step]:
    edges = [0, *sorted({cut % len(tokens) for cut in cuts} - {0}), len(tokens)]
    return [tuple(tokens[start:end]) for start, end in itertools.pairwise(edges)]


def read_whole(reply: Reply) -> dict[str, Any]:
    [choice] = reply.json["choices"]
    message = choice.get("message") or {"content": choice["text"]}
    return {
        "text": message["content"] or "",
        "calls": [call["function"] for call in message.get("tool_calls", [])],
        "finish": choice["finish_reason"],
        "logprobs": choice["logprobs"],
        "usage": reply.json["usage"],
    }


def read_stream(reply: Reply) -> dict[str, Any]:
    """The chunks put together, as a client does."""
    *chunks, last = reply.events
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice.get("delta") or {"content": choice.get("text")} for choice in choices]
    logprobs: dict[str, Any] | None = None
    for choice in choices:
        for name, values in (choice["logprobs"] or {}).items():
            logprobs = logprobs or {}
            logprobs[name] = [*logprobs.get(name, []), *values] if isinstance(values, list) else values
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    return {
        "text": "".join(delta.get("content") or "" for delta in deltas),
        "calls": [call["function"] for delta in deltas for call in delta.get("tool_calls", [])],
        "finish": choices[-1]["finish_reason"],
        "logprobs": logprobs,
        "usage": last["usage"],
    }


def answered(messages: list[Step], path: str, fields: dict[str, Any]) -> tuple[dict[str, Any], RequestStats]:
    sink = ListSink()
    app = app_for(ScriptedEngine(lambda _: messages, LIMIT), sink=sink, options=replace(OPTIONS, context_limit=LIMIT))
    body = chat_body(**fields) if path == CHAT else completion_body(**fields)
    reply = asyncio.run(ask(app, path, body))
    assert reply.status == 200, reply.body
    [stats] = sink.requests
    return (read_stream if fields.get("stream") else read_whole)(reply), stats


@settings(deadline=None, max_examples=60)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    stops=st.lists(st.sampled_from(STOPS), max_size=3),
    min_tokens=st.integers(0, 9),
    max_tokens=st.integers(9, 200),
    tools=st.sampled_from([None, True, False]),
    stream=st.booleans(),
    logprobs=st.booleans(),
)
@example([CALL, b"ab"], [], [], 0, 200, False, False, True)
@example([b"a", E_ACUTE[:1], b"bbbb"], [], ["�"], 0, 200, None, False, True)
@example([b"a", SMILE, b"bbbb"], [], ["🙂"], 4, 200, None, True, True)
@example([b"ab", CALL], [], ["</tool_call>"], 0, 200, False, True, False)
@example([CALL, b"abababab" * 3], [], [], 0, 200, False, False, True)
def test_an_answer_is_the_same_however_its_tokens_come_in_messages(
    pieces: list[bytes],
    cuts: list[int],
    stops: list[str],
    min_tokens: int,
    max_tokens: int,
    tools: bool | None,
    stream: bool,
    logprobs: bool,
) -> None:
    """`tools`: whether several calls may come; None: no tools, and a text completion."""
    tokens = [*b"".join(pieces), EOS, *b"past the end"]
    fields: dict[str, Any] = {"stop": stops, "min_tokens": min_tokens, "max_tokens": max_tokens}
    if tools is None:
        path, fields = COMPLETIONS, fields | ({"logprobs": 1} if logprobs else {})
    else:
        path, fields = CHAT, fields | {"tools": [TOOL], "parallel_tool_calls": tools, "logprobs": logprobs}
    expected, expected_stats = answered([(token,) for token in tokens], path, fields)
    assert expected["usage"]["completion_tokens"] == expected_stats.output_tokens
    if logprobs:
        listed = expected["logprobs"]["content" if path == CHAT else "tokens"]
        assert len(listed) == expected_stats.output_tokens
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    found, stats = answered(pieces_of(tokens, cuts), path, fields)
    assert found == expected
    told = [(one.output_tokens, one.finish, one.looped, one.decision.context) for one in (stats, expected_stats)]
    assert told[0] == told[1]


def test_an_answer_that_a_call_ends_in_mid_message_is_counted_to_the_end_of_the_call() -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "parallel_tool_calls": False, "logprobs": True, "max_tokens": 300}
    found, stats = answered([(*CALL, *b" and more", EOS)], CHAT, fields)
    assert found["usage"]["completion_tokens"] == len(found["logprobs"]["content"]) == stats.output_tokens == len(CALL)
    assert (found["finish"], stats.finish) == ("tool_calls", FinishReason.STOP)

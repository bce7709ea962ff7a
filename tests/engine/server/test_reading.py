"""engine.server.reading: a request that is too large or too slow is ended where it is read; nothing is said twice."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from engine.server.reading import MAX_BODY_BYTES, ReadLimits, RepeatedKeyError, parse_json
from tests.engine.server.double import MODEL, ScriptedEngine, says
from tests.engine.server.harness import CHAT, app_for, ask, chat_body, send


async def answer(app: Any, messages: list[Message], headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes, int]:
    """Status, body and how many messages were read; after the last of `messages` nothing comes."""
    sent: list[Message] = []
    read = 0

    async def receive() -> Message:
        nonlocal read
        if read == len(messages):
            await asyncio.Event().wait()
        read += 1
        return messages[read - 1]

    async def keep(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [(b"host", b"server"), *headers],
        "http_version": "1.1",
        "scheme": "http",
    }
    await asyncio.wait_for(app(scope, receive, keep), 30)
    assert (b"connection", b"close") in sent[0]["headers"]
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent), read


def test_a_length_beyond_the_limit_is_a_413_before_anything_is_read() -> None:
    length = [(b"content-length", str(MAX_BODY_BYTES + 1).encode())]
    status, body, read = asyncio.run(answer(app_for(ScriptedEngine(says("unused"))), [], length))
    assert (status, read, json.loads(body)["error"]["code"]) == (413, 0, "body_too_large")


def test_a_body_of_untold_length_is_a_413_once_it_is_beyond_the_limit() -> None:
    part: Message = {"type": "http.request", "body": b" " * (MAX_BODY_BYTES // 2 + 1), "more_body": True}
    status, body, read = asyncio.run(answer(app_for(ScriptedEngine(says("unused"))), [part] * 3, []))
    assert (status, read, json.loads(body)["error"]["code"]) == (413, 2, "body_too_large")


def test_a_body_that_does_not_come_is_a_408_with_openais_shape() -> None:
    part: Message = {"type": "http.request", "body": b'{"model"', "more_body": True}
    app = ReadLimits(app_for(ScriptedEngine(says("unused"))), seconds=0.05)
    status, body, read = asyncio.run(answer(app, [part], [(b"content-length", b"100")]))
    assert (status, read) == (408, 1)
    error = json.loads(body)["error"]
    assert error["code"] == "body_timeout"
    assert error["message"] == "The body did not come within 0.05 seconds; send it again."


def test_an_answer_may_come_after_the_time_that_its_body_had() -> None:
    app = ReadLimits(app_for(ScriptedEngine(says("a", "b"))), seconds=0.0)
    assert asyncio.run(ask(app, CHAT, chat_body())).status == 200  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": {}, "a": 2}}]', '{"a": 1, "\\u0061": 2}', b'{"a": [], "a": []}']
)
def test_a_key_that_stands_twice_in_one_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(RepeatedKeyError) as caught:
        parse_json(text)
    assert caught.value.key == "a"


def test_json_is_read_as_it_stands() -> None:
    text = '{"a": {"a": [1, -0.5, 1e3, null, true, ' + "9" * 4000 + ']}, "b": {"a": "é"}}'
    read = parse_json(text)
    assert isinstance(read, dict)
    assert read["a"]["a"][:5] == [1, -0.5, 1e3, None, True]
    assert read["a"]["a"][5] == 10**4000 - 1
    assert read["b"] == {"a": "é"}


def test_a_field_that_is_given_twice_is_a_400_that_names_it() -> None:
    content = json.dumps(chat_body()).encode()[:-1] + b', "seed": 1, "seed": 2}'
    reply = asyncio.run(ask(app_for(ScriptedEngine(says("unused"))), CHAT, content=content))
    assert (reply.status, reply.error["code"]) == (400, "repeated_key")
    assert reply.error["message"] == 'The body names "seed" twice in one object; give it once.'
    reply = send(ScriptedEngine(says("unused")), CHAT, chat_body(guided_json='{"const": 1, "const": 2}'))
    assert reply.error["message"] == 'guided_json names "const" twice in one object; give it once.'


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_head_asks_for_health_too(path: str) -> None:
    reply = asyncio.run(ask(app_for(ScriptedEngine(says("x"))), path, method="HEAD"))
    assert (reply.status, reply.body) == (200, b"")


def test_what_is_refused_is_shown_in_part() -> None:
    app = app_for(ScriptedEngine(says("unused")))
    long = "x" * 100_000
    for reply in (
        asyncio.run(ask(app, f"/{long[:50_000]}", method="GET")),
        asyncio.run(ask(app, "/health", {}, method=long)),
        asyncio.run(ask(app, CHAT, {**chat_body(), long: 1})),
        asyncio.run(ask(app, CHAT, chat_body(), headers={f"x-paceline-{long}": "1"})),
        asyncio.run(ask(app, CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "x", long: 1}]})),
    ):
        assert 400 <= reply.status < 500
        assert len(reply.error["message"]) < 400
        assert len(reply.body) < 2000

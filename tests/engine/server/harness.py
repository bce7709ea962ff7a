"""Speaks to an app in this process, without a socket."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from engine.server import ServerOptions, create_app
from policies.protocols import DecisionSource, FixedPolicy, TelemetrySink
from policies.testing import FakeClock, ListSink
from policies.types import Arm
from tests.engine.server.double import CONTEXT_LIMIT, MODEL, ByteTokenizer, ScriptedEngine

CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
OPTIONS = ServerOptions(model=MODEL, routes=frozenset({"chat", "code-edit"}), context_limit=CONTEXT_LIMIT)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The body of a failure, whose shape is checked."""
        body = self.json
        assert set(body) == {"error"}, body
        error: dict[str, Any] = body["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str)
        assert error["message"]
        return error

    @property
    def events(self) -> list[Any]:
        """Data of the server-sent events; the last one must be [DONE]."""
        assert self.headers["content-type"].startswith("text/event-stream")
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == ""
        assert all(line.startswith("data: ") for line in lines)
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def app_for(
    engine: ScriptedEngine,
    *,
    decisions: DecisionSource | None = None,
    sink: TelemetrySink | None = None,
    options: ServerOptions = OPTIONS,
    clock: FakeClock | None = None,
) -> FastAPI:
    source = decisions if decisions is not None else FixedPolicy(Arm.fixed("ngram", 4))
    return create_app(
        engine, ByteTokenizer(), source, sink if sink is not None else ListSink(), options, clock or FakeClock()
    )


async def ask(
    app: FastAPI,
    path: str,
    body: object = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> Reply:
    """One request; `content` in the place of `body` sends raw bytes."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        raw = content if content is not None else json.dumps(body).encode()
        response = await client.request(method, path, content=raw if method != "GET" else None, headers=headers)
        return Reply(response.status_code, response.headers, response.content)


def send(
    engine: ScriptedEngine,
    path: str,
    body: object = None,
    *,
    headers: Mapping[str, str] | None = None,
    **app_arguments: Any,
) -> Reply:
    """One POST to a fresh app."""
    return asyncio.run(ask(app_for(engine, **app_arguments), path, body, headers=headers))


def chat_body(text: str = "Hello", **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def completion_body(prompt: object = "Hello", **fields: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, **fields}

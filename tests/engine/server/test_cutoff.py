"""A server that shuts down while a request runs tells its client so, in OpenAI's shape."""

import asyncio
import json
import socket

import httpx
import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from engine.server import cutoff
from engine.server.cutoff import CutOffMiddleware
from tests.engine.server.double import HANG, ScriptedEngine
from tests.engine.server.harness import CHAT, app_for, chat_body

SCOPE: Scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}


async def cut_off(body: dict[str, object], engine: ScriptedEngine) -> httpx.Response:
    """The answer to a request that still runs when the server has to end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(
            app_for(engine), log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=0
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            asking = asyncio.create_task(client.post(CHAT, json=body))
            await engine.started.wait()
            server.should_exit = True
            await serving
            return await asking


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_shutdown_cuts_off_gets_an_error_in_the_shape_of_openai(stream: bool) -> None:
    engine = ScriptedEngine(lambda _: [(97,), HANG])
    response = asyncio.run(cut_off(chat_body(stream=stream), engine))
    assert "x-request-id" in response.headers
    if stream:
        first, last, rest = response.text.split("\n\n")
        assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["content"] == "a"
        error, status = json.loads(last.removeprefix("data: "))["error"], 200
        assert rest == ""
    else:
        error, status = response.json()["error"], 503
    assert response.status_code == status
    assert (error["type"], error["code"]) == ("server_error", "unavailable")
    assert "shutting down" in error["message"]
    assert engine.cancelled == [1]


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def cut_off_unread(app_starts: bool) -> list[str]:
    """The types of what was sent to a client that takes nothing after the request is cut off."""
    sent: list[str] = []
    serving, never = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if app_starts:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        serving.set()
        await never.wait()

    async def send(message: Message) -> None:
        sent.append(message["type"])
        if serving.is_set():
            await never.wait()

    request = asyncio.create_task(CutOffMiddleware(app)(SCOPE, receive, send))
    await serving.wait()
    request.cancel()
    async with asyncio.timeout(10):
        await request
    return sent


@pytest.mark.parametrize(
    ("app_starts", "sent"),
    [(True, ["http.response.start", "http.response.body"]), (False, ["http.response.start"])],
    ids=["stream", "nothing sent"],
)
def test_a_request_that_is_cut_off_ends_though_its_client_takes_nothing(
    app_starts: bool, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutoff, "FAREWELL_SECONDS", 0.01)
    assert asyncio.run(cut_off_unread(app_starts)) == sent

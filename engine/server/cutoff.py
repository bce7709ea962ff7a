"""Requests that the server cuts off when it shuts down."""

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.errors import unavailable
from engine.server.streaming import event

FAREWELL_SECONDS = 1.0
"""How long a client that does not read may hold up the end of the server."""


class CutOffMiddleware:
    """A request whose task is cancelled, as uvicorn does when its seconds to end are over, is told so in OpenAI's
    shape: a 503 where nothing has been sent, else the last event of its stream."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = streams = ended = False

        async def watched_send(message: Message) -> None:
            nonlocal started, streams, ended
            if message["type"] == "http.response.start":
                started = True
                streams = any(
                    name == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except asyncio.CancelledError:
            error = unavailable("The server is shutting down and has cut this request off; send it again later.")
            if started and (ended or not streams):
                raise
            # A client that has left its buffers full never takes it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    if started:
                        await send({"type": "http.response.body", "body": event(error.body()), "more_body": False})
                    else:
                        await error.response()(scope, receive, send)

"""Several sequences as one stream, server-sent events, and clients that leave."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.server.errors import ApiError, log_failure

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all sources with their source's index, each as soon as it comes.

    The first failure of a source is raised here. However this ends, every source has been closed by then.
    """
    arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()

    async def drain(index: int, source: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    arrived.put_nowait((index, item))
        except Exception as error:  # noqa: BLE001 - raised below, in the task that reads
            arrived.put_nowait(error)
        else:
            arrived.put_nowait(None)

    tasks = [asyncio.create_task(drain(index, source)) for index, source in enumerate(sources)]
    running = len(tasks)
    try:
        while running:
            item = await arrived.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless_disconnected(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """The result of `work`; None if the client left first, and then `work` has been cancelled and has ended."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(disconnected())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Server-sent events as they come. The status is sent with the first event, so that a failure before it still
    has its own; a later one is an event with an ``error``. A client that leaves closes `events` at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await unless_disconnected(self._pump(scope, receive, send), receive)

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async for data in self._events:
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    started = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except ApiError as error:
            log_failure(error, scope)
            if not started:
                await error.response()(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": event(error.body()), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

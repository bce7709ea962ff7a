"""Clients of the proxy's measurement: few microseconds each, so that the figure is the proxy's and not theirs."""

import asyncio
import random
from collections.abc import Sequence
from time import monotonic
from typing import cast

from tuner.bench.proxy_stub import LAST


class StreamClient(asyncio.Protocol):
    """One connection; one stream at a time."""

    def __init__(self) -> None:
        self.chunks = 0
        """Events that came, one to a chunk."""
        self.first_seconds = 0.0
        """From the request to the first byte of the last answer."""
        self._sent_at = 0.0
        self._waiting = False
        self._ended = asyncio.Event()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._waiting:
            self.first_seconds = monotonic() - self._sent_at
            self._waiting = False
            if not data.startswith(b"HTTP/1.1 200 "):
                raise ValueError(f"the answer begins with {data[:40]!r}")
        self.chunks += data.count(b"data: ")
        self._tail = (self._tail + data)[-len(LAST) :]
        if self._tail == LAST:
            self._ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()

    def ask(self, request: bytes) -> None:
        self._ended.clear()
        self._tail = b""
        self._waiting = True
        self._sent_at = monotonic()
        self.transport.write(request)

    async def ended(self) -> None:
        """Until the answer is whole.

        Raises:
            ConnectionError: the connection ended before.
        """
        await self._ended.wait()
        if self._tail != LAST:
            raise ConnectionError("a stream ended before its last chunk")


class Load:
    """Connections to one port, kept between requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[StreamClient] = []
        self._all: list[StreamClient] = []

    async def connect(self, count: int) -> list[StreamClient]:
        loop = asyncio.get_running_loop()
        made = [(await loop.create_connection(StreamClient, "127.0.0.1", self._port))[1] for _ in range(count)]
        self._all += made
        return made

    async def arrivals(self, requests: Sequence[bytes], a_second: float, seconds: float, seed: int) -> list[float]:
        """Requests that arrive by chance, however the ones before them do. Returns the seconds to each first byte."""
        chance = random.Random(seed)
        loop = asyncio.get_running_loop()
        if not self._idle:
            self._idle = await self.connect(int(2 * a_second))
        found: list[float] = []
        running: set[asyncio.Task[None]] = set()
        began = loop.time()
        at, index = 0.0, 0
        while (at := at + chance.expovariate(a_second)) < seconds:
            if (wait := began + at - loop.time()) > 0:
                await asyncio.sleep(wait)
            task = loop.create_task(self._one(requests[index % len(requests)], found))
            running.add(task)
            task.add_done_callback(running.discard)
            index += 1
        await asyncio.gather(*running)
        return found

    async def _one(self, request: bytes, found: list[float]) -> None:
        client = self._idle.pop() if self._idle else (await self.connect(1))[0]
        client.ask(request)
        await client.ended()
        found.append(client.first_seconds)
        self._idle.append(client)

    def close(self) -> None:
        for client in self._all:
            client.transport.abort()

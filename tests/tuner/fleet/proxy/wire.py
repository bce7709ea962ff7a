"""A proxy between raw sockets: an upstream that the test plays itself, and a client that sends bytes.

Everything runs in one loop; who waits, waits for bytes or for the end of a connection.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import uvloop

from policies.types import Context, Decision, Reason
from tuner.fleet.proxy import Proxy, ProxyOptions, serve_proxy
from tuner.fleet.types import Asked, Choice, Chooser, Exchange, ExchangeSink, Upstream

PATIENCE = 20.0
"""Seconds after which a test that waits for something is wrong."""
CHAT = "/v1/chat/completions"


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send_soon(self, data: bytes) -> asyncio.Task[None]:
        return asyncio.create_task(self.send(data))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readexactly(count)

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Everything until the other side ends.

        Raises:
            ConnectionResetError: it ends with a reset.
        """
        async with asyncio.timeout(PATIENCE):
            return await self._reader.read()

    async def answer(self) -> tuple[bytes, bytes]:
        """A head, and as much of a body as its ``Content-Length`` says."""
        head = await self.until(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return head, await self.read(int(length or b"0"))

    async def gone(self) -> None:
        """Until the other side has ended or reset the connection; what it sends is thrown away."""
        async with asyncio.timeout(PATIENCE):
            try:
                while await self._reader.read(65536):
                    pass
            except ConnectionError:
                return

    async def send_until_full(self, piece: bytes, most: int) -> int:
        """Send `piece` again and again until the other side has taken nothing for a while. Returns how much it took or
        will be given by the kernel."""
        sent = 0
        while sent < most:
            self._writer.write(piece)
            sent += len(piece)
            try:
                async with asyncio.timeout(0.3):
                    await self._writer.drain()
            except TimeoutError:
                break
            except ConnectionError:
                break
        return sent

    def end(self) -> None:
        self._writer.close()

    def half_end(self) -> None:
        self._writer.write_eof()

    def reset(self) -> None:
        handle = self._writer.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.transport.abort()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return


class PlayedUpstream:
    """An upstream whose every byte the test plays."""

    def __init__(self, name: str = "a", path: str = "") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.authority = f"127.0.0.1:{self.port}".encode()
        self.upstream = Upstream(name, f"http://127.0.0.1:{self.port}{path}")
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self._peers: list[Peer] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, sock=self._listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for peer in self._peers:
            await peer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._peers.append(peer)
        self._accepted.put_nowait(peer)

    async def accepted(self) -> Peer:
        """The next connection that the proxy makes."""
        async with asyncio.timeout(PATIENCE):
            return await self._accepted.get()

    @property
    def connections(self) -> int:
        """How many there were."""
        return len(self._peers)


@dataclass
class RecordingSink:
    """Keeps what it is told."""

    exchanges: list[Exchange] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.came.set()

    async def next(self) -> Exchange:
        """The only one since the last call."""
        async with asyncio.timeout(PATIENCE):
            await self.came.wait()
        self.came.clear()
        return self.exchanges.pop()


@dataclass
class Observing:
    """Reads nothing and edits nothing."""

    noted: list[Asked] = field(default_factory=list)

    def reads(self, path: str, route: str | None) -> bool:
        return False

    def choose(self, asked: Asked) -> Choice:
        self.noted.append(asked)
        return Choice(asked.sent_to or next(iter(asked.in_flight)))


@dataclass
class Steering:
    """Reads everything; `choice` says what it does, by the name of an upstream that is open."""

    choice: Callable[[str], Choice]
    asked: list[Asked] = field(default_factory=list)

    def reads(self, path: str, route: str | None) -> bool:
        return True

    def choose(self, asked: Asked) -> Choice:
        self.asked.append(asked)
        return self.choice(next(iter(asked.in_flight)))


@dataclass
class Line:
    """A proxy, and how to reach it."""

    proxy: Proxy
    port: int
    sink: RecordingSink
    clients: list[Peer] = field(default_factory=list)

    async def client(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(peer)
        return peer

    def drain_soon(self, seconds: float) -> asyncio.Task[None]:
        return asyncio.create_task(self.proxy.drain(seconds))


@asynccontextmanager
async def line(
    *upstreams: Upstream,
    chooser: Chooser | None = None,
    options: ProxyOptions | None = None,
    sink: ExchangeSink | None = None,
) -> AsyncIterator[Line]:
    """A proxy in front of `upstreams`; it observes unless a chooser is given."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    recorded = RecordingSink()
    proxy = await serve_proxy(listener, upstreams, chooser or Observing(), sink or recorded, options or ProxyOptions())
    made = Line(proxy, port, recorded)
    try:
        yield made
    finally:
        for peer in made.clients:
            await peer.close()
        await proxy.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine under asyncio's own loop and under uvloop, within its patience; an exception that nobody
    took fails it."""
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        faults: list[Mapping[str, Any]] = []
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.get_loop().set_exception_handler(partial(_keep, faults))
            runner.run(_patient(test))
        assert not faults


def _keep(faults: list[Mapping[str, Any]], _: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    faults.append(context)


async def _patient(test: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(3 * PATIENCE):
        await test()


def post(body: bytes, path: str = CHAT, headers: bytes = b"", host: bytes = b"proxy") -> bytes:
    """A request as clients send it."""
    return b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        host,
        headers,
        len(body),
        body,
    )


def ok(body: bytes, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body)


def chunked(*pieces: bytes) -> bytes:
    """As chunks, with the last one."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str) -> bytes:
    return b"data: " + text.encode() + b"\n\n"


DECISION = Decision("1-ngram-learned", Context("m", "default", "en"), "ngram", 4, False, Reason.LEARNED, 1)

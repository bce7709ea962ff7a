"""One upstream as the data path uses it: its connections, the requests in progress there, its health."""

import asyncio
from time import monotonic
from typing import cast

from tuner.fleet.proxy.health import Health
from tuner.fleet.proxy.options import ProxyOptions
from tuner.fleet.proxy.origin import Origin, parse_origin
from tuner.fleet.proxy.sides import Awaiting
from tuner.fleet.types import Upstream, UpstreamState

CONNECT_ERRORS = (OSError, TimeoutError)
"""What a connection that cannot be made raises; TLS errors among them."""


class UpstreamConnection(asyncio.Protocol):
    """A connection to an upstream, for one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self, endpoint: "Endpoint") -> None:
        self._endpoint = endpoint
        self.exchange: Awaiting | None = None
        self.reused = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.transport.set_write_buffer_limits(self._endpoint.options.write_buffer_bytes)

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:  # nobody asked; what it belongs to cannot be known
            self.transport.abort()
        else:
            self.exchange.answer_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            self._endpoint.forget(self)
        else:
            exchange.upstream_lost(exc)

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.upstream_writable(False)

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.upstream_writable(True)


class Endpoint:
    """Connections to one upstream, and what is known of it."""

    def __init__(self, upstream: Upstream, options: ProxyOptions, loop: asyncio.AbstractEventLoop) -> None:
        """Raises: OriginError: its URL cannot be used."""
        self.upstream = upstream
        self.origin: Origin = parse_origin(upstream.url)
        self.options = options
        self.health = Health(options)
        self.in_flight = 0
        self._loop = loop
        self._idle: list[UpstreamConnection] = []
        self._area = 0.0
        """Requests in progress, integrated over time."""
        self._since = monotonic()
        self._closed = False

    @property
    def name(self) -> str:
        return self.upstream.name

    def state(self) -> UpstreamState:
        health = self.health
        return UpstreamState(self.name, health.healthy, self.in_flight, health.failures, health.sentence)

    def began(self, now: float) -> float:
        """A request goes there. Returns the integral of the load, for `ended`."""
        self._add(1, now)
        self.health.began()
        return self._area

    def ended(self, began_area: float, began_at: float, now: float) -> float:
        """It is over. Returns the mean over time of the requests in progress, this one among them."""
        self._add(-1, now)
        seconds = now - began_at
        return (self._area - began_area) / seconds if seconds > 0 else self.in_flight + 1.0

    def take(self) -> UpstreamConnection | None:
        """The connection that was used last, since the others are the next to be closed."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    def give_back(self, connection: UpstreamConnection, now: float) -> None:
        if self._closed or len(self._idle) >= self.options.idle_upstream_connections:
            connection.transport.close()
            return
        connection.idle_since = now
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """It was closed while nobody used it."""
        if connection in self._idle:
            self._idle.remove(connection)

    async def connect(self) -> UpstreamConnection:
        """Raises: `CONNECT_ERRORS`."""
        origin = self.origin
        async with asyncio.timeout(self.options.connect_seconds):
            _, connection = await self._loop.create_connection(
                lambda: UpstreamConnection(self), origin.host, origin.port, ssl=origin.tls
            )
        return connection

    def close_unused(self, now: float) -> None:
        """Close what was unused for too long."""
        oldest = now - self.options.idle_upstream_seconds
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).transport.close()

    def close(self) -> None:
        """Keep no connection any more; exchanges in progress go on."""
        self._closed = True
        while self._idle:
            self._idle.pop().transport.close()

    async def ask_health(self) -> None:
        """GET /health, which vLLM, SGLang and llama.cpp have; any answer under 500 will do."""
        try:
            sentence = await self._ask_health()
        except CONNECT_ERRORS as error:
            sentence = unreachable(self.name, error)
        self.health.asked(not sentence, sentence, monotonic())

    async def _ask_health(self) -> str:
        origin = self.origin
        async with asyncio.timeout(self.options.connect_seconds):
            reader, writer = await asyncio.open_connection(origin.host, origin.port, ssl=origin.tls)
            try:
                writer.write(
                    b"GET %b/health HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
                    % (origin.prefix, origin.authority)
                )
                line = await reader.readline()
            except ValueError:
                line = b""
            finally:
                writer.transport.abort()
        if line[:7] != b"HTTP/1." or not line[9:12].isdigit():
            return f"The upstream {self.name} does not answer as an HTTP server does."
        status = int(line[9:12])
        return f"The upstream {self.name} answers GET /health with {status}." if status >= 500 else ""

    def _add(self, requests: int, now: float) -> None:
        self._area += self.in_flight * (now - self._since)
        self._since = now
        self.in_flight += requests


def unreachable(name: str, error: Exception) -> str:
    """Why no connection could be made, as a sentence."""
    why = str(error).strip() or "it took too long"
    return f"The upstream {name} cannot be reached: {why}."

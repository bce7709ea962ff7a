"""The data path as a whole: a listener, its clients, and the limits of time."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from tuner.fleet.proxy.client import ClientConnection
from tuner.fleet.proxy.options import ProxyOptions
from tuner.fleet.proxy.routing import Routing
from tuner.fleet.types import Chooser, ExchangeSink, ProxyState, Upstream

_BACKLOG = 2048


class Proxy:
    """A running data path. Everything happens in the loop that `serve_proxy` was called in."""

    def __init__(self, routing: Routing, options: ProxyOptions) -> None:
        self._routing = routing
        self._options = options
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._draining = False

    async def listen(self, listener: socket.socket) -> None:
        """Serve what comes there; the listener is closed with the proxy."""
        loop = self._routing.loop
        self._server = await loop.create_server(self._connection, sock=listener, backlog=_BACKLOG)
        self._tick()

    def state(self) -> ProxyState:
        routing = self._routing
        return ProxyState(
            upstreams=tuple(endpoint.state() for endpoint in routing.endpoints),
            streams=routing.exchanges,
            overhead_seconds=dict(routing.overhead),
            dropped=routing.dropped,
            chooser_faults=routing.chooser_faults,
        )

    def set_upstreams(self, upstreams: Sequence[Upstream]) -> None:
        """From now on these; exchanges in progress end where they are.

        Raises:
            OriginError: a URL cannot be used; the upstreams stay as they were.
        """
        self._routing.set_upstreams(upstreams)

    async def drain(self, seconds: float) -> None:
        """Take no more connections, let exchanges end for so long, and close."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        self._close_idle()
        if self._connections:
            with suppress(TimeoutError):  # those who are left are cut
                async with asyncio.timeout(seconds):
                    await self._gone.wait()
        await self.close()

    async def close(self) -> None:
        """Cut what is in progress."""
        self._draining = True
        if self._ticker is not None:
            self._ticker.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.transport.abort()
        await self._routing.close()
        if self._connections:
            await self._gone.wait()

    def _connection(self) -> ClientConnection:
        return ClientConnection(self._routing, self._connections, self._gone)

    def _tick(self) -> None:
        now = monotonic()
        for connection in list(self._connections):
            connection.check(now)
        self._routing.tick(now)
        self._ticker = self._routing.loop.call_later(self._options.tick_seconds, self._tick)
        if self._draining:
            self._close_idle()

    def _close_idle(self) -> None:
        for connection in list(self._connections):
            if not connection.busy:
                connection.close()


async def serve_proxy(
    listener: socket.socket,
    upstreams: Sequence[Upstream],
    chooser: Chooser,
    sink: ExchangeSink,
    options: ProxyOptions,
) -> Proxy:
    """Serve on `listener`, a bound TCP socket, in the running loop, until the proxy is drained or closed.

    Raises:
        OriginError: an upstream's URL cannot be used.
    """
    proxy = Proxy(Routing(upstreams, chooser, sink, options, asyncio.get_running_loop()), options)
    await proxy.listen(listener)
    return proxy

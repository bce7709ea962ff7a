"""A client's connection: one request after another, however many it sends at once."""

import asyncio
import socket
import struct
from time import monotonic
from typing import cast

from tuner.fleet.proxy.exchange import ProxiedExchange
from tuner.fleet.proxy.framing import Chunked, Framing, FramingError, Length
from tuner.fleet.proxy.head import END, HeadError, parse_request, refuse_early
from tuner.fleet.proxy.problems import problem
from tuner.fleet.proxy.routing import Routing
from tuner.fleet.types import End

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset."""


class ClientConnection(asyncio.Protocol):
    """Reads requests; each is an exchange, and the next begins when it is over."""

    transport: asyncio.Transport

    def __init__(self, routing: Routing, connections: "set[ClientConnection]", gone: asyncio.Event) -> None:
        self._routing = routing
        self._options = routing.options
        self._connections = connections
        self._gone = gone
        """Set when the last connection is."""
        self._exchange: ProxiedExchange | None = None
        self._body: Framing | None = None
        """Of a request that has not come whole."""
        self._buffer = b""
        """What came and belongs to no request yet."""
        self._scanned = 0
        self._since = 0.0
        """When this request's first byte came, or the last request ended."""
        self._body_bytes = 0
        self._wanted = True
        """Whether the body is being read, so that it is the client who is waited for."""
        self._waited_seconds = 0.0
        """For the body."""
        self._checked_at = 0.0
        self._stalled_since: float | None = None
        """Since when the client takes nothing."""
        self._deadline: float | None = None
        """When a connection that is being closed is cut."""

    @property
    def busy(self) -> bool:
        return self._exchange is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.transport.set_write_buffer_limits(self._options.write_buffer_bytes)
        self._since = monotonic()
        self._connections.add(self)
        self._gone.clear()

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:
            return
        exchange = self._exchange
        if self._body is not None:
            self._feed_body(self._body, data)
        elif exchange is None:
            if not self._buffer:
                self._since = monotonic()
            self._buffer += data
            self._next()
        elif exchange.tunnel:
            exchange.tunnelled(data)
        else:
            self._buffer += data
            if len(self._buffer) > self._options.write_buffer_bytes:
                self.transport.pause_reading()

    def eof_received(self) -> None:
        """Half a connection is none: an answer is of use only to those who wait for it, and whoever left looks the
        same."""
        if self._exchange is not None:
            self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._connections.discard(self)
        if not self._connections:
            self._gone.set()

    def pause_writing(self) -> None:
        self._stalled_since = monotonic()
        if self._exchange is not None:
            self._exchange.client_writable(False, self._stalled_since)

    def resume_writing(self) -> None:
        self._stalled_since = None
        if self._exchange is not None:
            self._exchange.client_writable(True, monotonic())

    def answered(self, keep_alive: bool) -> None:
        self._exchange = None
        if self._body is not None:
            self._linger()
        elif not keep_alive:
            self.close()
        else:
            self._since = monotonic()
            self.transport.resume_reading()
            if self._buffer:
                self._next()

    def refuse(self, status: int, sentence: str, code: str) -> None:
        self._exchange = None
        if not self.transport.is_closing():
            self.transport.write(problem(status, sentence, code))
            self._linger()

    def cut(self, visibly: bool) -> None:
        self._exchange = None
        if visibly:
            handle: socket.socket = self.transport.get_extra_info("socket")
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        else:
            self.close()

    def read(self, wanted: bool) -> None:
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def close(self) -> None:
        """Send what is to be sent, and close."""
        self._deadline = monotonic() + self._options.idle_seconds
        self.transport.close()

    def check(self, now: float) -> None:
        """Look at the limits of time."""
        options = self._options
        if self._deadline is not None:
            if now > self._deadline:
                self.transport.abort()
        elif self._exchange is None:
            if self._buffer and now - self._since > options.head_seconds:
                sentence = f"The request's head did not come whole in {options.head_seconds:g} s."
                self.refuse(408, sentence, "request_timeout")
            elif not self._buffer and now - self._since > options.idle_client_seconds:
                self.close()
        elif self._stalled_since is not None and now - self._stalled_since > options.idle_seconds:
            self._leave()
            self.transport.abort()
        elif self._body_is_late(now):
            self._leave(End.CLIENT_ERROR)
            self.refuse(408, "The request's body did not come whole in time.", "request_timeout")
        else:
            self._exchange.check(now)

    def _body_is_late(self, now: float) -> bool:
        since, self._checked_at = self._checked_at, now
        if self._body is None or not self._wanted:
            return False
        self._waited_seconds += now - since
        options = self._options
        return self._waited_seconds > options.body_seconds + self._body_bytes / options.body_bytes_per_second

    def _next(self) -> None:
        """Begin the next request, once its head is here."""
        begun = self._buffer
        if begun.startswith(b"\r\n"):  # RFC 9112, section 2.2: an empty line before a request is to be ignored
            self._buffer = begun = begun[2:]
        at = begun.find(END, self._scanned) + len(END)
        options = self._options
        try:
            if at < len(END):
                refuse_early(begun, options.max_head_bytes)
                self._scanned = max(0, len(begun) - len(END) + 1)
                return
            refuse_early(begun[:at], options.max_head_bytes)
            head = parse_request(begun[:at])
        except HeadError as error:
            code = "headers_too_large" if error.status == 431 else "bad_request"
            self.refuse(error.status, error.sentence, code)
            return
        self._buffer, self._scanned = b"", 0
        body: Framing = Chunked() if head.chunked else Length(head.length or 0)
        now = monotonic()
        exchange = self._exchange = ProxiedExchange(self._routing, self, head, now)
        self._body = None if body.done else body
        self._body_bytes, self._waited_seconds, self._checked_at, self._wanted = 0, 0.0, now, True
        if rest := begun[at:]:
            if self._body is None:
                self._buffer = rest
            else:
                self._feed_body(body, rest)
        if self._exchange is exchange:
            exchange.start()

    def _feed_body(self, body: Framing, data: bytes) -> None:
        """Some of the request's body came, and maybe the next request behind it."""
        exchange = self._exchange
        if exchange is None:
            return
        try:
            end = body.consume(data)
        except FramingError as error:
            self._leave(End.CLIENT_ERROR)
            self.refuse(400, f"The request's body is not framed as HTTP/1.1 has it: {error}.", "bad_request")
            return
        self._body_bytes += end
        if body.done:
            self._body = None
            self._buffer = data[end:]
            data = data[:end]
        exchange.body_received(data, body.payload, body.done, monotonic())

    def _leave(self, end: End = End.CANCELLED) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_left(end)

    def _linger(self) -> None:
        """Say no more, and read on for a while: closing on a client that sends would take the answer from it."""
        self._deadline = monotonic() + self._options.linger_seconds
        self.transport.resume_reading()
        self.transport.write_eof()

"""Connections that keep the server waiting for a request."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 60.0
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose next request has begun, or which is new, and whose headers do not come in time.

    Between two requests uvicorn's own `timeout_keep_alive` counts; the time that a body takes is the application's to
    limit, see `engine.server.reading.ReadLimits`.
    """

    seconds = REQUEST_SECONDS
    _late: asyncio.TimerHandle | None = None
    _begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(self.seconds, self._close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # h11 leaves IDLE once it has read the headers.
        self._begun = self.conn.their_state is h11.IDLE
        if not self._begun:
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(self.seconds, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close(self) -> None:
        self._late = None
        if self._begun:
            self.transport.write(_LATE)
        self.transport.close()

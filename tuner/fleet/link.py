"""The pipe between the data path and the control process. Messages are immutable values; neither end ever waits.

What cannot be handed over soon enough is given back: learning may lose an exchange, a request may not.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tuner.fleet.pools.snapshot import FleetSnapshot
from tuner.fleet.types import Exchange, ProxyState, Upstream
from tuner.fleet.vllm.chooser import PluginSnapshot

log = logging.getLogger(__name__)

LIMIT = 1024
"""Messages that wait at most to be written."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What the data path measured since the last message of the kind, in the order of their ends."""

    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """A reading of the data path."""

    state: ProxyState


@dataclass(frozen=True, slots=True)
class Steer:
    """What the data path is to choose by from now on."""

    snapshot: FleetSnapshot | PluginSnapshot
    upstreams: tuple[Upstream, ...] | None = None
    """Where they changed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The control process is to write down what it knows, and end."""


class Link:
    """One end. `on_message` is called for each message that comes, and `on_end` once when the other end is gone; both
    in a thread of the link's own."""

    def __init__(
        self, connection: Connection, on_message: Callable[[object], None], on_end: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._on_message = on_message
        self._on_end = on_end
        self._waiting: queue.Queue[object | None] = queue.Queue(LIMIT)
        self._unsent: list[object] = []
        self._closing = False
        self._reader = threading.Thread(target=self._read, name="link-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="link-writer", daemon=True)

    def start(self) -> None:
        """Begin to read and write."""
        self._reader.start()
        self._writer.start()

    def send(self, message: object) -> bool:
        """Hand `message` over soon; False where too many wait already or the other end is gone."""
        with contextlib.suppress(queue.Full):
            if not self._closing:
                self._waiting.put_nowait(message)
                return True
        return False

    def close(self, seconds: float = 2.0) -> list[object]:
        """Write what waits, for `seconds` at most, and end; a second call does nothing.

        Returns: what `send` took and nobody wrote, as it seems; the other end may have gone before it read the rest.
        """
        if self._connection.closed:
            return []
        self._closing = True
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=seconds)
        self._writer.join(seconds)
        # Closing alone would neither wake the thread that reads here nor tell the other end while it does.
        with socket.socket(fileno=os.dup(self._connection.fileno())) as ended, contextlib.suppress(OSError):
            ended.shutdown(socket.SHUT_RDWR)
        self._reader.join(seconds)
        self._writer.join(seconds)
        self._connection.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._unsent.append(self._waiting.get_nowait())
        return [message for message in self._unsent if message is not None]

    def _read(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                break
            try:
                self._on_message(message)
            except Exception:
                log.exception("a message of the other process was not taken")
        self._on_end()

    def _write(self) -> None:
        while True:
            message = self._waiting.get()
            if message is None:
                return
            try:
                self._connection.send(message)
            except OSError:
                self._closing = True
                self._unsent.append(message)
                return

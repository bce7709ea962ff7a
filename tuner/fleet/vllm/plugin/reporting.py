"""What the plug-in reports goes to a local socket, from a thread of its own; what nobody takes in time is dropped."""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable

from policies.stats import RequestStats
from policies.wire import to_wire
from tuner.fleet.vllm.plugin.cycle_report import CycleReport
from tuner.fleet.vllm.plugin.messages import CYCLE, HELLO, REQUEST, STATE, Hello, State

Report = CycleReport | RequestStats
LIMIT = 1024
"""Reports that wait at most."""
_AGAIN_SECONDS = 1.0
"""Between two attempts to connect; and how often the state is told."""
_TIMEOUT_SECONDS = 5.0


class Reporter:
    """`report` never waits and never raises."""

    def __init__(self, address: str | None, hello: Hello, state: Callable[[], State]) -> None:
        """
        Args:
            address: ``HOST:PORT``, or the path of a Unix socket; None: nothing is reported.
            hello: said first on every connection.
            state: asked about once a second, in this thread.
        """
        self.dropped = 0
        self._address = address
        self._hello = hello
        self._state = state
        self._waiting: queue.Queue[Report | None] = queue.Queue(LIMIT)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-reports", daemon=True)

    def start(self) -> None:
        if self._address is not None:
            self._thread.start()

    def close(self) -> None:
        """Let go of what still waits."""
        self._ended.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_SECONDS)

    def report(self, report: Report) -> None:
        if self._address is None:
            return
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        while not self._ended.is_set():
            connection = self._connected()
            if connection is None:
                self._drop(_AGAIN_SECONDS)
                continue
            with connection, contextlib.suppress(OSError):
                self._send_all(connection)

    def _send_all(self, connection: socket.socket) -> None:
        connection.sendall(to_wire(HELLO, self._hello) + b"\n")
        told_at = time.monotonic()
        while not self._ended.is_set():
            with contextlib.suppress(queue.Empty):
                report = self._waiting.get(timeout=_AGAIN_SECONDS)
                if report is None:
                    return
                try:
                    connection.sendall(_line(report))
                except OSError:
                    self.dropped += 1
                    raise
            now = time.monotonic()
            if now - told_at >= _AGAIN_SECONDS:
                told_at = now
                connection.sendall(to_wire(STATE, self._state()) + b"\n")

    def _connected(self) -> socket.socket | None:
        """A connection, if somebody listens."""
        assert self._address is not None
        host, colon, port = self._address.rpartition(":")
        try:
            if colon and port.isdecimal():
                return socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_SECONDS)
            connection = socket.socket(socket.AF_UNIX)
        except OSError:
            return None
        connection.settimeout(_TIMEOUT_SECONDS)
        try:
            connection.connect(self._address)
        except OSError:
            connection.close()
            return None
        return connection

    def _drop(self, seconds: float) -> None:
        """What comes while nobody listens is old by the time that somebody does."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0.0 and not self._ended.is_set():
            with contextlib.suppress(queue.Empty):
                if self._waiting.get(timeout=left) is not None:
                    self.dropped += 1


def _line(report: Report) -> bytes:
    if isinstance(report, CycleReport):
        return to_wire(CYCLE, report.stats()) + b"\n"
    return to_wire(REQUEST, report) + b"\n"

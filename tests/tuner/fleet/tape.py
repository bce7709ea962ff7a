"""Passes bytes between a client and a server, and keeps them: what went over the wire, in both directions."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CHUNK = 65536
SECONDS = 120.0
HEAD = (
    "POST {path} HTTP/1.1\r\nx-Odd:  spaced \r\nHOST: {host}\r\nconnection: close\r\nCONTENT-length: {length}\r\n"
    "content-Type: application/json\r\nX-Paceline-Nothing: kept\r\n\r\n"
)
"""Odd on purpose: what reads and writes a head anew, or sorts it, does not give these bytes again."""
MARK = b"x-Odd"


@dataclass(frozen=True, slots=True)
class Wire:
    """The bytes of one request and of its answer."""

    request: bytes
    answer: bytes


class Tape:
    """Listens on the loopback address; each connection is passed on to one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = parts.hostname, parts.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.authority = "{}:{}".format(*self._listener.getsockname()[:2])
        self.url = f"http://{self.authority}"
        self._kept: list[tuple[bytearray, bytearray]] = []
        """What went to the server and what came back, by connection."""
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def rewind(self) -> None:
        """Forget what went by."""
        for sent, answered in self._kept:
            sent.clear()
            answered.clear()

    def wire(self, mark: bytes) -> Wire:
        """What went over the one connection whose client sent `mark`; others may ask the server for something too."""
        (found,) = [Wire(bytes(sent), bytes(answered)) for sent, answered in self._kept if mark in sent]
        return found

    def compare(self, url: str, path: str, body: dict[str, Any]) -> tuple[Wire, Wire]:
        """Send a request to what stands before this tape.

        Returns:
            What the server was sent, and what the client got; and what the server would have been sent without anybody
            between, and what it answered. Equal where every byte was left.
        """
        # As for the head: no library writes JSON like this.
        content = json.dumps(body, indent=3).encode() + b"\r\n "
        self.rewind()
        answer = _raw(url, _request(urlsplit(url).netloc, path, content))
        passed = self.wire(MARK)
        return Wire(passed.request, answer), Wire(_request(self.authority, path, content), passed.answer)

    def close(self) -> None:
        # A thread that waits in accept or recv is woken by a shutdown, not by a close.
        self._end(self._listener)
        self._threads[0].join()
        for each in self._sockets:
            self._end(each)
        for thread in self._threads[1:]:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # it was shut down
                return
            far = socket.create_connection(self._server)
            self._sockets += [near, far]
            sent, answered = bytearray(), bytearray()
            self._kept.append((sent, answered))
            for source, sink, kept in ((near, far, sent), (far, near, answered)):
                thread = threading.Thread(target=self._pass, args=(source, sink, kept))
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        try:
            while data := source.recv(CHUNK):
                kept += data
                sink.sendall(data)
        except OSError:  # one side is gone: so is the other, then
            pass
        self._end(source)
        self._end(sink)

    @staticmethod
    def _end(ended: socket.socket) -> None:
        try:
            ended.shutdown(socket.SHUT_RDWR)
        except OSError:  # it was not connected any more
            return


@contextmanager
def taped(url: str) -> Iterator[Tape]:
    """A tape before the server at `url`."""
    tape = Tape(url)
    try:
        yield tape
    finally:
        tape.close()


def _request(host: str, path: str, content: bytes) -> bytes:
    return HEAD.format(path=path, host=host, length=len(content)).encode() + content


def _raw(url: str, request: bytes) -> bytes:
    """The bytes of an answer, to its end."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    answer = b""
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=SECONDS) as connection:
        connection.sendall(request)
        while piece := connection.recv(CHUNK):
            answer += piece
    return answer

"""Where a body ends, to the byte, so that what belongs to it is passed on as it is.

llhttp finds the same ends, but tells no offsets; the tests hold each against the other. Chunk framing is read more
strictly than RFC 9112 asks: whatever two parsers could read in two ways is refused, since it would be passed on.
"""

import re
from typing import Protocol

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;" + _TOKEN + rb"(?:=" + _TOKEN + rb")?)*\r\n\Z")
_LENIENT_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n\Z")
_PLAIN_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_TRAILER_LINE = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*)?\r\n\Z")
_MAX_LINE = 1024
"""Of a chunk's size with its extensions."""
_MAX_TRAILERS = 16 * 1024


class FramingError(Exception):
    """A body that is not framed as HTTP/1.1 has it."""


class Framing(Protocol):
    """Counts a body off. `payload` has the pieces of content in what was last consumed."""

    done: bool
    payload: list[bytes]

    def consume(self, data: bytes) -> int:
        """How many of the first bytes of `data` belong to the body.

        Raises:
            FramingError: what came is no body; nothing of it may be passed on.
        """
        ...

    @property
    def at_boundary(self) -> bool:
        """Whether something may be put between what came and what will come."""
        ...


class Length:
    """A body of so many bytes; 0 for none at all."""

    __slots__ = ("_left", "done", "payload")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.payload: list[bytes] = []

    def consume(self, data: bytes) -> int:
        taken = len(data)
        if taken < self._left:
            self._left -= taken
            self.payload = [data]
            return taken
        taken, self._left, self.done = self._left, 0, True
        self.payload = [data[:taken]] if taken else []
        return taken

    @property
    def at_boundary(self) -> bool:
        return False


class UntilClose:
    """A body that ends where the connection does."""

    __slots__ = ("done", "payload")

    def __init__(self) -> None:
        self.done = False
        self.payload: list[bytes] = []

    def consume(self, data: bytes) -> int:
        self.payload = [data]
        return len(data)

    @property
    def at_boundary(self) -> bool:
        return True


class Chunked:
    """RFC 9112, section 7.1: chunks, extensions and trailers, all kept. `lenient`: for answers, in which servers pad
    the sizes or put anything into the extensions; of a client only what parsers agree about is taken."""

    __slots__ = ("_left", "_line", "_size_line", "_trailers", "done", "ending", "payload")

    def __init__(self, lenient: bool = False) -> None:
        self._size_line = _LENIENT_SIZE_LINE if lenient else _SIZE_LINE
        self._left = 0
        """Content of the chunk still to come, and its CRLF; 0 in a line of a size."""
        self._line = b""
        """The beginning of a line whose end has not come."""
        self._trailers = -1
        """Bytes of trailers; -1 before the last chunk."""
        self.ending = b""
        """The last chunk and the trailers, as they came."""
        self.done = False
        self.payload: list[bytes] = []

    @property
    def at_boundary(self) -> bool:
        return not self._left and not self._line and self._trailers < 0

    def consume(self, data: bytes) -> int:
        at, size = 0, len(data)
        if not self._left and not self._line and self._trailers < 0:
            found = _PLAIN_SIZE_LINE.match(data)
            if found is not None:  # what engines send is one whole chunk in most of the pieces that are read
                start = found.end()
                if int(found[1], 16) == size - start - 2 > 0 and data.endswith(b"\r\n"):
                    self.payload = [data[start:-2]]
                    return size
        payload: list[bytes] = []
        self.payload = payload
        left = self._left
        while at < size and not self.done:
            if left > 2:
                end = at + left - 2
                if end > size:
                    payload.append(data[at:])
                    self._left = left - (size - at)
                    return size
                payload.append(data[at:end])
                at, left = end, 2
            elif left == 2 and size - at >= 2:
                if data[at : at + 2] != b"\r\n":
                    raise FramingError("a chunk is longer than its size says")
                at, left = at + 2, 0
            elif left:
                if data[at] != (13 if left == 2 else 10):
                    raise FramingError("a chunk is longer than its size says")
                at, left = at + 1, left - 1
            else:
                end = data.find(b"\n", at) + 1
                if not end:
                    self._hold(data[at:])
                    break
                if self._line:
                    self._hold(data[at:end])
                    line, self._line = self._line, b""
                else:
                    line = data[at:end]
                at = end
                left = self._read(line)
        self._left = left
        return size if not self.done else at

    def _read(self, line: bytes) -> int:
        """A whole line of a size or of a trailer; what is to come after it."""
        if self._trailers >= 0:
            self._trailers += len(line)
            self.ending += line
            if _TRAILER_LINE.match(line) is None or self._trailers > _MAX_TRAILERS:
                raise FramingError("a trailer is not one header on a line, or there are too many")
            self.done = line == b"\r\n"
            return 0
        found = self._size_line.match(line)
        if found is None or len(line) > _MAX_LINE:
            raise FramingError("a chunk has no size in hexadecimal digits")
        length = int(found[1], 16)
        if length:
            return length + 2
        self._trailers = 0
        self.ending = line
        return 0

    def _hold(self, piece: bytes) -> None:
        self._line += piece
        if len(self._line) > (_MAX_LINE if self._trailers < 0 else _MAX_TRAILERS):
            raise FramingError("a line between chunks does not end")


def chunk(payload: bytes) -> bytes:
    """`payload` as one chunk; empty for none, since that would end the body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""

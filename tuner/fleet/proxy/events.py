"""The events of a stream: the last one that tells counts, and the one of usage that a client did not ask for.

Nothing is parsed while a stream runs: a piece is looked through for the names of the counts, and the event that had
them last is parsed when the stream has ended.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

_TELLING = (b'"usage"', b'"timings"', b'"meta_info"')
_DATA = b"data:"
_ENDS = (b"\n\n", b"\r\n\r\n")
"""Of an event; both are in use (vLLM has the one, sse-starlette the other)."""
_EVENT = re.compile(rb".*?(?:\n\n|\r\n\r\n)|.+\Z", re.DOTALL)
_MAX_EVENT = 1024 * 1024
"""A longer event is passed on as any other, and teaches nothing."""


class Events:
    """Follows the content of one stream."""

    __slots__ = ("_begun", "_last", "_telling", "_too_long")

    def __init__(self) -> None:
        self._begun = b""
        """An event whose end has not come."""
        self._last = b""
        self._telling = b""
        self._too_long = False

    @property
    def at_boundary(self) -> bool:
        """Whether no event is begun."""
        return not self._begun and not self._too_long

    @property
    def finished(self) -> bool:
        """Whether the last event said that it is the last; what may follow is framing."""
        return b"data: [DONE]" in self._last

    def follow(self, piece: bytes) -> None:
        """`piece` of the content was passed on as it is."""
        if self._begun or self._too_long:
            piece = self._joined(piece)
        if not piece.endswith(_ENDS):
            end = _last_end(piece)
            self._begun = piece[end:]
            piece = piece[:end]
            if len(self._begun) > _MAX_EVENT:
                self._begun, self._too_long = b"", True
        self._last = piece
        if b'"usage"' in piece or b'"timings"' in piece or b'"meta_info"' in piece:
            self._telling = piece

    def strip(self, piece: bytes) -> bytes:
        """What may be passed on of `piece` and of what was held of those before: whole events, without that of
        nothing but usage."""
        passed_on = b"" if self._too_long else self._begun
        self.follow(piece)
        whole = passed_on + piece
        if self._too_long:
            return whole
        whole = whole[: len(whole) - len(self._begun)]
        if b'"usage"' not in whole:
            return whole
        return b"".join(event for event in _split(whole) if not _only_usage(event))

    def passes(self, payload: Sequence[bytes]) -> bool:
        """Whether `payload` is whole events without usage, so that at a boundary `strip` would change nothing; then
        they are followed."""
        for piece in payload:
            if not piece.endswith(_ENDS) or b'"usage"' in piece:
                return False
        for piece in payload:
            self.follow(piece)
        return True

    def rest(self) -> bytes:
        """What `strip` holds at the stream's end."""
        rest, self._begun = self._begun, b""
        return rest

    def told(self) -> dict[str, Any]:
        """The members of the last event that tells counts; of several in a piece the last one. Empty for none."""
        for event in reversed(_split(self._telling)):
            if any(name in event for name in _TELLING):
                found = _parsed(event)
                if found:
                    return found
        return {}

    def _joined(self, piece: bytes) -> bytes:
        if not self._too_long:
            piece, self._begun = self._begun + piece, b""
            return piece
        end = _first_end(piece)  # the overlong event ends here, or goes on
        self._too_long = not end
        return piece[end:] if end else b""


def _last_end(piece: bytes) -> int:
    """Behind the last whole event."""
    return max(at + len(end) if (at := piece.rfind(end)) >= 0 else 0 for end in _ENDS)


def _first_end(piece: bytes) -> int:
    ends = [at + len(end) for end in _ENDS if (at := piece.find(end)) >= 0]
    return min(ends, default=0)


def _split(whole: bytes) -> list[bytes]:
    return _EVENT.findall(whole)


def _only_usage(event: bytes) -> bool:
    """Whether `event` is the chunk that ``stream_options.include_usage`` brings: no choices, and a usage."""
    if b'"usage"' not in event:
        return False
    found = _parsed(event)
    return found.get("choices") == [] and isinstance(found.get("usage"), dict)


def _parsed(event: bytes) -> dict[str, Any]:
    """The object in the lines of `event` that are its data; those with an id, a name or a comment stand beside them."""
    data = b"\n".join(line[len(_DATA) :] for line in event.splitlines() if line.startswith(_DATA))
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

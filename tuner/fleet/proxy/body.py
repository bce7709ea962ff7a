"""The JSON object of a generation: read once, and edited where its members stand.

Re-serialising would change what was not asked for: the digits of numbers, escapes, members given twice. So the text
of a member's value is replaced where it stands, and a member that is missing is put in front of the others.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object with the places of its members."""

    text: str
    members: dict[str, Any]
    spans: tuple[tuple[str, int, int], ...]
    """Key, and where its value begins and ends in `text`, in that order; a key may be there twice."""
    inside: int
    """Where the first member is, or the closing brace."""


def read_body(content: bytes) -> Body | None:
    """None where `content` is no JSON object in UTF-8: that is for the upstream to answer."""
    try:
        return _object(content.decode("utf-8"))
    except (ValueError, IndexError, RecursionError):
        return None


def edited(body: Body, edits: Sequence[tuple[str, Any]]) -> bytes:
    """The content with those members set.

    Raises:
        ValueError, TypeError: a value has no JSON.
        RecursionError: it is nested too deep.
    """
    new = {key: json.dumps(value, allow_nan=False) for key, value in edits}
    pieces, at = [body.text[: body.inside]], body.inside
    missing = ",".join(f"{json.dumps(key)}:{value}" for key, value in new.items() if key not in body.members)
    if missing:
        pieces.append(missing + ("," if body.spans else ""))
    for key, start, end in body.spans:
        if key in new:
            pieces += [body.text[at:start], new[key]]
            at = end
    pieces.append(body.text[at:])
    return "".join(pieces).encode("utf-8")


def _object(text: str) -> Body:
    """Raises: ValueError, IndexError, RecursionError: it is no object, or has something behind it."""
    at = _skip(text, 0)
    if text[at] != "{":
        raise ValueError("no object")
    at = inside = _skip(text, at + 1)
    members: dict[str, Any] = {}
    spans = []
    closed = text[at] == "}"
    while not closed:
        if text[at] != '"':
            raise ValueError("no key")
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError("no colon")
        start = _skip(text, at + 1)
        members[key], end = _DECODER.raw_decode(text, start)
        spans.append((key, start, end))
        at = _skip(text, end)
        closed = text[at] == "}"
        if not closed:
            if text[at] != ",":
                raise ValueError("no comma")
            at = _skip(text, at + 1)
    if _skip(text, at + 1) != len(text):
        raise ValueError("more than one value")
    return Body(text, members, tuple(spans), inside)


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()

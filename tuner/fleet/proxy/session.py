"""Which requests belong to one conversation, as a number that means nothing outside this process."""

import secrets
from collections.abc import Mapping
from typing import Any

from tuner.fleet.proxy.head import RequestHead

_HEADERS = (b"x-session-id", b"x-conversation-id")
_MEMBERS = ("prompt_cache_key", "user")
_KEY = secrets.randbits(64)
"""Of this process, and nowhere else: a number tells nothing of a text, not even whether it was seen before."""


def session_key(head: RequestHead, members: Mapping[str, Any] | None) -> int | None:
    """From what the client says, or from the turns with which its conversation began; None where neither tells."""
    for name in _HEADERS:
        if name in head.fields:
            return hash((_KEY, name, head.fields[name]))
    if members is None:
        return None
    for member in _MEMBERS:
        value = members.get(member)
        if isinstance(value, str) and value:
            return hash((_KEY, member, value))
    try:
        opening = _opening(members.get("messages"))
    except RecursionError:  # content that is nested too deep to be written
        return None
    return hash((_KEY, opening)) if opening else None


def _opening(messages: Any) -> tuple[str, ...]:
    """The contents up to the first user turn, which every later request of a conversation begins with."""
    said: list[str] = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, Mapping):
            return ()
        said.append(repr(message.get("content")))
        if message.get("role") == "user":
            return tuple(said)
    return ()

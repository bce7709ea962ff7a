"""The id of a decision says what was decided, so that any one can be explained without having been stored.

``v12.ngram-8.LEARNED.code-edit.en.5f3a09-1c`` is version 12 of the policy of (code-edit, en): drafter ngram up to 8
tokens, because that was learned. What follows the last dot only makes the id unique.
"""

import re
from dataclasses import dataclass

from policies.types import UNKNOWN_LENGTH, Reason

_PLAIN_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_PATTERN = re.compile(
    r"v(?P<version>\d{1,18})\.(?P<drafter>[\w~-]+)-(?P<cap>\d{1,4}|unknown)\.(?P<reason>[A-Z_]+)"
    r"\.(?P<route>[\w~-]*)\.(?P<language>[\w~-]*)\.(?P<serial>[\w-]+)",
    re.ASCII,
)
_ESCAPE = re.compile(r"(?:~[0-9a-f]{2})+")


@dataclass(frozen=True, slots=True)
class DecisionFields:
    """What a decision id says."""

    policy_version: int
    drafter: str
    cap: int
    """`UNKNOWN_LENGTH` where the server drafts as far as it does."""
    reason: Reason
    route: str
    language: str
    serial: str


def encode(fields: DecisionFields) -> str:
    """The id: ASCII that needs no escape in a URL path or a header."""
    cap = "unknown" if fields.cap == UNKNOWN_LENGTH else fields.cap
    return (
        f"v{fields.policy_version}.{_escape(fields.drafter)}-{cap}.{fields.reason.value}"
        f".{_escape(fields.route)}.{_escape(fields.language)}.{fields.serial}"
    )


def describe(decision_id: str) -> DecisionFields:
    """The fields of an id made by `encode`.

    Raises:
        ValueError: `decision_id` is no such id.
    """
    match = _PATTERN.fullmatch(decision_id)
    if match is None or match["reason"] not in Reason.__members__:
        raise ValueError(
            f"decision id {decision_id!r} is not one of this server's: expected "
            "v<version>.<drafter>-<cap>.<REASON>.<route>.<language>.<serial>, "
            "as in the response header x-paceline-decision"
        )
    return DecisionFields(
        policy_version=int(match["version"]),
        drafter=_unescape(match["drafter"]),
        cap=UNKNOWN_LENGTH if match["cap"] == "unknown" else int(match["cap"]),
        reason=Reason(match["reason"]),
        route=_unescape(match["route"]),
        language=_unescape(match["language"]),
        serial=match["serial"],
    )


def _escape(text: str) -> str:
    return "".join(
        character if character in _PLAIN_CHARACTERS else "".join(f"~{byte:02x}" for byte in character.encode())
        for character in text
    )


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda run: bytes.fromhex(run[0].replace("~", "")).decode("utf-8", "replace"), text)

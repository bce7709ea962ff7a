"""Which requests are generations, and what a `Chooser` is told of one."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from tuner.fleet.proxy.head import RequestHead
from tuner.fleet.proxy.session import session_key
from tuner.fleet.types import Asked

_STEERED = ("/v1/chat/completions", "/v1/completions")
_UNSTEERED = (
    "/completion",
    "/completions",
    "/chat/completions",
    "/generate",
    "/infill",
    "/v1/messages",
    "/v1/responses",
)


class Kind(Enum):
    STEERED = auto()
    """A generation that a chooser is asked about."""
    UNSTEERED = auto()
    """A generation that passes, and counts as load."""
    OTHER = auto()


def kind_of(head: RequestHead) -> Kind:
    if head.method != b"POST":
        return Kind.OTHER
    path = head.path
    if path.endswith(_STEERED):
        return Kind.STEERED
    return Kind.UNSTEERED if path.endswith(_UNSTEERED) else Kind.OTHER


def route_of(head: RequestHead) -> str | None:
    return head.text(b"x-paceline-route")


def asked(
    head: RequestHead,
    members: Mapping[str, Any] | None,
    body_bytes: int,
    in_flight: Mapping[str, int],
    arrived_at: float,
    sent_to: str | None = None,
) -> Asked:
    return Asked(
        path=head.path,
        body=members,
        body_bytes=body_bytes,
        route=route_of(head),
        language=head.text(b"x-paceline-language"),
        mode=head.text(b"x-paceline-mode"),
        debug=(head.text(b"x-paceline-debug") or "").lower() == "true",
        session=session_key(head, members),
        in_flight=in_flight,
        arrived_at=arrived_at,
        sent_to=sent_to,
    )

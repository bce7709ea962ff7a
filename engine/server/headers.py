"""The x-paceline headers and the request id, in and out."""

import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.errors import ApiError, invalid
from policies.languages import LANGUAGES
from policies.quoting import clipped
from policies.types import OTHER_ROUTE, Decision

ROUTE, LANGUAGE, MODE, DEBUG = "x-paceline-route", "x-paceline-language", "x-paceline-mode", "x-paceline-debug"
REQUEST_ID = "x-request-id"
_PREFIX = "x-paceline-"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


@dataclass(frozen=True, slots=True)
class Steering:
    """What the headers of a request say."""

    route: str
    language: str | None
    """None: to be detected."""
    opt_out: bool
    debug: bool


def read_steering(headers: Headers, routes: Collection[str], trusted: bool) -> Steering:
    """The x-paceline headers. Raises `ApiError` for one that does not exist, is given twice or cannot be honoured.

    Where clients are not trusted, only ``x-paceline-mode`` counts, since it can only reduce speculation.
    """
    for name in headers:
        if name.startswith(_PREFIX) and name not in (ROUTE, LANGUAGE, MODE, DEBUG):
            raise ApiError(
                f"There is no header {clipped(name)}; use {ROUTE}, {LANGUAGE}, {MODE} or {DEBUG}.",
                param=name,
                code="unknown_header",
            )
        if name.startswith(_PREFIX) and len(headers.getlist(name)) > 1:
            raise ApiError(f"The header {name} is given more than once; give it once.", param=name)
    mode = headers.get(MODE, "default")
    if mode not in ("off", "default"):
        raise invalid(MODE, mode, "off, or leave it out")
    debug = headers.get(DEBUG, "false")
    if debug not in ("true", "false"):
        raise invalid(DEBUG, debug, "true or false")
    language = headers.get(LANGUAGE)
    if language is not None and language.lower() not in LANGUAGES:
        raise invalid(LANGUAGE, language, "a BCP 47 primary language subtag such as en or de, or code or und")
    route = headers.get(ROUTE, OTHER_ROUTE)
    if not trusted:
        return Steering(OTHER_ROUTE, None, mode == "off", debug=False)
    return Steering(
        route if route in routes else OTHER_ROUTE,
        language.lower() if language is not None else None,
        mode == "off",
        debug == "true",
    )


def decision_headers(decision: Decision, debug: bool) -> dict[str, str]:
    """What the answer says of the decision behind it."""
    headers = {"x-paceline-decision": decision.decision_id, "x-paceline-policy": str(decision.policy_version)}
    if debug:
        headers |= {
            "x-paceline-reason": decision.reason.value,
            "x-paceline-drafter": decision.drafter,
            "x-paceline-cap": str(decision.cap),
            "x-paceline-language": decision.context.language,
            "x-paceline-route": decision.context.route,
        }
    # A route may be named in any script; a header may not.
    return {name: value.encode("ascii", "backslashreplace").decode() for name, value in headers.items()}


def looped_header(looped: bool) -> dict[str, str]:
    """With debug, and once an answer is whole: whether its output repeated itself (8 tokens three times in a row)."""
    return {"x-paceline-looped": "true" if looped else "false"}


class RequestIdMiddleware:
    """Every answer carries ``x-request-id``: the client's, or one made here. A malformed one is a 400."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID)
        valid = given is None or _REQUEST_ID.fullmatch(given) is not None
        request_id = given if given is not None and valid else f"req-{secrets.token_hex(12)}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        if valid:
            await self._app(scope, receive, send_with_id)
        else:
            refusal = invalid(REQUEST_ID, given, "1 to 128 letters, digits or ._:/+=@-")
            await refusal.response()(scope, receive, send_with_id)

"""What is wrong with a request, in one sentence for each fault: the field, its value, the remedy."""

from collections.abc import Iterable, Mapping
from typing import Any

from policies.quoting import clipped, shown
from policies.types import MAX_BLOCK_LENGTH

_REMEDIES: Mapping[str, str] = {
    "route": "the name of a configured route, or * for all where that can be",
    "drafter": "the name of a drafter, of at most 256 characters",
    "block_length": f"a whole number from 0 to {MAX_BLOCK_LENGTH}",
    "mode": "off, or leave it out",
    "reason": "a text of 1 to 500 characters",
    "expires_in": "a time such as 90s, 30m, 2h or 1d, as a string",
    "exempt_from_switchback": "true or false",
    "active": "true or false",
    "revert": "true or false",
    "source": "ngram, suffix, a name that `paceline draft list` shows, or a folder, of at most 256 characters",
    "name": "the name of a drafter, of at most 256 characters",
    "decision_id": "the id of a decision, of at most 512 characters",
    "x-paceline-actor": "1 to 64 letters, digits or _.@+-",
}


def faults(errors: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """pydantic's errors as ``{"field", "message"}``, each message a sentence without its full stop."""
    return [_fault(error) for error in errors]


def _fault(error: Mapping[str, Any]) -> dict[str, str]:
    field = ".".join(map(str, error["loc"][1:]))
    if error["type"] == "json_invalid":
        return {"field": "body", "message": f"The body is not JSON ({error['ctx']['error']}); send one JSON object"}
    if not field:
        return {"field": "body", "message": _of_the_body(error)}
    remedy = _REMEDIES.get(field, "another value")
    if error["type"] == "missing":
        message = f"{field} is missing; give {remedy}"
    elif error["type"] == "extra_forbidden":
        message = f"{clipped(field)} is {shown(error['input'])}, but there is no such field; remove it"
    elif error["type"] == "value_error":
        message = f"{field}: {error['ctx']['error']}"
    else:
        message = f"{field} is {shown(error['input'])}; give {remedy}"
    return {"field": clipped(field), "message": message}


def _of_the_body(error: Mapping[str, Any]) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return "The body is missing; send one JSON object"
    if isinstance(error["input"], bytes):
        return "The body is not sent as JSON; send it with the header content-type: application/json"
    return f"The body is {shown(error['input'])}; send one JSON object"

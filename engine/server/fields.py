"""The fields of a JSON object, each checked by its rule."""

import difflib
from collections.abc import Mapping
from typing import Any

from engine.server.errors import ApiError, invalid, missing, unsupported
from engine.server.rules import Rule, is_integer
from policies.quoting import shown

_LIKENESS = 0.75
"""Of a field that is suggested for an unknown one: a slip of the pen or two, and not another word."""


def checked(
    body: object, rules: Mapping[str, Rule], *, prefix: str = "", required: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The fields of `body` that are not null, each checked by its rule."""
    if not isinstance(body, dict):
        raise invalid(prefix.rstrip(".") or "The body", body, "a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in body.items():
        field, rule = prefix + name, rules.get(name)
        if rule is None:
            near = difflib.get_close_matches(name, rules, n=1, cutoff=_LIKENESS)
            remedy = f"did you mean {prefix}{near[0]}?" if near else "remove it."
            raise ApiError(
                f"{shown(field)[1:-1]} is {shown(value)}, but there is no such field; {remedy}",
                param=field,
                code="unknown_parameter",
            )
        if value is not None and not rule.accepts(value):
            raise (unsupported if rule.neutral else invalid)(field, value, rule.remedy)
    for name, remedy in (required or {}).items():
        if name not in given:
            raise missing(prefix + name, remedy)
    return given


def token_ids(ids: list[Any], field: str, vocabulary: int) -> tuple[int, ...]:
    # A body may hold a million of them, and streams wait meanwhile: one by one only where one is bad.
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= vocabulary):
        index = next(index for index, token in enumerate(ids) if not is_integer(token, 0, vocabulary - 1))
        raise invalid(f"{field}[{index}]", ids[index], f"a token id from 0 to {vocabulary - 1}")
    return tuple(ids)

"""Arbitrary bodies: every answer is a 200 or a 4xx in OpenAI's shape, and nothing is left running."""

import asyncio
import json
import operator
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.server.rules import CHAT_RULES, COMPLETION_RULES, Rule
from tests.engine.server.double import MODEL, ScriptedEngine, says
from tests.engine.server.harness import CHAT, COMPLETIONS, app_for, ask

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.integers(-2, 10),
    st.floats(),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.text(max_size=8),
    st.sampled_from(["user", "system", "text", "auto", "none", MODEL]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"])},
        optional={"content": st.one_of(st.text(max_size=30), VALUES), "name": VALUES},
    ),
    max_size=3,
)


SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def bodies(rules: Mapping[str, Rule], required: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Anything at all; and bodies with what is required and a few more fields, known and unknown."""
    names = st.one_of(st.sampled_from(sorted(rules)), st.text(max_size=6))
    extra = st.dictionaries(names, VALUES, max_size=3)
    complete = st.fixed_dictionaries({"model": st.just(MODEL), **required})
    return st.one_of(VALUES, st.builds(operator.or_, extra, complete), st.builds(operator.or_, complete, extra))


class Checker:
    """One app for all examples of a test, and the statuses that it gave."""

    def __init__(self, path: str) -> None:
        self.statuses: set[int] = set()
        self._path = path
        self._engine = ScriptedEngine(says("Hello", " there"))
        self._app = app_for(self._engine)

    def __call__(self, content: bytes) -> None:
        self._engine.submitted.clear()
        reply = asyncio.run(ask(self._app, self._path, content=content))
        self.statuses.add(reply.status)
        if reply.status != 200:
            assert 400 <= reply.status < 500, reply.body
            assert reply.error["type"] == "invalid_request_error"
            assert self._engine.submitted == []
        elif reply.headers["content-type"].startswith("text/event-stream"):
            assert reply.events
        else:
            assert {choice["finish_reason"] for choice in reply.json["choices"]} <= {"stop", "length"}
        assert self._engine.cancelled == []


def test_any_chat_body_is_answered_or_refused_in_the_shape_of_openai() -> None:
    check = Checker(CHAT)

    @SETTINGS
    @given(bodies(CHAT_RULES, {"messages": MESSAGES}))
    def run(body: object) -> None:
        check(json.dumps(body).encode())

    run()
    assert check.statuses >= {200, 400}


def test_any_completion_body_is_answered_or_refused_in_the_shape_of_openai() -> None:
    check = Checker(COMPLETIONS)

    @SETTINGS
    @given(bodies(COMPLETION_RULES, {"prompt": st.one_of(st.text(min_size=1, max_size=20), VALUES)}))
    def run(body: object) -> None:
        check(json.dumps(body).encode())

    run()
    assert check.statuses >= {200, 400}


def test_any_bytes_are_refused_in_the_shape_of_openai() -> None:
    check = Checker(CHAT)

    @SETTINGS
    @given(st.binary(max_size=40))
    def run(content: bytes) -> None:
        check(content)

    run()
    assert check.statuses == {400}

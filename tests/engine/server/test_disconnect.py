"""A client that leaves cancels every one of its sequences at once, whatever it was waiting for."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.messages import Submit
from policies.stats import FinishReason
from policies.testing import ListSink
from tests.engine.server.double import HANG, ScriptedEngine, Step
from tests.engine.server.harness import CHAT, app_for, chat_body


class Visit:
    """One request over raw ASGI, whose client leaves when it is told to."""

    def __init__(self, body: dict[str, object]) -> None:
        self.sent: list[Any] = []
        self.leave = asyncio.Event()
        self.stuck = asyncio.Event()
        """Set when the server waits for a client that does not read."""
        self.reads = True
        self._body: bytes | None = json.dumps(body).encode()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if not self.reads:
            self.stuck.set()
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [],
            "client": ("client", 1),
            "server": ("server", 80),
        }


def hangs_after_two(_: Submit) -> Sequence[Step]:
    return [(97,), (98,), HANG]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [hangs_after_two, lambda _: [HANG]])
def test_leaving_cancels_every_choice_and_reports_each(stream: bool, script: Any) -> None:
    async def run() -> None:
        engine, sink = ScriptedEngine(script), ListSink()
        visit = Visit(chat_body(n=3, stream=stream))
        serving = asyncio.create_task(app_for(engine, sink=sink)(visit.scope, visit.receive, visit.send))
        await engine.started.wait()
        visit.leave.set()
        await serving
        assert sorted(engine.cancelled) == sorted(submit.request_key for submit in engine.submitted)
        assert len(engine.cancelled) == 3
        assert [stats.finish for stats in sink.requests] == [FinishReason.CANCELLED] * 3
        assert all(stats.cycles == 0 for stats in sink.requests)

    asyncio.run(run())


def test_leaving_while_the_server_waits_for_a_slow_reader_cancels_too() -> None:
    async def run() -> None:
        engine = ScriptedEngine(hangs_after_two)
        visit = Visit(chat_body(stream=True))
        visit.reads = False
        serving = asyncio.create_task(app_for(engine)(visit.scope, visit.receive, visit.send))
        await visit.stuck.wait()
        visit.leave.set()
        await serving
        assert engine.cancelled == [engine.submitted[0].request_key]

    asyncio.run(run())


def test_a_failing_choice_cancels_the_others() -> None:
    async def run() -> None:
        def script(submit: Submit) -> Sequence[Step]:
            return [(97,), RuntimeError("broken")] if submit.sampling.choice == 1 else [HANG]

        engine, sink = ScriptedEngine(script), ListSink()
        visit = Visit(chat_body(n=3))
        with pytest.raises(RuntimeError, match="broken"):
            await app_for(engine, sink=sink)(visit.scope, visit.receive, visit.send)
        assert len(engine.cancelled) == 2
        assert visit.sent[0]["status"] == 500
        assert json.loads(visit.sent[1]["body"])["error"]["type"] == "server_error"
        assert len(sink.requests) == 3

    asyncio.run(run())


def test_an_engine_that_does_not_end_at_a_stop_is_cancelled_by_the_server() -> None:
    async def run() -> None:
        engine = ScriptedEngine(lambda _: [tuple(b"one "), tuple(b"STOP"), HANG])
        # The double ends at stop strings as the engine does; without them it plays the engine that overlooked one.
        honest = engine.submit
        engine.submit = lambda message: honest(replace(message, stops=()))  # type: ignore[method-assign]
        visit = Visit(chat_body(stop="STOP"))
        await app_for(engine)(visit.scope, visit.receive, visit.send)
        choice = json.loads(visit.sent[1]["body"])["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one ", "stop")
        assert len(engine.cancelled) == 1

    asyncio.run(run())

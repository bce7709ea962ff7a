"""``tuner.root.served_log``: what the log of ``paceline serve`` says of the last ten seconds."""

import asyncio
import contextlib
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from engine.process import EngineGoneError
from policies import EngineStatus
from policies.stats import FinishReason
from tests.tuner.telemetry_examples import INFO, STATUS, cycle, request, sequence
from tuner.root import served_log
from tuner.root.served_log import ServedCounts, log_served
from tuner.telemetry import Consumer


def test_a_line_tells_requests_rates_drafts_and_blocks_since_the_line_before() -> None:
    counts = ServedCounts(INFO.blocks)
    assert counts.idle
    counts.fold_cycle(cycle(prefill_tokens=1200))
    for _ in range(10):
        counts.fold_cycle(cycle(sequence(verified=4, accepted=3), sequence(verified=4, accepted=1)))
    for finish in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.ERROR):
        counts.fold_request(request(finish=finish))
    assert not counts.idle
    assert counts.line(10.0, STATUS) == (
        "requests: 2 finished, 1 cancelled, 1 failed, 3 running, 2 waiting; "
        "tokens a second: 120.0 prompt, 6.0 output; drafts kept: 50% of 80; KV blocks: 8 of 48"
    )
    assert counts.idle, "the next line counts from here"
    counts.fold_cycle(cycle(sequence(verified=0, accepted=0)))
    assert counts.line(5.0, STATUS) == (
        "requests: 0 finished, 3 running, 2 waiting; tokens a second: 0.0 prompt, 0.2 output; "
        "drafts kept: none to keep; KV blocks: 8 of 48"
    )


class ScriptedService:
    """As much of a `Service` as the log needs; where it is `failing`, its engine is gone."""

    def __init__(self, failing: bool = False) -> None:
        self.client = SimpleNamespace(info=INFO, status=self.status)
        self.consumers: list[Consumer] = []
        self.asked = 0
        self._failing = failing

    @contextlib.contextmanager
    def listening(self, consumer: Consumer) -> Iterator[None]:
        self.consumers.append(consumer)
        yield
        self.consumers.remove(consumer)

    async def status(self) -> EngineStatus:
        self.asked += 1
        if self._failing:
            raise EngineGoneError("gone")
        return STATUS


async def rounds(monkeypatch: pytest.MonkeyPatch, service: ScriptedService, busy: list[bool]) -> str:
    """What is printed over stretches of ten seconds, in each of which a cycle ran where `busy` says so."""
    printed = io.StringIO()
    left = iter(busy)

    async def sleep(seconds: float) -> None:
        assert seconds == served_log.LINE_SECONDS
        ran = next(left, None)
        if ran is None:
            raise asyncio.CancelledError
        if ran:
            service.consumers[0].fold_cycle(cycle(sequence()))

    monkeypatch.setattr(served_log, "asyncio", SimpleNamespace(sleep=sleep))
    with contextlib.suppress(asyncio.CancelledError):
        await log_served(cast(Any, service), Console(file=printed, width=200))
    return printed.getvalue()


def test_only_a_time_in_which_something_ran_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    service = ScriptedService()
    told = asyncio.run(rounds(monkeypatch, service, [False, True, False, False, True]))
    assert told.count("requests:") == 2
    assert service.asked == 2, "an idle engine is not asked either"


def test_the_log_ends_with_the_engine_and_leaves_it_to_others_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    service = ScriptedService(failing=True)
    assert asyncio.run(rounds(monkeypatch, service, [True, True])) == ""
    assert service.asked == 1
    assert service.consumers == []

"""A whole service on the tiny model, in a thread of its own with its own event loop; tests speak to it over HTTP."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from engine.process import EngineClient
from policies.stats import CycleStats, EngineStatus, RequestStats
from tests.dashboards.prometheus_process import until
from tuner.root import Service, running_service
from tuner.settings import (
    AdminSettings,
    DatabaseSettings,
    EngineSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    TunerSettings,
)

T = TypeVar("T")

DEADLINE_SECONDS = 60.0
"""Far beyond what anything here needs: it is there to fail instead of hanging."""
CONTEXT_LIMIT = 2048
ENDLESS = {"0": -100, "2": -100}
"""A logit bias that keeps the tiny model from ending a text by itself."""


def tiny_settings(model: Path, database: Path, tuner: TunerSettings | None = None) -> Settings:
    """One engine thread, free ports, float32; the model is called ``tiny``."""
    return Settings(
        model=ModelSettings(path=str(model), name="tiny", dtype="float32", threads=1),
        engine=EngineSettings(slots=4, context_limit=CONTEXT_LIMIT),
        server=ServerSettings(port=0),
        admin=AdminSettings(port=0),
        database=DatabaseSettings(url=f"sqlite:///{database}"),
        tuner=tuner or TunerSettings(),
    )


class CycleLog:
    """A telemetry consumer that keeps the cycles in which a sequence ran."""

    def __init__(self) -> None:
        self.cycles: list[CycleStats] = []

    def fold_cycle(self, stats: CycleStats) -> None:
        if stats.load:
            self.cycles.append(stats)

    def fold_request(self, stats: RequestStats) -> None:
        """Only cycles are kept."""


@dataclass(frozen=True, slots=True)
class LiveService:
    """The service with a client for each of its ports."""

    service: Service
    data: httpx.Client
    admin: httpx.Client
    loop: asyncio.AbstractEventLoop

    @property
    def engine(self) -> EngineClient:
        return self.service.client

    def status(self) -> EngineStatus:
        """A reading of the engine, taken between two of its cycles."""
        return asyncio.run_coroutine_threadsafe(self.engine.status(), self.loop).result(DEADLINE_SECONDS)

    def fold(self) -> None:
        """Return when everything measured so far has been folded."""
        asyncio.run_coroutine_threadsafe(self.service.fold_telemetry(), self.loop).result(DEADLINE_SECONDS)

    def complete(
        self, *, route: str = "chat", max_tokens: int = 24, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """One completion of a prompt that repeats itself, so that n-grams match; debug headers are asked for."""
        body = {"model": "tiny", "prompt": "one two three " * 6, "max_tokens": max_tokens, "seed": 7} | fields
        steering = {"x-paceline-route": route, "x-paceline-language": "en", "x-paceline-debug": "true"}
        answer = self.data.post("/v1/completions", json=body, headers=steering | dict(headers or {}))
        assert answer.status_code == 200, answer.text
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name and at least those labels on /metrics."""
        answer = self.admin.get("/metrics")
        assert answer.status_code == 200, answer.text
        found = [
            sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert found, f"/metrics has no {name} with {labels}"
        return sum(found)

    def until_metric(self, name: str, value: float) -> None:
        """Return as soon as /metrics says so."""
        until(lambda: self.metric(name) == value or None, DEADLINE_SECONDS, f"{name} is {value}")

    @contextlib.contextmanager
    def traffic(self, clients: int, **fields: Any) -> Iterator[None]:
        """As many clients send one request after the other while the block runs; each request has a seed of its own.

        A failed request fails the test.
        """
        stop = threading.Event()
        errors: list[BaseException] = []

        def work(client: int) -> None:
            seed = 1_000_000 * client
            try:
                while not stop.is_set():
                    self.complete(seed=(seed := seed + 1), **fields)
            except BaseException as error:  # noqa: BLE001  kept, and raised in the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(client,), name=f"client {client}") for client in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]


@contextlib.contextmanager
def live_service(settings: Settings) -> Iterator[LiveService]:
    """Serve until the block is left; then everything has been stopped in order and the store is closed."""
    ready: Future[tuple[Service, asyncio.AbstractEventLoop, Callable[[], None]]] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(settings, ready)), name="live-service")
    thread.start()
    try:
        service, loop, leave = ready.result()
        try:
            with (
                httpx.Client(base_url=service.data_url, timeout=DEADLINE_SECONDS) as data,
                httpx.Client(base_url=service.admin_url, timeout=DEADLINE_SECONDS) as admin,
            ):
                yield LiveService(service, data, admin, loop)
        finally:
            loop.call_soon_threadsafe(leave)
    finally:
        thread.join()


async def _serve(
    settings: Settings, ready: "Future[tuple[Service, asyncio.AbstractEventLoop, Callable[[], None]]]"
) -> None:
    left = asyncio.Event()
    try:
        async with running_service(settings, Console(file=StringIO())) as service:
            ready.set_result((service, asyncio.get_running_loop(), left.set))
            await left.wait()
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)

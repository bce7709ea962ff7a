"""One engine with its tuner, its store and its HTTP servers, and the tuner's thread."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from engine.process import DrafterRefusedError, EngineClient, EngineGoneError
from policies import Context, Decision, DecisionSource, EngineStatus, RequestFeatures
from policies.store import StoreError
from tuner.api.drafters import DrafterConflictError
from tuner.controller import Controller
from tuner.metrics import Gauges, Metrics
from tuner.recorder import TUNER, Recorder
from tuner.root.memory import free_share
from tuner.root.tuning import live_tuning
from tuner.settings import Settings, SettingsError
from tuner.telemetry import Consumer, TelemetryQueue

log = logging.getLogger(__name__)

POSTERIOR_SECONDS = 15.0
"""How often the posterior is handed to the store."""

MEMORY_SECONDS = 1.0
"""How often the memory that is left is read."""

CLOSE_SECONDS = 10.0
"""How long the store may take to write what is left when the server ends."""


class DecisionSwitch:
    """A `DecisionSource` that passes on to whichever source is set; bench sets one arm after the other."""

    def __init__(self, source: DecisionSource) -> None:
        self.source = source

    def decide(self, context: Context, features: RequestFeatures) -> Decision:
        return self.source.decide(context, features)


class Service:
    """One engine with its tuner, its store and its two HTTP servers; see `running_service`."""

    def __init__(
        self,
        settings: Settings,
        client: EngineClient,
        controller: Controller,
        recorder: Recorder,
        queue: TelemetryQueue,
    ) -> None:
        self._settings = settings
        self.client = client
        self.controller = controller
        self.recorder = recorder
        self.decisions = DecisionSwitch(controller)
        self.data_url = ""
        self.admin_url = ""
        self._queue = queue
        self._metrics = Metrics(settings.routes, client.info)
        self.tuning = live_tuning(settings, lambda: client.info, controller, recorder.record_audit)
        self._consumers: tuple[Consumer, ...] = (controller, self._metrics, recorder, self.tuning)
        self._folding = threading.Lock()
        self._memory_read_at = 0.0
        self._tick_seconds = settings.tuner.tick_seconds
        self._stop_ticking = threading.Event()
        self._ticker = threading.Thread(target=self._tick_until_stopped, name="tuner", daemon=True)

    @contextlib.contextmanager
    def listening(self, consumer: Consumer) -> Iterator[None]:
        """Let `consumer` fold telemetry too, in the tuner's thread, while the context is open."""
        with self._folding:
            self._consumers = (*self._consumers, consumer)
        try:
            yield
        finally:
            with self._folding:
                self._consumers = tuple(other for other in self._consumers if other is not consumer)

    async def fold_telemetry(self) -> None:
        """Return when everything that was measured before the call has been folded."""
        # The engine answers after the telemetry of the cycles before, and the answer takes the same way.
        await self.client.status()
        await asyncio.to_thread(self._fold)

    def start_learning(self) -> None:
        """Start the tuner's thread and the recorder's."""
        self.recorder.start()
        if self._settings.tune.live:
            try:
                self.tuning.start(TUNER, "the setting tune.live")
            except (StoreError, SettingsError) as error:
                log.warning("serving starts without the live study: %s", error)
        self._ticker.start()

    def stop_learning(self) -> None:
        """Fold what is left, and hand everything to the store."""
        self._stop_ticking.set()
        self._ticker.join()
        self._tick()
        self.recorder.save_posterior(self.controller.state())
        self.recorder.close(CLOSE_SECONDS)

    @property
    def drafters(self) -> tuple[str, ...]:
        """What a pin may name, plain first."""
        return self.client.info.drafters

    async def load_drafter(self, source: str) -> None:
        """Load a drafter while serving. Raises DrafterConflictError."""
        await self._change_drafters(self.client.load_drafter(source))

    async def unload_drafter(self, name: str) -> None:
        """Let a drafter go while serving. Raises DrafterConflictError, also while a pin or a setting names it."""
        if name == self._settings.engine.learned_drafter:
            raise DrafterConflictError(
                f"The drafter {name!r} is the one that is learned: engine.default_drafter sets it."
            )
        for pin in self.controller.snapshot.pins:
            if pin.drafter == name:
                raise DrafterConflictError(
                    f"A pin of {pin.route}/{pin.language} names the drafter {name!r}: take it back first"
                )
        for route, configured in self._settings.routes.items():
            if configured.default_arm is not None and configured.default_arm.drafter == name:
                raise DrafterConflictError(f"routes.{route}.default_arm.drafter is {name!r}: change it first")
        await self._change_drafters(self.client.unload_drafter(name))

    async def _change_drafters(self, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except DrafterRefusedError as error:
            raise DrafterConflictError(str(error)) from error
        self.controller.set_engine(self.client.info)
        self._metrics.set_drafters(self.drafters)

    async def render_metrics(self) -> bytes:
        """The body of /metrics."""
        status: EngineStatus | None = None
        with contextlib.suppress(EngineGoneError):  # then the gauge of the engine says that it is down
            status = await self.client.status()
        gauges = Gauges(
            engine=status,
            engine_up=status is not None,
            store_up=self.recorder.store_up,
            telemetry_dropped=self._queue.dropped,
            recorder_dropped=self.recorder.dropped,
        )
        return await asyncio.to_thread(self._metrics.render, self.controller.snapshot, gauges)

    def _fold(self) -> None:
        with self._folding:
            self._queue.drain(self._consumers)

    def _tick(self) -> None:
        self._fold()
        self._read_memory()
        changed = self.controller.tick()
        self.tuning.tick()
        for policy in changed:
            self.recorder.record_policy(policy)
        for guardrail in self.controller.take_moved_guardrails():
            self.recorder.record_guardrail(guardrail)
        for change in self.controller.take_found_changes():
            self.recorder.record_change(change)
        self._metrics.count_policy_changes(changed)

    def _read_memory(self) -> None:
        if time.monotonic() - self._memory_read_at >= MEMORY_SECONDS:
            self._memory_read_at = time.monotonic()
            self.controller.fold_memory(free_share())

    def _tick_until_stopped(self) -> None:
        saved_at = time.monotonic()
        while not self._stop_ticking.wait(self._tick_seconds):
            try:
                self._tick()
                if time.monotonic() - saved_at >= POSTERIOR_SECONDS:
                    saved_at = time.monotonic()
                    self.recorder.save_posterior(self.controller.state())
            except Exception:
                log.exception("a round of learning failed; the next one goes on")

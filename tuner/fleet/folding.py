"""The thread that folds what the data path and plug-ins measured, learns, and tells the data path what to choose by."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from tuner.fleet.link import Steer
from tuner.fleet.metrics import FleetMetrics
from tuner.fleet.pools.telemetry import features_of, request_stats
from tuner.fleet.steering import FleetSteering
from tuner.fleet.types import Effect, Exchange, Lever, Upstream
from tuner.metrics import Metrics
from tuner.recorder import Recorder
from tuner.telemetry import TelemetryQueue

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
"""How often what was measured is folded, and what is steered may change."""
POSTERIOR_SECONDS = 15.0
"""How often the posterior is handed to the store."""


class Folding:
    """The tuner's thread of a sidecar."""

    def __init__(
        self,
        steering: FleetSteering,
        metrics: Metrics,
        fleet_metrics: FleetMetrics,
        recorder: Recorder,
        arrived: Callable[[], list[Exchange]],
        reports: TelemetryQueue,
        steer: Callable[[Steer], bool],
    ) -> None:
        """
        Args:
            arrived: takes the exchanges that came since its last call.
            reports: what plug-ins reported.
            steer: hands a word to the data path; False where that was not taken, and is tried again.
        """
        self._steering = steering
        self._metrics = metrics
        self._fleet_metrics = fleet_metrics
        self._recorder = recorder
        self._arrived = arrived
        self._reports = reports
        self._steer = steer
        self._consumers = (steering, metrics, recorder)
        self._with_plugin: frozenset[str] = frozenset()
        self._upstreams: tuple[Upstream, ...] = ()
        self._told: object = None
        """The snapshots that the data path chooses by."""
        self._languages: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tuner", daemon=True)

    def set_upstreams(self, upstreams: tuple[Upstream, ...]) -> None:
        """What is known of the fleet has changed; any thread may call."""
        self._upstreams = upstreams
        self._with_plugin = frozenset(one.name for one in upstreams if one.effect(Lever.PLUGIN) is Effect.WORKS)
        self._steering.set_upstreams(upstreams)

    def take_languages(self) -> dict[str, int]:
        """Requests by language since the last call."""
        taken, self._languages = self._languages, Counter()
        return dict(taken)

    def start(self) -> None:
        """Begin, also with handing what was learned to the store."""
        self._recorder.start()
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Fold what is left, and hand everything to the store, which gets `seconds` to write it."""
        self._ended.set()
        self._thread.join()
        self._tick()
        self._recorder.save_posterior(self._steering.state())
        self._recorder.close(seconds)

    def _run(self) -> None:
        saved_at = time.monotonic()
        while not self._ended.wait(TICK_SECONDS):
            try:
                self._tick()
                if time.monotonic() - saved_at >= POSTERIOR_SECONDS:
                    saved_at = time.monotonic()
                    self._recorder.save_posterior(self._steering.state())
            except Exception:
                log.exception("a round of learning failed; the next one goes on")

    def _tick(self) -> None:
        for exchange in self._arrived():
            try:
                self._fold(exchange)
            except Exception:  # one that cannot be read takes nothing from those beside it
                log.exception("an exchange with %s cannot be learned from; the others are", exchange.upstream)
        self._reports.drain(self._consumers)
        changed = self._steering.tick()
        for policy in changed:
            self._recorder.record_policy(policy)
        for guardrail in self._steering.take_moved_guardrails():
            self._recorder.record_guardrail(guardrail)
        for change in self._steering.take_found_changes():
            self._recorder.record_change(change)
        self._metrics.count_policy_changes(changed)
        self._tell()

    def _fold(self, exchange: Exchange) -> None:
        self._fleet_metrics.fold(exchange)
        if exchange.decision is not None:
            self._languages[exchange.decision.context.language] += 1
        self._steering.fold(exchange)
        if self._steering.steers_cycles and exchange.upstream in self._with_plugin:
            return  # the plug-in tells of its requests itself
        stats = request_stats(exchange, features_of(exchange))
        if stats is not None:
            self._metrics.fold_request(stats)
            self._recorder.fold_request(stats)

    def _tell(self) -> None:
        """Hand the data path what it is to choose by, where that is new."""
        now = (self._steering.fleet, self._steering.snapshot, self._upstreams)
        if now == self._told:
            return
        self._fleet_metrics.set_lanes(tuple(one.lane for one in self._steering.fleet.lanes))
        self._metrics.set_drafters(self._steering.drafters)
        if self._steer(Steer(self._steering.chosen_by(), self._upstreams or None)):
            self._told = now

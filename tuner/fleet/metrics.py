"""What /metrics of a sidecar says beside the metrics of a server: exchanges, upstreams, their drafting, plug-ins."""

import threading
from collections.abc import Iterable

from prometheus_client.core import Metric as Family

from policies.quoting import clipped, listed
from policies.types import PLAIN, UNKNOWN_LENGTH
from tuner.fleet.types import End, Exchange, Lane, ProxyState, Upstream
from tuner.fleet.vllm.plugin.messages import State
from tuner.metric_table import FLEET_METRICS, PREFIX
from tuner.tally import Tally, cumulated

LANE_LIMIT = 128
"""Lanes that have a label of their own; probing finds a few for each upstream."""
START_LIMIT = 64
"""Starts of plug-ins of one upstream whose counts are remembered."""
UNCHOSEN = "unchosen"
OTHER = "other"
UNKNOWN = "unknown"


class FleetMetrics:
    """Counts what it is told, and makes families of it; `Metrics.render` takes them as its `more`.

    Any thread may call. A lock is held while counts change or are copied, never while families are made.
    """

    def __init__(self, upstreams: Iterable[str]) -> None:
        """`upstreams` are the configured names."""
        self._names = frozenset(upstreams)
        self._lanes: set[str] = set()
        self._lock = threading.Lock()
        self._tally = Tally(FLEET_METRICS)
        for name in sorted(self._names):
            self._tally.count("upstream_restarts_total", (name,), 0)
            for source in ("metrics", "answer"):
                self._tally.count("telemetry_missing_total", (name, source), 0)
        self._state: ProxyState | None = None
        self._found: tuple[Upstream, ...] = ()
        self._ways: tuple[Lane, ...] = ()
        self._plugins: dict[str, dict[str, State]] = {}
        """The last word of each start of each plug-in, by upstream: one that is gone may come back and count on."""
        self._present: dict[str, set[str]] = {}

    def fold(self, exchange: Exchange) -> None:
        """Count one exchange."""
        upstream = self._upstream(exchange.upstream)
        with self._lock:
            lane = UNCHOSEN if not exchange.lane else exchange.lane if exchange.lane in self._lanes else OTHER
            self._tally.count("exchanges_total", (upstream, lane, exchange.end.value), 1)
            if exchange.streamed and exchange.status < 400 and exchange.first_byte_seconds > 0.0:
                self._tally.observe("upstream_first_byte_seconds", (upstream,), exchange.first_byte_seconds)
            # Only generations have a decision; what else passes through has no tokens to tell of.
            if exchange.decision is not None and exchange.end is End.DONE and exchange.output_tokens is None:
                self._tally.count("telemetry_missing_total", (upstream, "answer"), 1)

    def count_drafting(
        self, upstream: str, *, cycles: float | None, drafted: float | None, accepted: float | None
    ) -> None:
        """Add what an upstream's own counters grew by, bonus tokens not counted; None for what it does not tell."""
        counts = {
            "upstream_cycles_total": cycles,
            "upstream_drafted_tokens_total": drafted,
            "upstream_accepted_tokens_total": accepted,
        }
        with self._lock:
            for name, amount in counts.items():
                if amount is not None:
                    self._tally.count(name, (self._upstream(upstream),), amount)

    def count_missing(self, upstream: str) -> None:
        """A reading of its metrics failed, or had no counts."""
        with self._lock:
            self._tally.count("telemetry_missing_total", (self._upstream(upstream), "metrics"), 1)

    def count_restart(self, upstream: str) -> None:
        """It began anew: its counters fell, or it tells of another version or other models."""
        with self._lock:
            self._tally.count("upstream_restarts_total", (self._upstream(upstream),), 1)

    def set_state(self, state: ProxyState) -> None:
        """The last reading of the data path."""
        with self._lock:
            self._state = state

    def set_upstreams(self, upstreams: tuple[Upstream, ...]) -> None:
        """What is known of the upstreams now."""
        with self._lock:
            self._found = upstreams

    def set_lanes(self, lanes: tuple[Lane, ...]) -> None:
        """The lanes that there are now; those that there were keep their labels."""
        with self._lock:
            self._ways = lanes
            for lane in lanes:
                if len(self._lanes) < LANE_LIMIT:
                    self._lanes.add(lane.name)

    def fold_plugin(self, upstream: str, instance: str, state: State) -> None:
        """What one start of vLLM's plug-in says of itself; its counts are since that start."""
        with self._lock:
            name = self._upstream(upstream)
            instances, present = self._plugins.setdefault(name, {}), self._present.setdefault(name, set())
            before = instances.get(instance)
            for metric, now, then in (
                ("plugin_steps_total", state.steps, before.steps if before else 0),
                ("plugin_seconds_total", state.own_seconds, before.own_seconds if before else 0.0),
                ("plugin_faults_total", state.faults, before.faults if before else 0),
                ("plugin_reports_dropped_total", state.dropped, before.dropped if before else 0),
                ("plugin_unread_words_total", state.unread, before.unread if before else 0),
            ):
                self._tally.count(metric, (name,), now - then)
            instances[instance] = state
            present.add(instance)
            gone = next((one for one in instances if one not in present), None)
            if gone is not None and len(instances) > START_LIMIT:
                del instances[gone]

    def forget_plugin(self, upstream: str, instance: str) -> None:
        """Its connection ended; what it counted stays."""
        with self._lock:
            self._present.get(self._upstream(upstream), set()).discard(instance)

    @property
    def any_up(self) -> bool:
        """Whether requests are sent to any upstream: what ``engine_up`` says of a sidecar."""
        state = self._state
        return state is not None and any(upstream.healthy for upstream in state.upstreams)

    def families(self) -> list[Family]:
        """One for each metric of `FLEET_METRICS`."""
        with self._lock:
            told = self._tally.copy()
            state, found, ways = self._state, self._found, self._ways
            steered = {
                name: bool(present) and all(self._plugins[name][one].steered for one in present)
                for name, present in self._present.items()
            }
        for name, all_steered in steered.items():
            told.set("plugin_steered", (name,), all_steered)
        for upstream in found:
            self._add_upstream(told, upstream)
        for lane in ways:
            if lane.name in self._lanes:
                length = UNKNOWN if lane.block_length == UNKNOWN_LENGTH else str(lane.block_length)
                labels = (lane.name, self._upstream(lane.upstream), clipped(lane.drafter), length)
                told.set("lane_info", labels, 1)
        if state is None:
            return told.families()
        told.set("proxy_streams", (), state.streams)
        told.set("exchanges_dropped_total", (), state.dropped)
        told.set("chooser_faults_total", (), state.chooser_faults)
        for one in state.upstreams:
            told.set("upstream_up", (self._upstream(one.name),), one.healthy)
            told.set("upstream_in_flight", (self._upstream(one.name),), one.in_flight)
        made = told.families()
        # A whole histogram is handed over, without the sum of its values.
        overhead = next(family for family in made if family.name == f"{PREFIX}proxy_overhead_seconds")
        for bound, count in cumulated(state.overhead_seconds) if state.overhead_seconds else ():
            overhead.add_sample(f"{overhead.name}_bucket", {"le": bound}, count)
        return made

    def _add_upstream(self, told: Tally, upstream: Upstream) -> None:
        name = self._upstream(upstream.name)
        # What may draft is not called plain.
        drafter = UNKNOWN if upstream.drafter == PLAIN and upstream.speculates is not False else upstream.drafter
        length = UNKNOWN if upstream.block_length == 0 and upstream.speculates is not False else upstream.block_length
        labels = (name, upstream.engine.value, clipped(upstream.version), clipped(listed(upstream.models)))
        told.set("upstream_info", (*labels, clipped(drafter), str(length)), 1)
        for capability in upstream.capabilities:
            told.set("capability_info", (name, capability.lever.value, capability.effect.value), 1)

    def _upstream(self, name: str) -> str:
        return name if name in self._names else OTHER

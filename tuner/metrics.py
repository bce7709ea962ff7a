"""What /metrics says: counters and histograms folded from telemetry, and gauges read from one policy snapshot.

Nothing here is global: the counts live in a `Metrics` object, and each rendering has a registry of its own.
"""

import importlib.metadata
import platform
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from policies.stats import BlockEnd, CycleStats, EngineInfo, EngineStatus, FinishReason, RequestStats, SequenceStats
from policies.types import OTHER_ROUTE, UNDETERMINED, Policy, Reason
from tuner.guardrails import Standing
from tuner.learning import ChangeKind
from tuner.metric_table import LANGUAGE_LIMIT, LENGTH_BUCKETS, LONGEST_BUCKET, METRICS, PREFIX, Kind, Metric
from tuner.snapshot import PolicySnapshot

__all__ = ["CONTENT_TYPE", "METRICS", "Gauges", "Kind", "Metric", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `Metrics.render` returns: the Prometheus text format."""

OTHER = "other"
ALWAYS_NAMED = ("code", UNDETERMINED)
"""Labels of languages that need not be seen first and do not count against the limit."""
EVERYWHERE = "*"

Labels = tuple[str, ...]
Samples = dict[str, dict[Labels, float]]
"""Values by metric name (without prefix) and label values."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """Readings that neither telemetry nor the snapshot carries, taken when /metrics is asked."""

    engine: EngineStatus | None
    """None while the engine does not answer."""
    store_up: bool
    telemetry_dropped: int
    """Events, since the start."""
    recorder_dropped: int
    """Rows, since the start."""


class Metrics:
    """A telemetry `Consumer` that counts, and renders its counts with a snapshot.

    One thread folds; any thread renders or counts policy changes. A lock is held while counts change or are copied,
    never while text is made.
    """

    def __init__(
        self,
        routes: Iterable[str],
        info: EngineInfo,
        *,
        language_limit: int = LANGUAGE_LIMIT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`routes` are the configured ones; `clock` gives Unix seconds, to leave out what has expired."""
        self._routes = frozenset((*routes, OTHER_ROUTE))
        self._info = info
        self._drafters = frozenset(info.drafters)
        self._language_limit = language_limit
        self._clock = clock
        self._languages = set(ALWAYS_NAMED)
        self._build = (importlib.metadata.version("paceline"), platform.python_version())
        self._lock = threading.Lock()
        self._counts: defaultdict[str, defaultdict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: defaultdict[str, dict[Labels, _Histogram]] = defaultdict(dict)
        for window in ("plain", "served"):
            self._count("cycles_total", (window,), 0.0)
        for name in (
            "decision_errors_total",
            "verify_seconds_total",
            "prefill_seconds_total",
            "prefill_tokens_total",
            "reused_tokens_total",
            "preemptions_total",
            "shadow_seconds_total",
        ):
            self._count(name, (), 0.0)
        for drafter in info.drafters:
            self._count("draft_seconds_total", (drafter,), 0.0)

    def set_drafters(self, drafters: Iterable[str]) -> None:
        """The engine has others now; those that it had keep their labels."""
        with self._lock:
            self._drafters |= frozenset(drafters)

    def fold_cycle(self, stats: CycleStats) -> None:
        """Count one cycle; one without decoding sequences counts for its prefill only."""
        with self._lock:
            self._count("prefill_seconds_total", (), stats.prefill_seconds)
            self._count("prefill_tokens_total", (), stats.prefill_tokens)
            self._count("reused_tokens_total", (), stats.reused_tokens)
            self._count("preemptions_total", (), stats.preemptions)
            if not stats.load:
                return
            window = "plain" if stats.window.plain else "served"
            self._count("cycles_total", (window,), 1)
            self._observe("cycle_seconds", (window,), stats.cycle_seconds)
            self._count("verify_seconds_total", (), stats.verify_seconds)
            self._count("shadow_seconds_total", (), stats.shadow_seconds + stats.copying_seconds)
            for drafter, seconds in stats.draft_seconds.items():
                self._count("draft_seconds_total", (self._drafter(drafter),), seconds)
            for sequence in stats.sequences:
                self._fold_sequence(sequence)

    def fold_request(self, stats: RequestStats) -> None:
        """Count one finished request."""
        with self._lock:
            context = stats.decision.context
            route = self._route(context.route)
            arm = (route, self._language(context.language), self._drafter(stats.decision.drafter))
            self._count("requests_total", (*arm, stats.finish.value), 1)
            self._count("decisions_total", (route, stats.decision.reason.value), 1)
            self._count("decision_errors_total", (), stats.decision.reason is Reason.ERROR)
            self._count("looped_requests_total", (route,), stats.looped)
            self._count("invalid_outputs_total", (route,), stats.valid is False)
            for shadow in stats.decision.shadows:
                self._count("shadowed_requests_total", (self._drafter(shadow),), 1)
            self._count("output_tokens_total", arm, stats.output_tokens)
            self._count("request_draft_seconds_total", arm, stats.draft_seconds)
            self._count("request_verify_seconds_total", arm, stats.verify_seconds)
            if stats.output_tokens == 0:
                return
            self._observe("queue_seconds", (route,), stats.queue_seconds)
            self._observe("time_to_first_token_seconds", arm, stats.ttft_seconds)
            self._observe("decode_seconds", arm, stats.decode_seconds)
            if stats.tpot_seconds is not None and stats.finish is not FinishReason.ERROR:
                bucket = _length_bucket(stats.output_tokens)
                self._observe("time_per_output_token_seconds", (*arm, bucket), stats.tpot_seconds)

    def count_policy_changes(self, changed: Iterable[Policy]) -> None:
        """Count new policy versions, as `Controller.tick` returns them."""
        with self._lock:
            for policy in changed:
                context = policy.context
                labels = (self._route(context.route), self._language(context.language), policy.reason.value)
                self._count("policy_changes_total", labels, 1)

    def render(self, snapshot: PolicySnapshot, gauges: Gauges) -> bytes:
        """The Prometheus text format, as `CONTENT_TYPE`."""
        with self._lock:
            samples: Samples = {name: dict(values) for name, values in self._counts.items()}
            self._add_policies(samples, snapshot)
            self._add_operators(samples, snapshot)
            histograms = {
                name: {labels: histogram.cumulative() for labels, histogram in values.items()}
                for name, values in self._histograms.items()
            }
        self._add_measurements(samples, snapshot)
        _add_gauges(samples, gauges)
        samples["engine_info"] = {(self._info.model, self._info.dtype, self._info.device): 1.0}
        samples["build_info"] = {self._build: 1.0}
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(_families(samples, histograms)))
        return generate_latest(registry)

    def _fold_sequence(self, sequence: SequenceStats) -> None:
        context = sequence.context
        drafter = self._drafter(sequence.drafter)
        arm = (self._route(context.route), self._language(context.language), drafter)
        self._count("emitted_tokens_total", arm, sequence.emitted)
        self._count("proposed_tokens_total", arm, sequence.proposed)
        self._count("verified_tokens_total", arm, sequence.verified)
        self._count("accepted_tokens_total", arm, sequence.accepted)
        for position in range(1, sequence.accepted + 1):
            self._count("accepted_at_position_total", (drafter, str(position)), 1)
        if sequence.end is BlockEnd.REJECTED:
            self._count("rejected_at_position_total", (drafter, str(sequence.accepted + 1)), 1)

    def _add_policies(self, samples: Samples, snapshot: PolicySnapshot) -> None:
        for (route, language), policy in snapshot.policies.items():
            # Two contexts may not share a series: what has no label of its own is left out, not summed.
            if self._route(route) != route or self._language(language) != language:
                continue
            context = (route, language)
            labels = (*context, self._drafter(policy.arm.drafter), policy.state.value, policy.reason.value)
            _set(samples, "policy_info", (*labels, str(policy.version)), 1.0)
            for load in _charted_loads(self._info.slots):
                _set(samples, "policy_block_length", (*context, str(load)), policy.arm.block_length(load))
            speedup = policy.evidence.speedup
            if speedup is not None:
                _set(samples, "speedup_ratio", context, speedup.estimate)
                _set(samples, "speedup_low_ratio", context, speedup.low)
                _set(samples, "speedup_high_ratio", context, speedup.high)
            for load, gain in policy.evidence.predicted_speedup:
                _set(samples, "predicted_speedup_ratio", (*context, str(load)), gain)

    def _add_operators(self, samples: Samples, snapshot: PolicySnapshot) -> None:
        """What operators did: pins and kill switches that have not expired."""
        now = self._clock()
        pins = [pin for pin in snapshot.pins if pin.expires_at > now]
        _set(samples, "pins", (), len(pins))
        for pin in pins:
            known = pin.language == EVERYWHERE or self._language(pin.language) == pin.language
            if known and self._route(pin.route) == pin.route:
                _set(samples, "pin_expiry_timestamp_seconds", (pin.route, pin.language), pin.expires_at)
        killed = {kill.route for kill in snapshot.kill_switches if kill.expires_at is None or kill.expires_at > now}
        for route in (EVERYWHERE, *sorted(self._routes)):
            _set(samples, "kill_switch_active", (route,), route in killed)

    def _add_measurements(self, samples: Samples, snapshot: PolicySnapshot) -> None:
        throughput = snapshot.throughput
        _set(samples, "window_tokens_total", ("plain",), throughput.plain_tokens)
        _set(samples, "window_tokens_total", ("served",), throughput.tuned_tokens)
        _set(samples, "window_seconds_total", ("plain",), throughput.plain_seconds)
        _set(samples, "window_seconds_total", ("served",), throughput.tuned_seconds)
        _set(samples, "switchback_share_ratio", (), snapshot.switchback_share)
        _set(samples, "snapshot_timestamp_seconds", (), snapshot.created_at)
        if snapshot.cost_error is not None:
            _set(samples, "cost_model_error_ratio", (), snapshot.cost_error)
        for cell in snapshot.baseline:
            _set(samples, "baseline_cycle_seconds", (str(cell.load),), cell.seconds)
            if cell.load == 1 and cell.seconds > 0:
                _set(samples, "linear_floor_ratio", (), self._info.linear_seconds / cell.seconds)

        if snapshot.engine_gain is not None:
            _set(samples, "engine_speedup_ratio", (), snapshot.engine_gain.estimate)
            _set(samples, "engine_speedup_low_ratio", (), snapshot.engine_gain.low)
            _set(samples, "engine_speedup_high_ratio", (), snapshot.engine_gain.high)
        for kind in ChangeKind:
            _set(samples, "changes_found_total", (kind,), snapshot.changes_found.get(kind, 0))
        _set(samples, "safety_budget_seconds", (), snapshot.safety.budget_seconds)
        _set(samples, "safety_budget_cap_seconds", (), snapshot.safety.cap_seconds)
        _set(samples, "safety_hold", (), snapshot.cycle_policy.hold)
        _set(samples, "safety_holds_total", (), snapshot.safety.held)
        for state in snapshot.guardrails:
            if state.route == EVERYWHERE or self._route(state.route) == state.route:
                labels = (state.route, state.check.value)
                _set(samples, "guardrail_held", labels, state.standing is not Standing.WATCHING)
                _set(samples, "guardrail_trips_total", labels, state.trips)

    def _count(self, name: str, labels: Labels, amount: float) -> None:
        self._counts[name][labels] += amount

    def _observe(self, name: str, labels: Labels, value: float) -> None:
        histograms = self._histograms[name]
        if labels not in histograms:
            histograms[labels] = _Histogram(METRICS[PREFIX + name].buckets)
        histograms[labels].observe(value)

    def _route(self, route: str) -> str:
        return route if route in self._routes else OTHER_ROUTE

    def _drafter(self, drafter: str) -> str:
        return drafter if drafter in self._drafters else OTHER

    def _language(self, language: str) -> str:
        """The label of a language. The first `language_limit` to be seen keep their names: a client's header may
        name any language, and series must not grow with it."""
        if language not in self._languages:
            if len(self._languages) - len(ALWAYS_NAMED) >= self._language_limit:
                return OTHER
            self._languages.add(language)
        return language


class _Histogram:
    """Counts of values by upper bound, with their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """([(upper bound, values at or below it)], sum), +Inf last."""
        buckets, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self._sum


class _Families(Collector):
    """A collector over families that are already made."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._made = families

    def collect(self) -> Iterable[Family]:
        return self._made


def _families(
    samples: Samples, histograms: Mapping[str, Mapping[Labels, tuple[list[tuple[str, float]], float]]]
) -> list[Family]:
    """One family for each metric of the table, in its order; one without samples has its HELP and TYPE only."""
    made: list[Family] = []
    for metric in METRICS.values():
        name = metric.name.removeprefix(PREFIX)
        if metric.kind is Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, (buckets, total) in histograms.get(name, {}).items():
                histogram.add_metric(labels, buckets, total)
            made.append(histogram)
            continue
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = kind(metric.name, metric.meaning, labels=metric.labels)
        for labels, value in samples.get(name, {}).items():
            family.add_metric(labels, value)
        made.append(family)
    return made


def _add_gauges(samples: Samples, gauges: Gauges) -> None:
    _set(samples, "engine_up", (), gauges.engine is not None)
    _set(samples, "store_up", (), gauges.store_up)
    _set(samples, "telemetry_dropped_total", (), gauges.telemetry_dropped)
    _set(samples, "recorder_dropped_total", (), gauges.recorder_dropped)
    if gauges.engine is not None:
        _set(samples, "running_sequences", (), gauges.engine.running)
        _set(samples, "waiting_requests", (), gauges.engine.waiting)
        _set(samples, "free_kv_blocks", (), gauges.engine.free_blocks)


def _set(samples: Samples, name: str, labels: Labels, value: float) -> None:
    samples.setdefault(name, {})[labels] = float(value)


def _charted_loads(slots: int) -> list[int]:
    """1, 2, 4 and so on, and the number of slots."""
    return [*(1 << power for power in range(slots.bit_length()) if 1 << power < slots), slots]


def _length_bucket(output_tokens: int) -> str:
    return next((label for largest, label in LENGTH_BUCKETS if output_tokens <= largest), LONGEST_BUCKET)

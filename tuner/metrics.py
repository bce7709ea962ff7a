"""What /metrics says: counters and histograms folded from telemetry, and gauges read from one policy snapshot.

Nothing here is global: the counts live in a `Metrics` object, and each rendering has a registry of its own.
"""

import importlib.metadata
import platform
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import Metric as Family

from policies.stats import BlockEnd, CycleStats, EngineInfo, EngineStatus, FinishReason, RequestStats, SequenceStats
from policies.types import OTHER_ROUTE, UNDETERMINED, UNKNOWN_LENGTH, Policy, Reason
from tuner.guardrails import Standing
from tuner.learning import ChangeKind
from tuner.metric_table import FLEET_METRICS, LANGUAGE_LIMIT, LENGTH_BUCKETS, LONGEST_BUCKET, METRICS, Kind, Metric
from tuner.snapshot import PolicySnapshot
from tuner.tally import Tally, page

__all__ = ["CONTENT_TYPE", "FLEET_METRICS", "METRICS", "Gauges", "Kind", "Metric", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `Metrics.render` returns: the Prometheus text format."""

OTHER = "other"
ALWAYS_NAMED = ("code", UNDETERMINED)
"""Labels of languages that need not be seen first and do not count against the limit."""
EVERYWHERE = "*"


@dataclass(frozen=True, slots=True)
class Gauges:
    """Readings that neither telemetry nor the snapshot carries, taken when /metrics is asked."""

    engine: EngineStatus | None
    """None while the engine does not answer, and where it is not ours."""
    engine_up: bool
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
        unknown: frozenset[str] = frozenset(),
        language_limit: int = LANGUAGE_LIMIT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`routes` are the configured ones; `unknown` are the names, in full, of what nobody measures here: they get no
        number; `clock` gives Unix seconds, to leave out what has expired."""
        self._routes = frozenset((*routes, OTHER_ROUTE))
        self._info = info
        self._unknown = unknown
        self._drafters = frozenset(info.drafters)
        self._language_limit = language_limit
        self._clock = clock
        self._languages = set(ALWAYS_NAMED)
        self._build = (importlib.metadata.version("paceline"), platform.python_version())
        self._lock = threading.Lock()
        self._tally = Tally(METRICS)
        for window in ("plain", "served"):
            self._tally.count("cycles_total", (window,), 0.0)
        for name in (
            "decision_errors_total",
            "verify_seconds_total",
            "prefill_seconds_total",
            "prefill_tokens_total",
            "reused_tokens_total",
            "preemptions_total",
            "shadow_seconds_total",
        ):
            self._tally.count(name, (), 0.0)
        for drafter in info.drafters:
            self._tally.count("draft_seconds_total", (drafter,), 0.0)

    def set_drafters(self, drafters: Iterable[str]) -> None:
        """The engine has others now; those that it had keep their labels."""
        with self._lock:
            self._drafters |= frozenset(drafters)

    def fold_cycle(self, stats: CycleStats) -> None:
        """Count one cycle; one without decoding sequences counts for its prefill only."""
        with self._lock:
            self._tally.count("prefill_seconds_total", (), stats.prefill_seconds)
            self._tally.count("prefill_tokens_total", (), stats.prefill_tokens)
            self._tally.count("reused_tokens_total", (), stats.reused_tokens)
            self._tally.count("preemptions_total", (), stats.preemptions)
            if not stats.load:
                return
            window = "plain" if stats.window.plain else "served"
            self._tally.count("cycles_total", (window,), 1)
            if stats.cycle_seconds > 0.0:
                self._tally.observe("cycle_seconds", (window,), stats.cycle_seconds)
            self._tally.count("verify_seconds_total", (), stats.verify_seconds)
            self._tally.count("shadow_seconds_total", (), stats.shadow_seconds + stats.copying_seconds)
            for drafter, seconds in stats.draft_seconds.items():
                self._tally.count("draft_seconds_total", (self._drafter(drafter),), seconds)
            for sequence in stats.sequences:
                self._fold_sequence(sequence)

    def fold_request(self, stats: RequestStats) -> None:
        """Count one finished request."""
        with self._lock:
            context = stats.decision.context
            route = self._route(context.route)
            arm = (route, self._language(context.language), self._drafter(stats.decision.drafter))
            self._tally.count("requests_total", (*arm, stats.finish.value), 1)
            self._tally.count("decisions_total", (route, stats.decision.reason.value), 1)
            self._tally.count("decision_errors_total", (), stats.decision.reason is Reason.ERROR)
            self._tally.count("looped_requests_total", (route,), stats.looped)
            if stats.valid is not None:
                self._tally.count("invalid_outputs_total", (route,), not stats.valid)
            for shadow in stats.decision.shadows:
                self._tally.count("shadowed_requests_total", (self._drafter(shadow),), 1)
            if stats.output_tokens == 0:  # none, or none that anybody counted
                return
            self._tally.count("output_tokens_total", arm, stats.output_tokens)
            self._tally.count("request_draft_seconds_total", arm, stats.draft_seconds)
            self._tally.count("request_verify_seconds_total", arm, stats.verify_seconds)
            self._tally.observe("queue_seconds", (route,), stats.queue_seconds)
            if stats.ttft_seconds > 0.0:
                self._tally.observe("time_to_first_token_seconds", arm, stats.ttft_seconds)
            if stats.output_tokens > 1 and stats.decode_seconds <= 0.0:  # in one piece: nobody timed its tokens
                return
            self._tally.observe("decode_seconds", arm, stats.decode_seconds)
            if stats.tpot_seconds is not None and stats.finish is not FinishReason.ERROR:
                bucket = _length_bucket(stats.output_tokens)
                self._tally.observe("time_per_output_token_seconds", (*arm, bucket), stats.tpot_seconds)

    def count_policy_changes(self, changed: Iterable[Policy]) -> None:
        """Count new policy versions, as `Controller.tick` returns them."""
        with self._lock:
            for policy in changed:
                context = policy.context
                labels = (self._route(context.route), self._language(context.language), policy.reason.value)
                self._tally.count("policy_changes_total", labels, 1)

    def render(self, snapshot: PolicySnapshot, gauges: Gauges, more: Iterable[Family] = ()) -> bytes:
        """The Prometheus text format, as `CONTENT_TYPE`; `more` are families that stand behind those of `METRICS`."""
        with self._lock:
            told = self._tally.copy()
            self._add_policies(told, snapshot)
            self._add_operators(told, snapshot)
        self._add_measurements(told, snapshot)
        _add_gauges(told, gauges)
        told.set("engine_info", (self._info.model, self._info.dtype, self._info.device), 1)
        told.set("build_info", self._build, 1)
        return page((*told.families(self._unknown), *more))

    def _fold_sequence(self, sequence: SequenceStats) -> None:
        context = sequence.context
        drafter = self._drafter(sequence.drafter)
        arm = (self._route(context.route), self._language(context.language), drafter)
        self._tally.count("emitted_tokens_total", arm, sequence.emitted)
        self._tally.count("proposed_tokens_total", arm, sequence.proposed)
        self._tally.count("verified_tokens_total", arm, sequence.verified)
        self._tally.count("accepted_tokens_total", arm, sequence.accepted)
        for position in range(1, sequence.accepted + 1):
            self._tally.count("accepted_at_position_total", (drafter, str(position)), 1)
        if sequence.end is BlockEnd.REJECTED:
            self._tally.count("rejected_at_position_total", (drafter, str(sequence.accepted + 1)), 1)

    def _add_policies(self, told: Tally, snapshot: PolicySnapshot) -> None:
        for (route, language), policy in snapshot.policies.items():
            # Two contexts may not share a series: what has no label of its own is left out, not summed.
            if self._route(route) != route or self._language(language) != language:
                continue
            context = (route, language)
            labels = (*context, self._drafter(policy.arm.drafter), policy.state.value, policy.reason.value)
            told.set("policy_info", (*labels, str(policy.version)), 1)
            for load in _charted_loads(self._info.slots):
                length = policy.arm.block_length(load)
                if length != UNKNOWN_LENGTH:
                    told.set("policy_block_length", (*context, str(load)), length)
            speedup = policy.evidence.speedup
            if speedup is not None:
                told.set("speedup_ratio", context, speedup.estimate)
                told.set("speedup_low_ratio", context, speedup.low)
                told.set("speedup_high_ratio", context, speedup.high)
            for load, gain in policy.evidence.predicted_speedup:
                told.set("predicted_speedup_ratio", (*context, str(load)), gain)

    def _add_operators(self, told: Tally, snapshot: PolicySnapshot) -> None:
        """What operators did: pins and kill switches that have not expired."""
        now = self._clock()
        pins = [pin for pin in snapshot.pins if pin.expires_at > now]
        told.set("pins", (), len(pins))
        for pin in pins:
            known = pin.language == EVERYWHERE or self._language(pin.language) == pin.language
            if known and self._route(pin.route) == pin.route:
                told.set("pin_expiry_timestamp_seconds", (pin.route, pin.language), pin.expires_at)
        killed = {kill.route for kill in snapshot.kill_switches if kill.expires_at is None or kill.expires_at > now}
        for route in (EVERYWHERE, *sorted(self._routes)):
            told.set("kill_switch_active", (route,), route in killed)

    def _add_measurements(self, told: Tally, snapshot: PolicySnapshot) -> None:
        throughput = snapshot.throughput
        told.set("window_tokens_total", ("plain",), throughput.plain_tokens)
        told.set("window_tokens_total", ("served",), throughput.tuned_tokens)
        told.set("window_seconds_total", ("plain",), throughput.plain_seconds)
        told.set("window_seconds_total", ("served",), throughput.tuned_seconds)
        told.set("switchback_share_ratio", (), snapshot.switchback_share)
        told.set("snapshot_timestamp_seconds", (), snapshot.created_at)
        if snapshot.cost_error is not None:
            told.set("cost_model_error_ratio", (), snapshot.cost_error)
        for cell in snapshot.baseline:
            told.set("baseline_cycle_seconds", (str(cell.load),), cell.seconds)
            if cell.load == 1 and cell.seconds > 0:
                told.set("linear_floor_ratio", (), self._info.linear_seconds / cell.seconds)
        if snapshot.engine_gain is not None:
            told.set("engine_speedup_ratio", (), snapshot.engine_gain.estimate)
            told.set("engine_speedup_low_ratio", (), snapshot.engine_gain.low)
            told.set("engine_speedup_high_ratio", (), snapshot.engine_gain.high)
        for kind in ChangeKind:
            told.set("changes_found_total", (kind,), snapshot.changes_found.get(kind, 0))
        told.set("safety_budget_seconds", (), snapshot.safety.budget_seconds)
        told.set("safety_budget_cap_seconds", (), snapshot.safety.cap_seconds)
        told.set("safety_hold", (), snapshot.cycle_policy.hold)
        told.set("safety_holds_total", (), snapshot.safety.held)
        for state in snapshot.guardrails:
            if state.route == EVERYWHERE or self._route(state.route) == state.route:
                labels = (state.route, state.check.value)
                told.set("guardrail_held", labels, state.standing is not Standing.WATCHING)
                told.set("guardrail_trips_total", labels, state.trips)

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


def _add_gauges(told: Tally, gauges: Gauges) -> None:
    told.set("engine_up", (), gauges.engine_up)
    told.set("store_up", (), gauges.store_up)
    told.set("telemetry_dropped_total", (), gauges.telemetry_dropped)
    told.set("recorder_dropped_total", (), gauges.recorder_dropped)
    if gauges.engine is not None:
        told.set("running_sequences", (), gauges.engine.running)
        told.set("waiting_requests", (), gauges.engine.waiting)
        told.set("free_kv_blocks", (), gauges.engine.free_blocks)


def _charted_loads(slots: int) -> list[int]:
    """1, 2, 4 and so on, and the number of slots."""
    return [*(1 << power for power in range(slots.bit_length()) if 1 << power < slots), slots]


def _length_bucket(output_tokens: int) -> str:
    return next((label for largest, label in LENGTH_BUCKETS if output_tokens <= largest), LONGEST_BUCKET)

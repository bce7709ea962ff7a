"""What the admin API answers with. Shapes are an interface: fields are added, never renamed."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.decision_id import DecisionFields
from policies.ladder import kill_for, pin_for
from policies.records import SampledDecision
from policies.types import Interval, KillSwitch, LoadStep, Mode, Pin, Policy, PolicyState, Reason
from tuner.api.explain import REASON_SENTENCES, Explanation, explain
from tuner.guardrails import GuardrailState, Standing
from tuner.price import Cost, cost_per_million
from tuner.safety import SafetyState
from tuner.settings import RouteSettings
from tuner.snapshot import BaselineCell, PolicySnapshot, Throughput


@dataclass(frozen=True, slots=True)
class StoreView:
    """The SQL store."""

    up: bool
    dropped: int


@dataclass(frozen=True, slots=True)
class CapabilityView:
    """Something that an upstream may let be steered, tested by its effect."""

    lever: str
    effect: str
    sentence: str


@dataclass(frozen=True, slots=True)
class UpstreamView:
    """One server behind a sidecar."""

    name: str
    url: str
    engine: str
    version: str
    models: tuple[str, ...]
    speculates: bool | None
    """None while nobody knows."""
    drafter: str
    block_length: int
    """0 where it decodes plain, or nobody knows."""
    healthy: bool | None
    """None before the data path has told."""
    in_flight: int
    sentence: str
    """Why it is not healthy."""
    capabilities: tuple[CapabilityView, ...]


@dataclass(frozen=True, slots=True)
class StatusView:
    """``GET /api/v1/status``."""

    version: str
    model: str | None
    """None until the first context was seen."""
    ready: bool
    store: StoreView
    snapshot_version: int
    snapshot_at: float
    policies: Mapping[PolicyState, int]
    """How many contexts are in each state."""
    requests: int
    looped_requests: int | None
    """None where nobody looks, as of a sidecar, which sees no tokens."""
    plain_window: bool
    switchback_share: float
    throughput: Throughput
    baseline: tuple[BaselineCell, ...]
    cost_error: float | None
    pins: tuple[Pin, ...]
    kill_switches: tuple[KillSwitch, ...]
    drafters: tuple[str, ...] = ()
    """Those that a pin may name."""
    cost_per_million_tokens: Cost | None = None
    """None unless engine.price_per_hour is set."""
    gain: Interval | None = None
    """Of everything that is served, at equal load; None while it is not known."""
    shadow_share: float | None = None
    """Share of the engine's busy seconds that shadows took, since the start."""
    safety: SafetyState = field(default_factory=SafetyState)
    hold: bool = False
    """The safety budget is spent, so that only pins speculate."""
    changes_found: Mapping[str, int] = field(default_factory=dict)
    """Since the start, by kind."""
    guardrails: tuple[GuardrailState, ...] = ()
    """Those that hold a route, or let only a share of its requests try again."""
    plain_sessions: bool = False
    """Plain is measured on sessions that a plain pool serves: `switchback_share` is one of sessions."""
    upstreams: tuple[UpstreamView, ...] = ()
    """Of a sidecar."""
    unmet: str = ""
    """Why a kill switch or a pin to plain that is in force cannot be met, with the remedy; empty where it can."""


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """One line of ``GET /api/v1/policies``."""

    route: str
    language: str
    mode: Mode
    state: PolicyState
    reason: Reason
    version: int
    drafter: str
    schedule: tuple[LoadStep, ...]
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    pinned: bool
    requests: int
    copier: str | None = None
    """The drafter that proposes first, by copying, and is in the gains; None where none does."""
    copier_most_load: int | None = None
    """The load up to which it does."""


@dataclass(frozen=True, slots=True)
class PoliciesView:
    """``GET /api/v1/policies``."""

    policies: tuple[PolicySummary, ...]


@dataclass(frozen=True, slots=True)
class PolicyView:
    """``GET /api/v1/policies/{route}/{language}``."""

    route: str
    language: str
    mode: Mode
    policy: Policy | None
    """None before the first traffic."""
    pin: Pin | None
    """The pin in force; its language may be ``*``."""
    kill_switch: KillSwitch | None
    explanation: Explanation
    unmet: str = ""
    """Why what is ordered here, plain, cannot be met; empty where it can, or nothing is ordered."""


@dataclass(frozen=True, slots=True)
class DraftersView:
    """``/api/v1/drafters``: those that are loaded, plain first."""

    drafters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KillSwitchView:
    """``POST /api/v1/kill-switch``."""

    route: str
    active: bool
    in_force: tuple[KillSwitch, ...]
    """Every kill switch that is on now; the one for ``*`` holds every route."""
    unmet: str = ""
    """Why what is killed cannot be served plain, with the remedy; empty where it can."""


@dataclass(frozen=True, slots=True)
class DecisionView:
    """``GET /api/v1/decisions/{id}``; the counts are null for a decision that was not sampled."""

    decision_id: str
    source: str
    """``store``, or ``id`` when everything here was read from the id."""
    route: str
    language: str
    drafter: str
    cap: int
    reason: Reason
    sentence: str
    policy_version: int
    finish: str | None = None
    output_tokens: int | None = None
    proposed: int | None = None
    verified: int | None = None
    accepted: int | None = None
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    propensity: float | None = None
    """The probability with which this drafter was given to the request; below 1 where chance chose."""


def status_view(
    snapshot: PolicySnapshot,
    version: str,
    ready: bool,
    store: StoreView,
    drafters: tuple[str, ...],
    price_per_hour: float | None,
    now: float,
    upstreams: tuple[UpstreamView, ...] = (),
) -> StatusView:
    """What is in force, in one page."""
    policies = snapshot.policies.values()
    kills = kills_in_force(snapshot, now)
    pins = tuple(pin for pin in snapshot.pins if pin.expires_at > now)
    return StatusView(
        version=version,
        model=next((policy.context.model for policy in policies), None),
        ready=ready,
        store=store,
        snapshot_version=snapshot.version,
        snapshot_at=snapshot.created_at,
        policies=Counter(policy.state for policy in policies),
        requests=sum(snapshot.requests.values()),
        looped_requests=None if upstreams else snapshot.looped_requests,
        plain_window=snapshot.cycle_policy.window.plain,
        switchback_share=snapshot.switchback_share,
        throughput=snapshot.throughput,
        baseline=snapshot.baseline,
        cost_error=snapshot.cost_error,
        pins=pins,
        kill_switches=kills,
        drafters=drafters,
        cost_per_million_tokens=_cost(snapshot.throughput, price_per_hour),
        gain=snapshot.engine_gain,
        shadow_share=snapshot.shadow_share,
        safety=snapshot.safety,
        hold=snapshot.cycle_policy.hold,
        changes_found=snapshot.changes_found,
        guardrails=tuple(state for state in snapshot.guardrails if state.standing is not Standing.WATCHING),
        plain_sessions=snapshot.plain_sessions,
        upstreams=upstreams,
        unmet=snapshot.unmet if kills or any(pin.block_length == 0 for pin in pins) else "",
    )


def _cost(found: Throughput, price_per_hour: float | None) -> Cost | None:
    if price_per_hour is None:
        return None
    tuned = found.tuned_tokens / found.tuned_seconds if found.tuned_seconds else None
    plain = found.plain_tokens / found.plain_seconds if found.plain_seconds else None
    return Cost(cost_per_million(price_per_hour, tuned), cost_per_million(price_per_hour, plain))


def kills_in_force(snapshot: PolicySnapshot, now: float) -> tuple[KillSwitch, ...]:
    """The kill switches that have not expired."""
    return tuple(kill for kill in snapshot.kill_switches if kill.expires_at is None or kill.expires_at > now)


def policies_view(snapshot: PolicySnapshot, routes: Mapping[str, RouteSettings], now: float) -> PoliciesView:
    """One line for each context that traffic has brought."""
    lines = []
    for (route, language), policy in sorted(snapshot.policies.items()):
        speedup = policy.evidence.speedup
        copier = snapshot.cycle_policy.copiers.get((route, language))
        lines.append(
            PolicySummary(
                route=route,
                language=language,
                mode=routes.get(route, RouteSettings()).mode,
                state=policy.state,
                reason=policy.reason,
                version=policy.version,
                drafter=policy.arm.drafter,
                schedule=policy.arm.schedule,
                speedup=None if speedup is None else speedup.estimate,
                speedup_low=None if speedup is None else speedup.low,
                speedup_high=None if speedup is None else speedup.high,
                pinned=pin_for(snapshot.pins, route, language, now) is not None,
                requests=snapshot.requests.get((route, language), 0),
                copier=None if copier is None else copier.drafter,
                copier_most_load=None if copier is None else copier.most_load,
            )
        )
    return PoliciesView(tuple(lines))


def policy_view(
    snapshot: PolicySnapshot, route: str, language: str, configured: RouteSettings, drafter: str, now: float
) -> PolicyView:
    """A context's policy with its explanation."""
    pin = pin_for(snapshot.pins, route, language, now)
    kill = kill_for(snapshot.kill_switches, route, now)
    ordered = kill is not None or configured.mode is Mode.OFF or (pin is not None and pin.block_length == 0)
    return PolicyView(
        route=route,
        language=language,
        mode=configured.mode,
        policy=snapshot.policies.get((route, language)),
        pin=pin,
        kill_switch=kill,
        explanation=explain(snapshot, route, language, configured, drafter, now),
        unmet=snapshot.unmet if ordered else "",
    )


def etag(view: PolicyView) -> str:
    """Changes with what a write could have been based on: the policy's version, the pin, the kill switch."""
    version = None if view.policy is None else (view.policy.version, view.policy.created_at)
    return f'"{hashlib.sha256(repr((version, view.pin, view.kill_switch)).encode()).hexdigest()[:16]}"'


def stored_decision_view(sampled: SampledDecision) -> DecisionView:
    """A decision that was sampled, with what became of its request."""
    decision = sampled.decision
    return DecisionView(
        decision_id=decision.decision_id,
        source="store",
        route=decision.context.route,
        language=decision.context.language,
        drafter=decision.drafter,
        cap=decision.cap,
        reason=decision.reason,
        sentence=REASON_SENTENCES[decision.reason],
        policy_version=decision.policy_version,
        finish=sampled.finish,
        output_tokens=sampled.output_tokens,
        proposed=sampled.proposed,
        verified=sampled.verified,
        accepted=sampled.accepted,
        ttft_seconds=sampled.ttft_seconds,
        tpot_seconds=sampled.tpot_seconds,
        propensity=decision.propensity,
    )


def read_decision_view(decision_id: str, fields: DecisionFields) -> DecisionView:
    """A decision that was not sampled, from its id."""
    return DecisionView(
        decision_id=decision_id,
        source="id",
        route=fields.route,
        language=fields.language,
        drafter=fields.drafter,
        cap=fields.cap,
        reason=fields.reason,
        sentence=REASON_SENTENCES[fields.reason],
        policy_version=fields.policy_version,
    )

"""What the tuner publishes: one immutable value, swapped whole. Readers never see half of a change."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.cycle_policy import CyclePolicy
from policies.types import PLAIN, Interval, KillSwitch, Pin, Policy
from tuner.acceptance import Curve
from tuner.guardrails import Guard, GuardrailState
from tuner.safety import SafetyState

__all__ = ["BaselineCell", "KillSwitch", "PolicySnapshot", "Throughput"]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens and engine-busy seconds inside windows, so that idle time counts for nobody."""

    tuned_tokens: int = 0
    tuned_seconds: float = 0.0
    plain_tokens: int = 0
    plain_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BaselineCell:
    """Measured plain cycles at one load."""

    load: int
    cycles: int
    seconds: float
    """Mean seconds of a plain cycle."""
    relative_error: float
    """Standard error of `seconds`, as a share of it."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """When a drafter has too little of an output to catch up with its prompt."""

    tokens_per_prompt_token: float
    """Output tokens that it needs for each token of the prompt."""
    drafter: str
    """Who drafts instead."""


@dataclass(frozen=True, slots=True)
class Guide:
    """What decisions of one context read beside its policy."""

    explored: str = PLAIN
    """The drafter while there is no verdict."""
    trials: tuple[tuple[str, float], ...] = ()
    """(drafter, probability that a request is given to it), where more than one may be the best; they sum to 1."""
    shadows: tuple[tuple[str, float], ...] = ()
    """(drafter, probability that it proposes beside a request)."""
    own_shadows: frozenset[str] = frozenset()
    """Drafters that cost little enough to propose also where their own request's cycles do not ask them."""
    output_tokens: float = 0.0
    """Mean output of the requests so far; 0.0 before any has ended."""
    shortcuts: Mapping[str, Shortcut] = field(default_factory=dict)
    """By drafter, for those that read the prompt first."""


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """Everything that a decision, the API, the metrics and the command line read."""

    version: int
    created_at: float
    policies: Mapping[tuple[str, str], Policy]
    """Keyed by (route, language)."""
    pins: tuple[Pin, ...]
    kill_switches: tuple[KillSwitch, ...]
    cycle_policy: CyclePolicy
    throughput: Throughput
    baseline: tuple[BaselineCell, ...]
    cost_error: float | None
    """Median absolute relative error of the cost model on cycles before it learned from them."""
    switchback_share: float
    """Share of time that plain windows take now; of sessions, where `plain_sessions`."""
    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Finished requests by (route, language) since the start."""
    looped_requests: int = 0
    guides: Mapping[tuple[str, str], Guide] = field(default_factory=dict)
    """Keyed by (route, language)."""
    default_guide: Guide = field(default_factory=Guide)
    """For contexts that are new."""
    safety: SafetyState = field(default_factory=SafetyState)
    changes_found: Mapping[str, int] = field(default_factory=dict)
    """How often acceptance, cost or a version was found to have changed, since the start, by kind."""
    engine_gain: Interval | None = None
    """What all that is served takes in plain, over what it takes, at equal load; None while unknown."""
    shadow_share: float | None = None
    """Share of the engine's busy seconds since the start that shadows took; None before the first cycle."""
    curves: Mapping[str, Mapping[tuple[str, str], Curve]] = field(default_factory=dict)
    """What is known of each drafter, by (route, language)."""
    guards: Mapping[str, Guard] = field(default_factory=dict)
    """What holds a route, by route; ``*`` holds all."""
    guardrails: tuple[GuardrailState, ...] = ()
    plain_sessions: bool = False
    """Plain is measured on sessions that a plain pool serves, and not in windows in which an engine decodes plain."""
    unmet: str = ""
    """Why an order to decode plain cannot be met, with the remedy; empty where it can."""

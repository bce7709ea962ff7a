"""What the chooser reads: one immutable value that crosses to the data path and is swapped whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.types import KillSwitch, Pin
from tuner.decider import RouteModes
from tuner.fleet.pools.rows import Kind, kind_of
from tuner.fleet.types import EngineKind, Lane
from tuner.guardrails import Guard
from tuner.safety import Gate

Curve = tuple[float, ...]
"""Seconds per token with 1, 2, 4, 8, ... requests in progress."""


@dataclass(frozen=True, slots=True)
class LaneSpeed:
    """A lane and what is known of it over all contexts."""

    lane: Lane
    engine: EngineKind
    version: str
    models: tuple[str, ...]
    """That may be asked for there; empty for any."""
    curve: Curve
    error: float
    """Standard error of its logarithm in a context of which nothing is known."""
    prefill_seconds: float
    """For one token of a prompt that is not in its cache."""
    crowd: Curve
    """`curve` of all lanes of its upstream, by what they served: what one more request there does to the others."""
    launched_speculating: bool = False
    """It refuses what its engine refuses under speculation, even where a request asks for a block length of 0."""
    kind: Kind = field(init=False, compare=False)
    """Of `lane`, which every choice asks for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", kind_of(self.lane))


@dataclass(frozen=True, slots=True)
class ContextSpeed:
    """What is known of one context."""

    curves: Mapping[str, Curve]
    """By lane."""
    errors: Mapping[Kind, Curve]
    """Standard errors of the logarithms, at the same loads."""
    output_tokens: float
    """Of a request, expected."""


@dataclass(frozen=True, slots=True)
class Trials:
    """What a route may still try, of lanes that are not known there."""

    gate: Gate = Gate.OPEN
    at_once: int = 2
    """Requests in progress that try something."""
    ended: int = 0
    """Those that came to an end, since the chooser was started."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """See `tuner.fleet.pools.chooser`. A lane that is not here is not chosen."""

    version: int
    model: str
    """The model of contexts whose request asks for none that is known."""
    lanes: tuple[LaneSpeed, ...]
    routes: frozenset[str]
    """Every other name is `OTHER_ROUTE`."""
    modes: RouteModes
    pins: tuple[Pin, ...] = ()
    kill_switches: tuple[KillSwitch, ...] = ()
    guards: Mapping[str, Guard] = field(default_factory=dict)
    speeds: Mapping[tuple[str, str, str], ContextSpeed] = field(default_factory=dict)
    """By (model, route, language)."""
    output_tokens: float = 128.0
    """Of a request in a context of which nothing is known."""
    plain_shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Share of sessions that are held plain to measure the baseline, by (route, language)."""
    plain_share: float = 0.0
    """In other contexts."""
    trials: Mapping[str, Trials] = field(default_factory=dict)
    """By route."""
    new_trials: Trials = field(default_factory=Trials)
    """On routes that are new."""
    policy_versions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By (route, language)."""
    learned: frozenset[tuple[str, str]] = frozenset()
    """The (route, language) of which enough is known: elsewhere requests explore."""
    margin: float = 0.02
    """A request goes elsewhere than the ones before it only if that is cheaper by this share."""
    add_usage: bool = True
    seed: int = 0

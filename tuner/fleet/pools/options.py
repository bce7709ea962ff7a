"""How a fleet's controller behaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.decider import RouteModes
from tuner.fleet.pools.lanes import Alias
from tuner.guardrails import GuardrailOptions


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How the controller behaves; the defaults are those of the configuration."""

    model: str
    """Of contexts whose request asks for none that an upstream lists."""
    routes: frozenset[str]
    modes: RouteModes
    plain_share_start: float = 0.2
    plain_share_floor: float = 0.02
    margin: float = 0.02
    max_slowdown: float = 0.02
    """The share by which a window of 500 requests of a route may be slower than plain."""
    guardrails: GuardrailOptions = field(default_factory=GuardrailOptions)
    add_usage: bool = True
    recompute_seconds: float = 1.0
    min_change_seconds: float = 5.0
    """Between two learned versions of a context."""
    seed: int = 0
    aliases: Mapping[str, Sequence[Alias]] = field(default_factory=dict)
    """Models that differ from their upstream's others in drafting only, by upstream."""

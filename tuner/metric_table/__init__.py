"""Every metric that Paceline exports: name, labels, unit, meaning, and what an operator does about it.

The tables of docs/reference.md, the dashboards' checks and what `/metrics` says are all made from the two tables here.
Label values come from closed sets, so that the number of series is bounded:

route
    The configured routes and ``other``.
language
    ``code``, ``und``, the first `LANGUAGE_LIMIT` languages that traffic brings, and ``other``.
drafter
    The engine's drafters, ``none`` included, and ``other``; of an upstream ``unknown`` too.
outcome
    How a request ended: ``stop``, ``length``, ``cancelled``, ``error``.
reason
    `policies.Reason`.
window
    ``plain`` for switchback windows, ``served`` for the rest.
position
    1 to `policies.MAX_BLOCK_LENGTH`, the place inside a block.
length_bucket
    `LENGTH_BUCKETS`, of a request's output tokens.
load
    Sequences running together, from 1 to the engine's slots.
check
    `tuner.guardrails.Check`.
kind
    `tuner.learning.ChangeKind`.
upstream
    The configured upstreams and ``other``.
lane
    The fleet's lanes, ``unchosen`` for what was passed on as it came, and ``other``.
end
    `tuner.fleet.types.End`.
source
    Where counts are looked for: ``metrics``, the upstream's page, or ``answer``.
lever, effect
    `tuner.fleet.types.Lever` and `tuner.fleet.types.Effect`.
engine
    `tuner.fleet.types.EngineKind`.

An upstream's version and models are its own words: they are clipped, and an upstream has one series at a time.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tuner.metric_table.fleet import FLEET, NEEDS_OWN_ENGINE, NEEDS_PLUGIN
from tuner.metric_table.row import PREFIX, Kind, Metric
from tuner.metric_table.serving import SERVING

__all__ = [
    "FLEET_METRICS",
    "LANGUAGE_LIMIT",
    "LENGTH_BUCKETS",
    "LONGEST_BUCKET",
    "METRICS",
    "NEEDS_OWN_ENGINE",
    "NEEDS_PLUGIN",
    "PREFIX",
    "Kind",
    "Metric",
]

LANGUAGE_LIMIT = 20
LENGTH_BUCKETS = ((16, "1-16"), (64, "17-64"), (256, "65-256"))
"""(largest number of output tokens, label); what is longer falls into `LONGEST_BUCKET`."""
LONGEST_BUCKET = "257+"

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in SERVING})
"""Those of `paceline serve`, and of a sidecar but for `NEEDS_OWN_ENGINE` and `NEEDS_PLUGIN`, by their full names."""

FLEET_METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in FLEET})
"""What only `paceline sidecar` has, by its full name."""

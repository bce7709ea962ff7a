"""Traces: for every output position of a request, what each drafter would have offered and the target would have kept.

A block that starts at output position t, in a request of n tokens, is decided by three numbers of its drafter:

    proposed = min(K, offered[t])     accepted = min(verified, kept[t])     emitted = min(accepted + 1, n - t)

and the next block starts at t + emitted. This is exact for every block length K, since a shorter proposal is the
beginning of a longer one and the text does not depend on what was drafted. No token and no text is in a trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.cycle_policy import DraftCost, PassCost


@dataclass(frozen=True, slots=True)
class DraftTrace:
    """One drafter over one request: three strings of n bytes, one byte for each output position."""

    offered: bytes
    """Drafts that it offers for a block of `MAX_BLOCK_LENGTH` that starts here; 0..16."""
    kept: bytes
    """How many of those the target keeps; never more than offered."""
    confidence: bytes
    """The confidence bucket; 0 exactly where nothing is offered."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace."""

    route: str
    language: str
    prompt_tokens: int
    output_tokens: int
    """n, counting all tokens that cycles emit (the first one comes from the prompt's pass and is not in n)."""
    drafts: Mapping[str, DraftTrace]
    structured: bool = False


@dataclass(frozen=True, slots=True)
class Costs:
    """What a cycle and its drafting take, in seconds."""

    target: PassCost
    drafters: Mapping[str, DraftCost]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in their order of arrival, and the machine that serves them."""

    drafters: tuple[str, ...]
    """Without `PLAIN`."""
    requests: tuple[TracedRequest, ...]
    loads: tuple[int, ...]
    """How many sequences run together once request i has been admitted: so load is the same for every controller."""
    costs: Costs
    slots: int
    restarts: tuple[int, ...] = ()
    """The controller is restarted when request i is admitted."""
    keeps_memory: bool = True
    """Whether a restarted controller gets what it saved before."""
    changes: tuple[int, ...] = ()
    """Requests from which on acceptance or cost is another than before; for reports of recovery, told to nobody."""
    later_costs: tuple[tuple[int, Costs], ...] = ()
    """(request, costs): what cycles take from the one on in which that request is admitted, in rising order."""
    arrival: tuple[str, str] | None = None
    """A (route, language) pair that comes into the traffic under way; for reports of how soon it is learned."""
    calibrated: Costs | None = None
    """What a calibration made of `costs`, with its errors; None: it made none."""
    seconds_sd: float = 0.0
    """Of what is measured of a cycle's seconds, lognormal."""
    stall_share: float = 0.0
    stall_factor: float = 1.0
    """Share of the cycles that are measured as this many times as long; regret does not count it."""
    confidence_buckets: Mapping[str, int] = field(default_factory=dict)
    """Largest confidence bucket of each drafter."""
    machine: str = ""
    """What it was recorded on, in one line; empty where it was made up."""

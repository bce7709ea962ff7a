"""What the store takes and gives: plain immutable values, no rows and no sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policies.types import Context, Decision, KillSwitch, Pin, Policy


@dataclass(frozen=True, slots=True)
class PinRemoved:
    """The pin of (route, language) is no longer in force."""

    route: str
    language: str


@dataclass(frozen=True, slots=True)
class KillCleared:
    """The kill switch of `route` (``*``: the one for everything) is no longer in force."""

    route: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who changed what, when and why. Written once, never changed."""

    created_at: float
    """Unix seconds."""
    actor: str
    action: str
    """``pin``, ``unpin``, ``kill``, ``unkill``, ``load``, ``unload``, ``policy``, ``tune-start``, ``tune-stop``,
    ``tune-adopt``, ``tune-revert``, ``guardrail`` or ``change``."""
    route: str
    language: str
    reason: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SampledDecision:
    """A decision and, in counts and seconds, what became of its request."""

    decision: Decision
    created_at: float
    """Unix seconds at which the request's end was recorded."""
    finish: str
    output_tokens: int
    proposed: int
    verified: int
    accepted: int
    ttft_seconds: float
    tpot_seconds: float | None


@dataclass(frozen=True, slots=True)
class TelemetryWindow:
    """What one drafter did in one context within a stretch of time. Windows merge by addition."""

    writer: str
    """Names the process that counted: windows of several writers add up."""
    started_at: float
    ended_at: float
    context: Context
    drafter: str
    plain: bool
    """Counted inside switchback windows in which the whole engine ran plain."""
    cycles: int
    load_sum: int
    """Load summed over the cycles, so that load_sum / cycles is the mean load."""
    requested: int
    proposed: int
    verified: int
    accepted: int
    emitted: int
    draft_seconds: float
    """This drafter's seconds, divided among the sequences that it drafted for."""
    verify_seconds: float
    """The cycles' verify seconds, divided by their load."""
    blocks: tuple[tuple[int, int, int, int, str, int], ...]
    """(requested, proposed, verified, accepted, how it ended, count): all that H[k][a] is made from."""


@dataclass(frozen=True, slots=True)
class RequestWindow:
    """Finished requests of one context, drafter and output-length bucket. Windows merge by addition."""

    writer: str
    started_at: float
    ended_at: float
    context: Context
    drafter: str
    output_length: str
    requests: int
    cancelled: int
    errors: int
    looped: int
    prompt_tokens: int
    output_tokens: int
    queue_seconds: float
    ttft_seconds: float
    ttft_requests: int
    """Requests that had a first token: the divisor of `ttft_seconds`."""
    decode_seconds: float
    decode_tokens: int
    """Tokens after the first: decode_seconds / decode_tokens is the mean TPOT."""
    cycles: int
    proposed: int
    verified: int
    accepted: int
    rejected_at: tuple[int, ...]
    """``rejected_at[j - 1]`` counts the blocks whose position j was the first to be rejected."""
    draft_seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True)
class Posterior:
    """The controller's state, from which a restart resumes."""

    model: str
    state: Mapping[str, Any]
    saved_at: float


Row = (
    Policy
    | Pin
    | PinRemoved
    | KillSwitch
    | KillCleared
    | AuditEntry
    | SampledDecision
    | TelemetryWindow
    | RequestWindow
    | Posterior
)
"""Everything that `policies.store.Store.write` takes."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a restart needs: the newest policy of each context, what operators set, and the posterior."""

    policies: tuple[Policy, ...] = ()
    pins: tuple[Pin, ...] = ()
    kill_switches: tuple[KillSwitch, ...] = ()
    posterior: Mapping[str, Any] = field(default_factory=dict)
    """Empty when none was saved for the model."""

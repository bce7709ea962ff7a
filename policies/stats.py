"""What the engine measures and says of itself: counts and times only; see `policies.types` for the words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from policies.cycle_policy import Window
from policies.types import Context, Decision, RequestFeatures


class BlockEnd(StrEnum):
    """How a sequence's block ended in a cycle."""

    PLAIN = "plain"
    """Nothing was verified; the one token emitted is the target's."""
    REJECTED = "rejected"
    """A draft differed from the target's choice; the recovered token was emitted."""
    FULL = "full"
    """Every verified draft was kept; the bonus token was emitted."""
    CENSORED = "censored"
    """EOS, a stop, ``max_tokens`` or the context limit ended the sequence inside the block."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SequenceStats:
    """What one sequence did in one cycle."""

    request_key: int
    context: Context
    drafter: str
    """The decision's, also in cycles in which nothing was verified, or the copier whose proposal took its place."""
    requested: int
    proposed: int
    verified: int
    accepted: int
    emitted: int
    confidence: int
    end: BlockEnd
    forced: bool = False
    """What was verified of it is an operator's doing, and neither weighed nor held against what is learned."""


@dataclass(frozen=True, slots=True)
class ShadowStats:
    """A proposal that was not verified, scored against the emitted tokens.

    Emitted text ends a shadow early only when the sequence ends (`censored`): then `matched` is where it stopped.
    """

    request_key: int
    context: Context
    drafter: str
    requested: int
    proposed: int
    matched: int
    confidence: int
    censored: bool
    emitted: int
    """Tokens that the request has emitted from where the shadow started to the end of the cycle that tells of it."""


@dataclass(frozen=True, slots=True)
class CycleStats:
    """One cycle of the engine. Counts and times only: no token, no text."""

    cycle: int
    policy_version: int
    window: Window
    first_after_switch: bool
    """True for the first cycle of a window: not counted in either baseline or served time."""
    killed: bool
    load: int
    """Sequences that decoded in this cycle; 0 when only prefill was done: then nothing but prefill counts."""
    tokens: int
    """Rows of the target's decode pass: load + all verified drafts."""
    kv_tokens: int
    """Context tokens read by the decode pass, summed over sequences."""
    draft_seconds: Mapping[str, float]
    verify_seconds: float
    """The target's decode pass and the choice of its tokens."""
    cycle_seconds: float
    """Draft, allocation, verification and commit; without prefill and without waiting. 0.0 where a foreign engine read
    prompts in the same pass: then nobody can tell, and the cycle says nothing of time."""
    prefill_tokens: int
    prefill_seconds: float
    waiting: int
    """Requests that wait for a slot or for KV blocks."""
    sequences: tuple[SequenceStats, ...]
    shadows: tuple[ShadowStats, ...]
    preemptions: int = 0
    """Sequences that gave their KV blocks back and wait again, since the stats before."""
    reused_tokens: int = 0
    """Positions of the KV cache taken over from earlier sequences instead of computed, since the stats before."""
    shadow_seconds: float = 0.0
    """Part of `cycle_seconds`: drafting of `Decision.shadows`, which nobody verifies."""
    copying_seconds: float = 0.0
    """Part of `cycle_seconds`: what a `CyclePolicy.copiers` drafter took for proposals that were not taken; those that
    were are in `draft_seconds`."""
    startup_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens of text that drafters had to read, in their `draft_seconds`, because they had not been asked about them
    before; without what the cycles before have just added."""
    ended_at: float = 0.0
    """`time.monotonic()` when its tokens left the engine; 0.0 for cycles of the calibration."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished request. Counts and times only."""

    request_key: int
    decision: Decision
    features: RequestFeatures
    finish: FinishReason
    output_tokens: int
    queue_seconds: float
    ttft_seconds: float
    """From the arrival of the request at the server to its first token there; 0.0 if none came."""
    decode_seconds: float
    """From the first to the last token at the server."""
    cycles: int
    proposed: int
    verified: int
    accepted: int
    rejected_at: tuple[int, ...]
    """``rejected_at[j - 1]`` counts the blocks whose position j was the first to be rejected."""
    draft_seconds: float
    """This request's share of drafting: the cycle's, divided by its load."""
    verify_seconds: float
    looped: bool
    """The same 8 tokens came three times in a row: a loop flatters n-gram drafting."""
    valid: bool | None = None
    """Whether an output that came to its end has the form that was asked of it; None where nobody could say."""

    @property
    def tpot_seconds(self) -> float | None:
        """Seconds per output token after the first; None for fewer than two tokens."""
        return self.decode_seconds / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True)
class DraftTiming:
    """One call of a drafter, timed at start on synthetic sequences."""

    drafter: str
    sequences: int
    steps: int
    """Drafts of the longest proposal."""
    rows: int
    """Drafts of all proposals."""
    seconds: float
    catch_up_tokens: int = 0
    """Tokens of text, over all sequences, that it had to read first because it had never been asked about them; what a
    cycle has just added to a text is not counted."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine says of itself once it can serve."""

    model: str
    """The served model's name."""
    drafters: tuple[str, ...]
    """Every drafter that a decision may name, `PLAIN` included."""
    dtype: str
    device: str
    threads: int
    slots: int
    blocks: int
    context_limit: int
    """Tokens of prompt and output together; never more than the whole KV cache holds."""
    vocabulary: int
    linear_seconds: float
    """Median seconds of the linear layers alone for one token: the floor of a plain cycle."""
    calibration: tuple[CycleStats, ...]
    """Cycles run at start on synthetic sequences, to seed the cost model."""
    linear_seconds_by_load: tuple[tuple[int, float], ...] = ()
    """(load, median seconds of the linear layers alone for that many tokens)."""
    memory_bytes: int = 0
    """The most that the engine process takes, computed before anything was loaded; 0 where nobody did."""
    draft_calibration: tuple[DraftTiming, ...] = ()
    """Calls of each drafter timed at start, to seed the cost of drafting."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What statistics depend on, with a short fingerprint of each: ``target``, ``tokenizer``, ``engine``, and every
    drafter by name. A changed fingerprint resets what it touches."""
    resident_bytes: Mapping[str, int] = field(default_factory=dict)
    """Memory that each drafter holds, used or not."""
    resident_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each drafter adds to a plain cycle by being loaded: what keeping it while it is off costs."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A reading of the engine while it runs."""

    cycle: int
    running: int
    waiting: int
    free_slots: int
    free_blocks: int
    policy_version: int
    kept_blocks: int = 0
    """Of the free blocks, those that still hold text which another sequence may begin with."""
    preemptions: int = 0
    """Since the start."""
    reused_tokens: int = 0
    """Since the start."""
    telemetry: Mapping[str, int] = field(default_factory=dict)
    """Counters: what the bounded telemetry queue dropped, and the like."""

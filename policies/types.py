"""The shared words. Code, database columns, metrics and documentation use no others.

target
    The model that is served. Its text is never changed by anything in this project.
drafter
    What proposes tokens ahead of the target: ``none``, ``ngram``, ``suffix``, a draft model, a feature head.
block length (K)
    The number of tokens proposed in a cycle. 0 is plain decoding.
cycle
    One draft, one verification, one commit, over all running sequences.
requested, proposed, verified, accepted
    Block length asked of the drafter; tokens that it offered (it may offer fewer, or none); tokens that the
    allocation sent through the target; the prefix of those that the target kept.
    ``requested >= proposed >= verified >= accepted >= 0``.
recovered
    The target's own token after a rejection.
bonus
    The target's own token after a full accept.
emitted
    Tokens that reach the client from a cycle: accepted + 1, unless an end cuts the block.
route
    The operator's name for a kind of traffic. A closed set from the configuration; the rest is ``other``.
language
    BCP 47 primary subtag, ``code``, or ``und`` when unsure.
load
    The number of sequences running together in a cycle.
context
    (model, route, language). Sampling class, structured or not and prompt length shift acceptance inside it
    and are no keys of a policy.
arm
    A drafter with a load-to-block-length schedule.
policy
    The arm in force for a context, versioned.
decision
    One request's resolution of the policy, with a reason.
cycle policy
    What one cycle reads: kill, window, survivals, costs. It may only lower a decision's cap.
switchback
    A short window in which the whole engine runs plain, to measure the baseline.
confidence
    What the drafter knows before verification, as a small bucket number: for ``ngram`` the length of the match, for
    the others how sure they are of the first token. Bucket 0 means that it proposed nothing.
hazard, survival
    h_j, the probability that position j of a block is accepted given that positions 1..j-1 were;
    S_j = h_1 * ... * h_j.
shadow
    A proposal that was not verified, compared in memory with the tokens that the target then emitted.
TTFT, TPOT
    Seconds to the first token; seconds per output token after the first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ANY_LOAD = 1 << 16
"""The last load of a schedule that does not depend on load."""

PLAIN = "none"
"""Name of the drafter that proposes nothing."""

MAX_BLOCK_LENGTH = 16
"""Largest block length that any policy, pin or drafter may ask for."""

UNDETERMINED = "und"
OTHER_ROUTE = "other"


class Reason(StrEnum):
    """Why a decision is what it is. The list is finite and documented in docs/reference.md."""

    KILL_SWITCH = "KILL_SWITCH"
    PINNED = "PINNED"
    GUARDRAIL_LATENCY = "GUARDRAIL_LATENCY"
    GUARDRAIL_TTFT = "GUARDRAIL_TTFT"
    GUARDRAIL_ERRORS = "GUARDRAIL_ERRORS"
    GUARDRAIL_VALIDITY = "GUARDRAIL_VALIDITY"
    GUARDRAIL_MEMORY = "GUARDRAIL_MEMORY"
    CLIENT_OPT_OUT = "CLIENT_OPT_OUT"
    FREEZE = "FREEZE"
    SWITCHBACK = "SWITCHBACK"
    EXPLORE = "EXPLORE"
    CANARY = "CANARY"
    LEARNED = "LEARNED"
    ROUTE_DEFAULT = "ROUTE_DEFAULT"
    ENGINE_DEFAULT = "ENGINE_DEFAULT"
    FEATURE_UNSUPPORTED = "FEATURE_UNSUPPORTED"
    SHORT_OUTPUT = "SHORT_OUTPUT"
    TELEMETRY_MISSING = "TELEMETRY_MISSING"
    STALE_POLICY = "STALE_POLICY"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    ERROR = "ERROR"


class Mode(StrEnum):
    """What Paceline may do on a route."""

    OFF = "off"
    OBSERVE = "observe"
    ADVISE = "advise"
    CANARY = "canary"
    AUTO = "auto"


class PolicyState(StrEnum):
    """What people read about a context, in one word."""

    LEARNING = "learning"
    ON = "on"
    OFF = "off"
    PINNED = "pinned"
    KILLED = "killed"


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


class SamplingClass(StrEnum):
    GREEDY = "greedy"
    LOW = "low"
    """0 < temperature <= 0.5."""
    HIGH = "high"
    """temperature > 0.5."""


@dataclass(frozen=True, slots=True, order=True)
class Context:
    """The key of a policy."""

    model: str
    route: str
    language: str


@dataclass(frozen=True, slots=True)
class RequestFeatures:
    """What shifts acceptance inside a context, and the client's wish; none of it is a key of a policy."""

    sampling: SamplingClass
    structured: bool
    prompt_tokens: int
    max_tokens: int
    opt_out: bool = False
    """``x-paceline-mode: off``: the client may only reduce speculation."""


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Block length for ``load_low <= load <= load_high``."""

    load_low: int
    load_high: int
    block_length: int

    @property
    def loads(self) -> str:
        """The loads for people: ``4`` or ``1-3``."""
        return f"{self.load_low}" if self.load_low == self.load_high else f"{self.load_low}-{self.load_high}"


@dataclass(frozen=True, slots=True)
class Arm:
    """A drafter with its load-to-block-length schedule, in rising order of load."""

    drafter: str
    schedule: tuple[LoadStep, ...]

    def block_length(self, load: int) -> int:
        """K at `load`; 0 beyond the last step."""
        for step in self.schedule:
            if step.load_low <= load <= step.load_high:
                return step.block_length
        return 0

    @property
    def cap(self) -> int:
        """The largest block length in the schedule."""
        return max((step.block_length for step in self.schedule), default=0)

    @classmethod
    def fixed(cls, drafter: str, block_length: int, load_limit: int = ANY_LOAD) -> "Arm":
        """One block length at every load."""
        if drafter == PLAIN or block_length == 0:
            return PLAIN_ARM
        return cls(drafter, (LoadStep(1, load_limit, block_length),))


PLAIN_ARM = Arm(PLAIN, ())


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a policy rests on; stored with it and printed by ``paceline explain``."""

    cycles: int
    requests: int
    survival: tuple[float, ...]
    """S_1..S_K of the drafter in this context, unconditioned on confidence."""
    speedup: Interval | None
    """TPOT of measured plain over TPOT as served, at equal load; None while it is unknown."""
    predicted_speedup: tuple[tuple[int, float], ...]
    """(load, predicted gain of the schedule over plain) for the loads of the schedule."""
    note: str
    """One sentence for people: what was compared with what, and which way it went."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The arm in force for a context. Immutable: a change is a new version."""

    context: Context
    version: int
    arm: Arm
    state: PolicyState
    reason: Reason
    evidence: Evidence
    created_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Pin:
    """An operator's override with an expiry."""

    route: str
    language: str
    """A language, or ``*`` for every language of the route."""
    drafter: str
    block_length: int
    reason: str
    actor: str
    created_at: float
    expires_at: float
    exempt_from_switchback: bool = False


@dataclass(frozen=True, slots=True)
class KillSwitch:
    """Speculation is off for `route` (``*``: everywhere) until it expires or is taken back."""

    route: str
    reason: str
    actor: str
    created_at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Decision:
    """One request's resolution of the policy."""

    decision_id: str
    """Encodes policy version, arm and reason, so that it can be explained without having been sampled."""
    context: Context
    drafter: str
    cap: int
    """Largest block length that any cycle may use for this request."""
    forced: bool
    """True for a pin or a fixed arm: the allocation uses `cap` as it stands and does not weigh it."""
    reason: Reason
    policy_version: int


@dataclass(frozen=True, slots=True)
class Survival:
    """S_j by confidence bucket for one drafter in one context: ``by_confidence[bucket][j - 1]``."""

    by_confidence: tuple[tuple[float, ...], ...]

    def of(self, confidence: int) -> tuple[float, ...]:
        """The curve of a bucket; the last one when the drafter reports a bucket beyond those learned."""
        if not self.by_confidence:
            return ()
        return self.by_confidence[min(confidence, len(self.by_confidence) - 1)]


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of one cycle of the target: ``f(tokens) + sequence_seconds * load + kv_token_seconds * kv_tokens``.

    `f` is linear between the knots and continues with the last slope beyond them.
    """

    token_knots: tuple[int, ...]
    knot_seconds: tuple[float, ...]
    sequence_seconds: float
    kv_token_seconds: float

    def seconds(self, tokens: int, load: int, kv_tokens: int) -> float:
        """Predicted seconds of a cycle with `tokens` rows in the pass, `load` sequences, `kv_tokens` of context."""
        knots, values = self.token_knots, self.knot_seconds
        last = len(knots) - 1
        base = values[0]
        if last > 0 and tokens > knots[0]:
            upper = 1
            while upper < last and knots[upper] < tokens:
                upper += 1
            slope = (values[upper] - values[upper - 1]) / (knots[upper] - knots[upper - 1])
            base = values[upper - 1] + slope * (tokens - knots[upper - 1])
        return base + self.sequence_seconds * load + self.kv_token_seconds * kv_tokens


@dataclass(frozen=True, slots=True)
class Window:
    """A switchback window. `plain` windows measure the baseline; the others what is served."""

    window_id: int
    plain: bool


@dataclass(frozen=True, slots=True)
class CyclePolicy:
    """What one cycle reads, swapped whole. It may only lower a decision's cap."""

    version: int
    kill: bool
    window: Window
    survivals: Mapping[tuple[str, str, str], Survival]
    """Keyed by (drafter, route, language)."""
    default_survivals: Mapping[str, Survival]
    """Keyed by drafter: the pooled curve, for contexts not seen yet."""
    cost: PassCost | None
    """None before the calibration: then nothing but forced decisions speculates."""
    draft_seconds: Mapping[str, float]
    """Seconds of one proposal for one sequence, by drafter."""
    margin: float
    """Predicted gain that speculation must show over plain before it is used, e.g. 0.02."""
    max_neighbour_slowdown: float
    """No running sequence's predicted seconds per token may exceed this multiple of plain."""
    killed_routes: frozenset[str] = frozenset()
    """Routes whose kill switch is on; `kill` is the one for all."""


INITIAL_CYCLE_POLICY = CyclePolicy(
    version=0,
    kill=False,
    window=Window(0, plain=False),
    survivals={},
    default_survivals={},
    cost=None,
    draft_seconds={},
    margin=0.02,
    max_neighbour_slowdown=1.10,
)


@dataclass(frozen=True, slots=True)
class SequenceStats:
    """What one sequence did in one cycle."""

    request_key: int
    context: Context
    drafter: str
    """The decision's drafter, also in cycles in which nothing was verified."""
    requested: int
    proposed: int
    verified: int
    accepted: int
    emitted: int
    confidence: int
    end: BlockEnd


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
    """Draft, allocation, verification and commit; without prefill and without waiting."""
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

    @property
    def tpot_seconds(self) -> float | None:
        """Seconds per output token after the first; None for fewer than two tokens."""
        return self.decode_seconds / (self.output_tokens - 1) if self.output_tokens > 1 else None


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
    """Tokens of prompt and output together."""
    vocabulary: int
    linear_seconds: float
    """Median seconds of the linear layers alone for one token: the floor of a plain cycle."""
    calibration: tuple[CycleStats, ...]
    """Cycles run at start on synthetic sequences, to seed the cost model."""
    linear_seconds_by_load: tuple[tuple[int, float], ...] = ()
    """(load, median seconds of the linear layers alone for that many tokens)."""
    memory_bytes: int = 0
    """The most that the engine process takes, computed before anything was loaded; 0 where nobody did."""


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

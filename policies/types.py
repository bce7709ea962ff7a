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
    Drafters with a load-to-block-length schedule: mostly one, but another may serve at other loads.
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

from dataclasses import dataclass
from enum import StrEnum

ANY_LOAD = 1 << 16
"""The last load of a schedule that does not depend on load."""

PLAIN = "none"
"""Name of the drafter that proposes nothing."""

MAX_BLOCK_LENGTH = 16
"""Largest block length that any policy, pin or drafter may ask for."""

UNKNOWN_LENGTH = -1
"""The block length of a server that drafts and does not tell how far: no number is made of it."""

MAX_VERSION = 1 << 30
"""Largest version of a policy that a restart goes on from: no context comes so far, and columns leave room above."""

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
    """Who drafts, and how far, at ``load_low <= load <= load_high``."""

    load_low: int
    load_high: int
    block_length: int
    """0 where no fixed block length beats plain; `UNKNOWN_LENGTH` where a server drafts as far as it does."""
    drafter: str
    """Also where `block_length` is 0: it goes on proposing, and cycles verify what it is sure of."""

    @property
    def loads(self) -> str:
        """The loads for people: ``4`` or ``1-3``."""
        return f"{self.load_low}" if self.load_low == self.load_high else f"{self.load_low}-{self.load_high}"


@dataclass(frozen=True, slots=True)
class Arm:
    """A load-to-block-length schedule, in rising order of load; its steps may name different drafters."""

    drafter: str
    """The drafter at the loads that were served lately; at other loads the steps say."""
    schedule: tuple[LoadStep, ...]

    def block_length(self, load: int) -> int:
        """K at `load`; 0 beyond the last step."""
        for step in self.schedule:
            if step.load_low <= load <= step.load_high:
                return step.block_length
        return 0

    def drafter_at(self, load: int) -> str:
        """Who drafts at `load`; the last step's drafter beyond it, and the arm's where there are no steps."""
        for step in self.schedule:
            if load <= step.load_high:
                return step.drafter
        return self.schedule[-1].drafter if self.schedule else self.drafter

    @property
    def drafters(self) -> tuple[str, ...]:
        """Every drafter that has a block length in the schedule, in rising order of load."""
        return tuple(dict.fromkeys(step.drafter for step in self.schedule if step.block_length))

    @property
    def entries(self) -> list[list[int | str]]:
        """The schedule as JSON: [load_low, load_high, block_length, drafter] of each step."""
        return [[step.load_low, step.load_high, step.block_length, step.drafter] for step in self.schedule]

    @property
    def cap(self) -> int:
        """The largest block length in the schedule; `UNKNOWN_LENGTH` where nobody knows one but 0."""
        return max((step.block_length for step in self.schedule), key=abs, default=0)

    @classmethod
    def fixed(cls, drafter: str, block_length: int, load_limit: int = ANY_LOAD) -> "Arm":
        """One block length at every load."""
        if drafter == PLAIN or block_length == 0:
            return PLAIN_ARM
        return cls(drafter, (LoadStep(1, load_limit, block_length, drafter),))


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
    shadows: tuple[str, ...] = ()
    """Drafters that propose beside this request, in memory, and are scored against what is emitted; never verified."""
    propensity: float = 1.0
    """The probability with which this drafter was given to this request; below 1 where chance chose among several."""

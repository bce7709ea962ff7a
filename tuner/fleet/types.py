"""What the parts of the fleet say to each other; the words of `policies.types` hold here too.

upstream
    One server of the fleet, by its URL.
lane
    One way of sending a request: an upstream, the alias of the model there, and the fields that set speculation where
    the upstream honours any. What a lane does (drafter and block length) is known from the configuration or from
    probing.
plain pool
    The lanes that decode plain. They are the live baseline; without one, and without the plug-in, a gain is unknown.
plug-in
    ``paceline_vllm`` inside a vLLM server: there every cycle is steered, as in the embedded engine.
lever
    Something that a server lets be steered. One that is taken and has no effect is called ignored.
affinity
    The upstream that served a session before, and may still have its prefix in the cache.
exchange
    One request and its answer, as the proxy saw them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from policies.types import PLAIN, Decision

UNKNOWN_DRAFTER = "unknown"
"""The drafter of an upstream that drafts and does not tell by what."""
BY_LOAD = "by load"
"""The drafter of a policy where nobody chooses: the least loaded upstream serves, whatever it drafts with."""


class EngineKind(StrEnum):
    """Who serves at an upstream."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_CPP = "llama.cpp"
    UNKNOWN = "unknown"


class Lever(StrEnum):
    """What may be steered at an upstream while it serves."""

    PLUGIN = "plugin"
    """Block length by cycle and by request, through ``paceline_vllm``."""
    REQUEST_LENGTH = "request_length"
    """A block length in the request, 0 among them."""
    ALIASES = "aliases"
    """Several models of one server that differ in their drafting only."""
    CORPORA = "corpora"
    """Texts that an n-gram drafter reads besides the request's own."""


class Effect(StrEnum):
    """What came of pulling a lever."""

    WORKS = "works"
    IGNORED = "ignored"
    """Taken without an error, and nothing changed."""
    REFUSED = "refused"
    ABSENT = "absent"
    """The engine has no such lever."""
    UNKNOWN = "unknown"
    """It could not be tested; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Capability:
    """One lever of an upstream, tested by its effect."""

    lever: Lever
    effect: Effect
    sentence: str
    """What was done and seen, for people."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One server of the fleet, as configured and as found on connect."""

    name: str
    url: str
    """Without a path, or with the one under which ``/v1`` lies; no slash at its end."""
    engine: EngineKind = EngineKind.UNKNOWN
    version: str = ""
    """As the server tells it; empty where it does not."""
    models: tuple[str, ...] = ()
    """What ``/v1/models`` lists."""
    speculates: bool | None = None
    """Whether it was launched with a drafter and drafts; None while nobody knows."""
    drafter: str = PLAIN
    """As configured or found; `PLAIN` where it does not speculate."""
    block_length: int = 0
    """The longest block that it was launched with; 0 where it does not speculate or nobody knows."""
    capabilities: tuple[Capability, ...] = ()

    def effect(self, lever: Lever) -> Effect:
        """What is known of `lever` here."""
        return next((one.effect for one in self.capabilities if one.lever is lever), Effect.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Lane:
    """One way of sending a request. Lanes of the same drafter and block length on different upstreams are replicas."""

    name: str
    """Unique in the fleet, such as ``a`` or ``a/ngram-4``."""
    upstream: str
    drafter: str
    block_length: int
    """0: plain; `UNKNOWN_LENGTH`: it drafts, and nobody knows how far."""
    model: str | None = None
    """The alias to ask for in place of the request's ``model``; None leaves it."""
    fields: tuple[tuple[str, Any], ...] = ()
    """Members to set in the body of the request, with their JSON values."""

    @property
    def plain(self) -> bool:
        return self.block_length == 0 or self.drafter == PLAIN


@dataclass(frozen=True, slots=True)
class Asked:
    """What a `Chooser` reads of one request. Nothing of it is kept beyond the answer."""

    path: str
    """Such as ``/v1/chat/completions``, without the query."""
    body: Mapping[str, Any] | None
    """The JSON object; None where there is none, or it was not read: not a generation, or too large."""
    body_bytes: int
    route: str | None
    """The header ``x-paceline-route``, as it came; and so the next three."""
    language: str | None
    mode: str | None
    debug: bool
    session: int | None
    """A number that is equal for requests of one conversation, made in memory; None where nothing tells."""
    in_flight: Mapping[str, int]
    """Requests in progress by upstream, this one not counted. Only upstreams that can take one are in it."""
    arrived_at: float
    """Unix seconds."""
    sent_to: str | None = None
    """The upstream that has it already, byte for byte as it came, since `Chooser.reads` said that nothing was to be
    read first: of the choice only `Choice.lane`, `Choice.decision` and `Choice.request_key` count then."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where one request goes and how. The default edits nothing, so that both directions stay byte for byte."""

    upstream: str
    lane: str = ""
    """Empty where no lane was chosen."""
    decision: Decision | None = None
    edits: tuple[tuple[str, Any], ...] = ()
    """Members of the body to set, with their JSON values; none leaves every byte of it."""
    strip_usage: bool = False
    """Take the usage that the client did not ask for out of the answer's stream again."""
    answer_headers: tuple[tuple[str, str], ...] = ()
    """Added to the answer."""
    request_key: int = 0
    """Of the exchange and, with the plug-in, of the engine's cycles; 0 where there is none."""


class Chooser(Protocol):
    """Says where a request goes, in the process of the data path."""

    def reads(self, path: str, route: str | None) -> bool:
        """Whether the body of a generation is wanted before it goes anywhere. False where nothing would be edited or
        steered, as in ``observe``: it is passed on as it comes to the upstream with the fewest requests, and `choose`
        is told afterwards, with `Asked.sent_to`."""
        ...

    def choose(self, asked: Asked) -> Choice:
        """In memory, in microseconds, never an exception: on a fault of its own it passes the request on as it is.

        `asked.in_flight` has at least one upstream.
        """
        ...


class End(StrEnum):
    """How an exchange ended."""

    DONE = "done"
    CANCELLED = "cancelled"
    """The client left first."""
    UPSTREAM_ERROR = "upstream_error"
    """An answer of 500 or above, passed on as it came."""
    CLIENT_ERROR = "client_error"
    """An answer of 400 to 499, passed on as it came; says nothing of the upstream's health."""
    BROKEN = "broken"
    """The upstream ended the connection before the answer was whole, or could not be reached."""
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """What an answer says of its own drafting."""

    drafted: int | None
    """None where the engine reckons it from its launch setting in place of counting, as SGLang does."""
    accepted: int
    """Without bonus tokens."""
    cycles: int | None = None
    """None where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer, as the proxy saw them. Counts and times only: no text."""

    request_key: int
    upstream: str
    lane: str
    decision: Decision | None
    path: str
    status: int
    """0 where no answer came."""
    end: End
    streamed: bool
    arrived_at: float
    """Unix seconds."""
    first_byte_seconds: float
    """From the arrival of the request's last byte to the first byte of the answer's body; 0.0 if none came."""
    decode_seconds: float
    """From that first byte to the last one; for an answer in one piece the engine's own word, or 0.0."""
    output_tokens: int | None
    """From the answer's usage or timings; None where it tells of neither."""
    prompt_tokens: int | None
    cached_tokens: int | None
    """Of the prompt, those that the engine had in its cache."""
    load: float
    """Requests in progress at the upstream over the exchange, this one among them: the mean over time."""
    drafts: DraftCounts | None
    overhead_seconds: float
    """What the proxy added before the request was passed on."""
    valid: bool | None = None
    """Whether a structured output came whole and has its form; None where nobody could say."""


class ExchangeSink(Protocol):
    """Takes what the proxy measured; neither blocks nor raises."""

    def record(self, exchange: Exchange) -> None: ...


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """How an upstream does, as the proxy sees it."""

    name: str
    healthy: bool
    in_flight: int
    failures: int
    """In a row."""
    sentence: str
    """Why it is not healthy; empty where it is."""


@dataclass(frozen=True, slots=True)
class ProxyState:
    """A reading of the data path."""

    upstreams: tuple[UpstreamState, ...]
    streams: int
    """Exchanges in progress."""
    overhead_seconds: Mapping[float, int] = field(default_factory=dict)
    """A histogram: exchanges by the upper bound of `Exchange.overhead_seconds`, not cumulated."""
    dropped: int = 0
    """Exchanges that the sink did not take."""
    chooser_faults: int = 0
    """Requests that were passed on as they came since the chooser failed."""

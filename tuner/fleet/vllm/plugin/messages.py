"""What the control process and the plug-in say to each other: JSON lines of `policies.wire`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.cycle_policy import CyclePolicy
from policies.types import Decision
from policies.wire import from_wire, to_wire

WORD_ARGUMENT = "paceline"
"""Member of a request's ``vllm_xargs`` that holds its `Word`."""
LENGTH_ARGUMENT = "paceline_k"
"""The same for people: the largest block length of this request, 0 among them. It can only lower what else holds."""
ORDERS, HELLO, CYCLE, REQUEST, STATE = "orders", "hello", "cycle", "request", "state"
_WORD = "word"


@dataclass(frozen=True, slots=True)
class Word:
    """What the sidecar says of one request."""

    request_key: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Orders:
    """What the plug-in steers by, swapped whole."""

    policy: CyclePolicy
    others: Decision | None = None
    """Of requests that come without a word; None leaves them to what vLLM was launched with."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a plug-in says first on every connection."""

    instance: str
    """Different in every start of every replica."""
    vllm_version: str
    model: str
    """As it is served."""
    drafter: str
    """vLLM's method, such as ``ngram``; `policies.types.PLAIN` where it was launched without one."""
    block_length: int
    """``num_speculative_tokens``."""
    block_lengths: tuple[int, ...]
    """Those that a step may draft."""
    dtype: str
    device: str
    slots: int
    kv_blocks: int
    kv_block_tokens: int
    context_limit: int
    vocabulary: int
    versions: Mapping[str, str] = field(default_factory=dict)
    """As `policies.stats.EngineInfo.versions`."""


@dataclass(frozen=True, slots=True)
class State:
    """How a plug-in does; about once a second while it serves."""

    steps: int
    """Since the start, as the other counts."""
    faults: int
    """Of the plug-in itself; vLLM went on as it does without it."""
    first_fault: str
    """Of those, for people; empty where there was none."""
    dropped: int
    """Messages that nobody took in time."""
    unread: int
    """Requests of which the word, or the wished block length, could not be read; they count as requests without."""
    own_seconds: float
    """What the plug-in added to the steps."""
    policy_version: int
    steered: bool
    """False: no policy has come for too long, and blocks are as vLLM was launched."""
    sentence: str
    """What is wrong with the policy that came last; empty where nothing is."""


def word_argument(request_key: int, decision: Decision) -> str:
    """The value of `WORD_ARGUMENT`."""
    return to_wire(_WORD, Word(request_key, decision)).decode()


def read_word(argument: str) -> Word:
    """A value of `WORD_ARGUMENT`.

    Raises:
        WireError: it is none.
    """
    return from_wire(_WORD, Word, argument)

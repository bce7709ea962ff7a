"""What crosses between the control process and the engine process: immutable values, pickled one by one.

Times are `time.monotonic()` seconds, which on one machine mean the same in both processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.sampling import Sampling, TokenLogprob, Verifier, Watermark
from policies.cycle_policy import CyclePolicy
from policies.stats import CycleStats, DraftTiming, EngineInfo, EngineStatus, FinishReason
from policies.types import Decision


@dataclass(frozen=True, slots=True)
class Submit:
    """A sequence to generate."""

    request_key: int
    """Unique in the life of the engine process."""
    prompt: tuple[int, ...]
    """Token ids; never empty; with `max_tokens` it fits the context limit."""
    sampling: Sampling
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    """EOS and the like. The token that ends the sequence is counted and sent, its text is not."""
    stops: tuple[str, ...]
    """Stop strings, looked for in the text of the output as clients read it."""
    decision: Decision
    submitted_at: float
    top_logprobs: int | None = None
    """None: no log-probabilities. 0: those of the emitted tokens only; else also of so many others."""
    grammar: str | None = None
    """What the whole output must follow, as `engine.grammar` writes it."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget a sequence within one cycle; an unknown key is ignored."""

    request_key: int


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another decision for a running sequence, for example because its output's language was recognised."""

    request_key: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class SetCyclePolicy:
    policy: CyclePolicy


@dataclass(frozen=True, slots=True)
class AskStatus:
    serial: int


@dataclass(frozen=True, slots=True)
class LoadDrafter:
    """Load a drafter while serving; cycles wait for it. Answered by `DraftersAre`."""

    serial: int
    source: str
    """As in `EngineOptions.drafters`."""


@dataclass(frozen=True, slots=True)
class UnloadDrafter:
    """Forget a drafter while serving: sequences whose decision names it go on plain. Answered by `DraftersAre`."""

    serial: int
    name: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Finish the cycle in progress and end the process."""


ToEngine = Submit | Cancel | Redirect | SetCyclePolicy | AskStatus | LoadDrafter | UnloadDrafter | Shutdown


@dataclass(frozen=True, slots=True)
class Ready:
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The engine could not start; `message` is one sentence for people."""

    message: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A sentence for a progress line while the engine starts."""

    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    """How a sequence ended, and what it did on the way; in a `Tokens` message with its last tokens."""

    reason: FinishReason
    queue_seconds: float
    """From `Submit.submitted_at` to admission."""
    prefill_seconds: float
    cycles: int
    proposed: int
    verified: int
    accepted: int
    rejected_at: tuple[int, ...]
    draft_seconds: float
    verify_seconds: float
    looped: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that one sequence emitted in one cycle."""

    request_key: int
    token_ids: tuple[int, ...]
    finished: Finished | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each token where the sequence asked for them, else empty."""
    reused_tokens: int = 0
    """Prompt tokens of the sequence that were in the KV cache already; the same in each of its messages."""


@dataclass(frozen=True, slots=True)
class CycleDone:
    """All that a cycle produced, in one message."""

    tokens: tuple[Tokens, ...]
    stats: CycleStats
    """Its load is 0 when only prefill was done and nothing decoded."""


@dataclass(frozen=True, slots=True)
class StatusIs:
    serial: int
    status: EngineStatus


@dataclass(frozen=True, slots=True)
class DraftersAre:
    """What came of loading or unloading a drafter."""

    serial: int
    drafters: tuple[str, ...]
    """What a decision may name from now on, plain included."""
    memory_bytes: int
    """What they hold together at most."""
    problem: str | None
    """Why nothing has changed, one sentence for people."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """A fingerprint of each drafter, as in `EngineInfo.versions`."""
    resident_bytes: Mapping[str, int] = field(default_factory=dict)
    draft_calibration: tuple[DraftTiming, ...] = ()
    """Of what was loaded."""


@dataclass(frozen=True, slots=True)
class SequenceFailed:
    """A sequence that the engine cannot run, or cannot run to its end; `message` is one sentence for people."""

    request_key: int
    message: str
    fault: bool = False
    """True: the engine's or the model's fault; False: what the request asks for cannot be."""
    of_grammar: bool = False
    """True: what cannot be is the grammar, or what it leaves of the vocabulary."""


FromEngine = Ready | StartFailed | Progress | CycleDone | StatusIs | DraftersAre | SequenceFailed


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the engine process is started."""

    model_path: str
    """A folder with config.json, *.safetensors and tokenizer.json."""
    model_name: str
    dtype: str = "auto"
    """auto, bfloat16 or float32."""
    threads: int = 0
    """torch threads; 0 chooses at start, leaving a core to the control process."""
    slots: int = 16
    """Sequences that may run together."""
    context_limit: int = 2048
    prefill_chunk: int = 128
    """Prompt tokens processed in one cycle beside the decode pass."""
    ngram_min_match: int = 2
    ngram_max_match: int = 16
    drafters: tuple[str, ...] = ("ngram",)
    """Drafters to load, in order: ngram, suffix, the name of a shipped or added drafter, or a folder, each with
    ``@DEVICE`` where it is not the CPU. Empty: ngram, suffix, and every shipped or added one that fits the model."""
    suffix_shared_routes: tuple[str, ...] = ()
    """Routes on which the suffix drafter reads the outputs of earlier requests as well; timing then tells of them."""
    draft_stop: float = 0.07
    """Learned drafters end a draft before the product of their confidences falls under this; 0 never does."""
    kv_blocks: int = 0
    """Blocks of the KV cache, which bound a context too; 0 takes what every slot needs at the context limit."""
    prefix_reuse: bool = True
    """Whether a sequence takes over the KV blocks of an earlier one that begins with the same text."""
    verifier: str = "coupled"
    """`kernels.sampling.Verifier` of requests that name none."""
    calibrate: bool = True
    seed: int = 0
    """Seeds the synthetic sequences of the calibration."""


__all__ = [
    "AskStatus",
    "Cancel",
    "CycleDone",
    "DraftersAre",
    "EngineOptions",
    "Finished",
    "FromEngine",
    "LoadDrafter",
    "Progress",
    "Ready",
    "Redirect",
    "Sampling",
    "SequenceFailed",
    "SetCyclePolicy",
    "Shutdown",
    "StartFailed",
    "StatusIs",
    "Submit",
    "ToEngine",
    "Tokens",
    "Verifier",
    "Watermark",
]

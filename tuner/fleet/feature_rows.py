"""Which fields of a request an engine refuses, or gets wrong, while it speculates: data, with where each was read.

Not here, since a body does not tell: an adapter (LoRA) is named by ``model``, which is part of the context; custom
logits processors are refused by vLLM at its start; and what hardware SGLang runs on is in its version at most. Not here
either, since it was found to be right: grammars and penalties of llama.cpp, whose whole chain of samplers draws each
position.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tuner.fleet.types import EngineKind
from tuner.fleet.versions import is_before

_SMALLEST = 1e-5
"""Below it vLLM takes a min_p for none (_SAMPLING_EPS in vllm/sampling_params.py, 0.32.0)."""


class Trouble(StrEnum):
    """What comes of such a request."""

    REFUSED = "refused"
    """The server answers with an error, or its documentation says that it cannot."""
    WRONG = "wrong"
    """It is answered, and not as it would be without speculation."""
    RISKY = "risky"
    """Right by design, and it broke in reported versions: plain until the route's validity has been measured."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One field of a request, and what becomes of it under speculation."""

    engine: EngineKind
    field: str
    """The member of the request's body."""
    trouble: Trouble
    applies: Callable[[Any], bool]
    """Whether a value asks for it; a field that is null or absent is not asked about, but see `by_default`."""
    sentence: str
    """What goes wrong, for people."""
    source: str
    """Where it was read or reported."""
    plugin: bool = False
    """Whether vLLM's plug-in serves it, with a block length of 0; not what the frontend refuses before any engine."""
    right_from: str = ""
    """The first version that was found to be right; empty where none is known."""
    builds: frozenset[str] = frozenset()
    """Only builds whose version names one of these after a ``+``; empty for every build."""
    by_default: bool = False
    """It applies where the field is absent too."""

    def affects(self, version: str) -> bool:
        """Whether a server that tells `version` is affected; one that cannot be read is."""
        if self.builds and not any(build in version.partition("+")[2].lower() for build in self.builds):
            return False
        return not self.right_from or is_before(version, self.right_from) is not False


def _given(value: Any) -> bool:
    """Anything but false, 0 and what is empty."""
    return bool(value)


def _not_false(value: Any) -> bool:
    """For counts of which 0 asks too: the drawn token's own entry."""
    return value is not False


def _above_zero(value: Any) -> bool:
    """A number that is not 0 to the engine. What is no number is the engine's to refuse, everywhere below."""
    return _is_number(value) and bool(value > _SMALLEST)


def _not_zero(value: Any) -> bool:
    return _is_number(value) and bool(value != 0)


def _not_one(value: Any) -> bool:
    return _is_number(value) and bool(value != 1)


def _above_one(value: Any) -> bool:
    return _is_number(value) and bool(value > 1)


def _no_text(value: Any) -> bool:
    """A response_format that asks for more than text."""
    return isinstance(value, Mapping) and value.get("type", "text") != "text"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_VLLM, _SGLANG, _LLAMA = EngineKind.VLLM, EngineKind.SGLANG, EngineKind.LLAMA_CPP
_REFUSED, _WRONG, _RISKY = Trouble.REFUSED, Trouble.WRONG, Trouble.RISKY

_READ_VLLM = "vllm/sampling_params.py _validate_spec_decode (0.32.0)"
_MATRIX = "vLLM's documentation, features/README.md (2026-08)"
_READ_SGLANG = "sglang/srt/speculative/eagle_utils.py (2026-08)"
_FIELDS_400 = "vllm#38202, #38467, #38469, #42744, #42802; unsloth#10573"

_PENALTY_VLLM = (
    "ignored under speculation, and later applied without the drafts before a position; right in the version that was "
    "read, and nobody noted since when"
)
_PENALTY_SGLANG = (
    "one penalty holds for a whole block, so that its tokens do not count for each other: not the distribution that "
    "was asked for; earlier it was ignored"
)
_STRUCTURED_VLLM = "a schema, a grammar or a tool call broke or ended the engine in several versions"
_REPORTS_VLLM = "vllm#27969, #36872, #40875, #44006, #47025, #53777, #55313"
_STRUCTURED_SGLANG = "a grammar is followed across drafts; nobody has tested a version here"
_LOGPROBS_LLAMA = "accepted drafts have a log-probability of 0.0"
_REPORTS_LLAMA = "llama.cpp#27196, #27972; common/sampling.cpp (b10573)"

ROWS: tuple[Feature, ...] = (
    Feature(_VLLM, "min_p", _REFUSED, _above_zero, "answered with 400", f"{_READ_VLLM}; {_FIELDS_400}"),
    Feature(_VLLM, "logit_bias", _REFUSED, _given, "answered with 400", f"{_READ_VLLM}; {_FIELDS_400}"),
    Feature(_VLLM, "use_beam_search", _REFUSED, _given, "beams and drafts do not go together", _MATRIX),
    Feature(_VLLM, "best_of", _REFUSED, _above_one, "best-of and drafts do not go together", _MATRIX),
    Feature(_VLLM, "prompt_embeds", _REFUSED, _given, "embeddings for a prompt and drafts do not go together", _MATRIX),
    *(
        Feature(_VLLM, field, _WRONG, asks, _PENALTY_VLLM, "vllm#18902, #19482, #22987", True, "0.32.0")
        for field, asks in (
            ("frequency_penalty", _not_zero),
            ("presence_penalty", _not_zero),
            ("repetition_penalty", _not_one),
        )
    ),
    *(
        Feature(
            _VLLM,
            field,
            _RISKY,
            _not_false,
            "entries were missing or belonged to other tokens; refused with adaptive verification",
            "vllm#17876, #26060, #33391, #34497",
            plugin=True,
        )
        for field in ("logprobs", "prompt_logprobs")
    ),
    Feature(_VLLM, "response_format", _RISKY, _no_text, _STRUCTURED_VLLM, _REPORTS_VLLM, plugin=True),
    *(
        Feature(_VLLM, field, _RISKY, _given, _STRUCTURED_VLLM, _REPORTS_VLLM, plugin=True)
        for field in (
            "tools",
            "structured_outputs",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
        )
    ),
    Feature(_SGLANG, "return_sampling_mask", _REFUSED, _given, "refused with a drafter", "sglang, read in 2026-08"),
    Feature(_SGLANG, "min_p", _WRONG, _above_zero, "not applied where drafts are verified", _READ_SGLANG),
    Feature(_SGLANG, "custom_logit_processor", _WRONG, _given, "not applied where drafts are verified", _READ_SGLANG),
    *(
        Feature(_SGLANG, field, _WRONG, asks, _PENALTY_SGLANG, f"{_READ_SGLANG}; sglang#22049")
        for field, asks in (
            ("frequency_penalty", _not_zero),
            ("presence_penalty", _not_zero),
            ("repetition_penalty", _not_one),
        )
    ),
    Feature(
        _SGLANG,
        "logit_bias",
        _WRONG,
        _given,
        "ignored with overlapped scheduling up to the spring of 2026; no version is known to be right",
        "sglang#22049",
    ),
    Feature(
        _SGLANG,
        "temperature",
        _WRONG,
        _not_zero,
        "drafts are verified greedily on CPU, NPU, HIP and XPU, so that a temperature has no effect there",
        "sglang#31214, #37134, #39253",
        builds=frozenset({"cpu", "npu", "hip", "rocm", "xpu"}),
        by_default=True,  # an absent temperature is 1
    ),
    *(
        Feature(_SGLANG, field, _RISKY, _not_false, "entries were missing or belonged to other tokens", "sglang#10660")
        for field in ("logprobs", "return_logprob")
    ),
    Feature(
        _SGLANG,
        "response_format",
        _RISKY,
        _no_text,
        _STRUCTURED_SGLANG,
        "sglang/test/kits/spec_server_kits.py (2026-08)",
    ),
    *(
        Feature(_SGLANG, field, _RISKY, _given, _STRUCTURED_SGLANG, "sglang/test/kits/spec_server_kits.py (2026-08)")
        for field in ("tools", "regex", "ebnf", "json_schema")
    ),
    *(
        Feature(_LLAMA, field, _WRONG, _given, _LOGPROBS_LLAMA, _REPORTS_LLAMA)
        for field in ("logprobs", "top_logprobs", "n_probs")
    ),
)

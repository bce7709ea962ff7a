"""Combinations that are known to go wrong, with where each was read or reported; what a request's fields do is in
`tuner.fleet.feature_rows`, and lossy settings in `tuner.fleet.render.lossy`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tuner.fleet.engines.identity import Identity
from tuner.fleet.engines.reading import EngineDelta
from tuner.fleet.types import EngineKind

ENOUGH_DRAFTED = 500
"""Tokens from which on an acceptance says something."""
ENOUGH_CYCLES = 200
_NO_MATCH_SAMPLING = ("cpu", "npu", "xpu")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rows are tested on."""

    identity: Identity
    served: EngineDelta | None
    """All that the engine has counted since it started; None where it tells nothing."""

    @property
    def drafted(self) -> float:
        return (self.served.drafted if self.served is not None else None) or 0.0

    @property
    def cycles(self) -> float:
        return (self.served.cycles if self.served is not None else None) or 0.0

    @property
    def emitted(self) -> float | None:
        return self.served.emitted_per_cycle if self.served is not None else None

    @property
    def acceptance(self) -> float | None:
        return self.served.acceptance if self.served is not None else None

    def setting(self, name: str) -> object:
        return self.identity.settings.get(name)


@dataclass(frozen=True, slots=True)
class KnownFault:
    """One combination."""

    engine: EngineKind | None
    """None: any."""
    applies: Callable[[Facts], bool]
    sentence: str
    """What goes wrong, and what to do."""
    source: str


def _nothing_accepted(facts: Facts) -> bool:
    return facts.cycles >= ENOUGH_CYCLES and facts.emitted is not None and facts.emitted <= 1.01


def _several_engines(facts: Facts) -> bool:
    reading = facts.identity.reading
    if reading is None or not facts.identity.launched:
        return False
    return len({dict(labels).get("engine") for labels in reading.output_tokens}) > 1


def _long_and_rejected(facts: Facts) -> bool:
    return (
        facts.identity.block_length >= 8
        and facts.cycles >= ENOUGH_CYCLES
        and facts.emitted is not None
        and facts.emitted < 2.0
    )


def _unsure_draft_model(facts: Facts) -> bool:
    return (
        facts.identity.drafter.startswith("draft")
        and facts.drafted >= ENOUGH_DRAFTED
        and facts.acceptance is not None
        and facts.acceptance < 0.2
    )


KNOWN_FAULTS = (
    KnownFault(
        EngineKind.VLLM,
        _nothing_accepted,
        "Nothing that it drafts is accepted. After a sleep of level 2 the weights of a draft model are lost without a "
        "word: start it anew.",
        "vllm#52479, #52487, #49774",
    ),
    KnownFault(
        EngineKind.SGLANG,
        _nothing_accepted,
        "Nothing that it drafts is accepted, as was reported after an upgrade: compare with the version before.",
        "sglang#24795",
    ),
    KnownFault(
        None,
        _long_and_rejected,
        "Its blocks are 8 tokens or longer, and a cycle yields fewer than 2: a shorter block costs less and yields as "
        "much.",
        "vllm#21278",
    ),
    KnownFault(
        EngineKind.VLLM,
        _several_engines,
        "It has several data-parallel engines: there vLLM switches off the schedules by batch size that `paceline "
        "export` writes.",
        "vLLM 0.32, docs/features/speculative_decoding/dynamic_speculative_decoding.md",
    ),
    KnownFault(
        EngineKind.VLLM,
        lambda facts: bool(facts.identity.adapters and facts.identity.launched),
        "It serves adapters with a drafter for the model without them: their acceptance is not the model's, so each "
        "has policies of its own.",
        "vllm#52038, #4872",
    ),
    KnownFault(
        EngineKind.SGLANG,
        lambda facts: bool(facts.setting("speculative_adaptive") and facts.setting("enable_dp_attention")),
        "Its adaptive steps do nothing with data-parallel attention.",
        "sglang#35898",
    ),
    KnownFault(
        EngineKind.SGLANG,
        lambda facts: bool(facts.identity.launched) and facts.setting("device") in _NO_MATCH_SAMPLING,
        "On this device it verifies by argmax, so that a temperature is ignored while it drafts.",
        "sglang#31214, #39253",
    ),
    KnownFault(
        EngineKind.LLAMA_CPP,
        _unsure_draft_model,
        "Fewer than a fifth of its draft model's tokens are accepted: --spec-draft-p-min is 0 by itself, 0.75 makes it "
        "stop where it is unsure.",
        "llama.cpp#25908",
    ),
)


def known_faults(facts: Facts) -> list[str]:
    """One sentence with its source for each combination that is here."""
    return [
        f"{row.sentence} ({row.source})"
        for row in KNOWN_FAULTS
        if row.engine in (None, facts.identity.engine) and row.applies(facts)
    ]

"""What engines call a drafter."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spelling:
    """A way of drafting; None where an engine has no such."""

    vllm: str | None
    sglang: str | None
    tensorrt_llm: str | None
    llama_server: str | None
    weights: bool
    """Whether it has weights of its own, so that a launch names them."""


SPELLINGS: Mapping[str, Spelling] = {
    "ngram": Spelling("ngram", "NGRAM", "NGram", "ngram-simple", False),
    "suffix": Spelling("suffix", None, "SA", None, False),
    "draft_model": Spelling("draft_model", "STANDALONE", "DraftTarget", "draft-simple", True),
    "eagle": Spelling("eagle", "EAGLE", "Eagle", None, True),
    "eagle3": Spelling("eagle3", "EAGLE3", "Eagle3", "draft-eagle3", True),
    "mtp": Spelling("mtp", "NEXTN", "MTP", "draft-mtp", False),
    "dflash": Spelling("dflash", "DFLASH", "DFlash", "draft-dflash", True),
    "dspark": Spelling("dspark", "DSPARK", "DSpark", "draft-dspark", True),
    "medusa": Spelling("medusa", None, None, None, True),
}
"""By the name that vLLM has for it. Read in vLLM 0.32.0, SGLang and TensorRT-LLM of 2026-08 and llama.cpp b10573."""


def spelling_of(drafter: str) -> tuple[str, Spelling]:
    """Its name in `SPELLINGS` with its spelling. A name that is not there is an operator's, of a draft model."""
    name = drafter.lower().replace("-", "_")
    name = name if name in SPELLINGS else "draft_model"
    return name, SPELLINGS[name]


def weights_note(drafter: str, flag: str) -> str:
    """What is left to the user where the drafter has weights."""
    return f"Put the weights of the drafter that is called {drafter} here into {flag}, in place of WEIGHTS."

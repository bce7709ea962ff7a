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
    "ngram_gpu": Spelling("ngram_gpu", "NGRAM", "NGram", "ngram-simple", False),
    "ngram_mod": Spelling("ngram", "NGRAM", "NGram", "ngram-mod", False),
    "ngram_map_k": Spelling("ngram", "NGRAM", "NGram", "ngram-map-k", False),
    "ngram_map_k4v": Spelling("ngram", "NGRAM", "NGram", "ngram-map-k4v", False),
    "ngram_cache": Spelling("ngram", "NGRAM", "NGram", "ngram-cache", False),
    "suffix": Spelling("suffix", None, "SA", None, False),
    "draft_model": Spelling("draft_model", "STANDALONE", "DraftTarget", "draft-simple", True),
    "eagle": Spelling("eagle", "EAGLE", "Eagle", None, True),
    "eagle3": Spelling("eagle3", "EAGLE3", "Eagle3", "draft-eagle3", True),
    "mtp": Spelling("mtp", "NEXTN", "MTP", "draft-mtp", False),
    "dflash": Spelling("dflash", "DFLASH", "DFlash", "draft-dflash", True),
    "dspark": Spelling("dspark", "DSPARK", "DSpark", "draft-dspark", True),
    "medusa": Spelling("medusa", None, None, None, True),
    "mlp_speculator": Spelling("mlp_speculator", None, None, None, True),
}
"""By the name that vLLM has for it, or where it has none llama.cpp's. Read in vLLM 0.32.0, SGLang and TensorRT-LLM of
2026-08 and llama.cpp b10573."""


def _plainly(name: str) -> str:
    return name.lower().replace("-", "_")


def _engines_names() -> Mapping[str, str]:
    """What any engine calls a drafter, to its name in `SPELLINGS`; the first of those that share one."""
    found = {name: name for name in SPELLINGS}
    for name, spelling in SPELLINGS.items():
        for told in (spelling.vllm, spelling.sglang, spelling.tensorrt_llm, spelling.llama_server):
            if told is not None:
                found.setdefault(_plainly(told), name)
    return found | {"draft": "draft_model"}  # llama.cpp before #22964


_ENGINES_NAMES = _engines_names()


def spelling_of(drafter: str) -> tuple[str, Spelling]:
    """Its name in `SPELLINGS` with its spelling. A name that is not there is an operator's, of a draft model.

    Several names with commas between are a chain, which only llama-server has.
    """
    if "," in drafter:
        chain = [spelling_of(part.strip())[1] for part in drafter.split(",") if part.strip()]
        names = [one.llama_server for one in chain if one.llama_server is not None]
        told = ",".join(names) if len(names) == len(chain) else None
        return drafter, Spelling(None, None, None, told, any(one.weights for one in chain))
    name = _known(drafter) or "draft_model"
    return name, SPELLINGS[name]


def _known(drafter: str) -> str | None:
    name = _plainly(drafter)
    # vLLM's many <model>_mtp are other names of mtp, and so is SGLang's frozen_kv_mtp.
    return "mtp" if name.endswith("_mtp") and name not in _ENGINES_NAMES else _ENGINES_NAMES.get(name)


def weights_note(drafter: str, flag: str) -> str:
    """What is left to the user where the drafter has weights."""
    known = "," in drafter or _known(drafter) is not None
    guess = "" if known else " No engine has a drafter of that name: it is taken for a draft model."
    return f"Put the weights of the drafter that is called {drafter} here into {flag}, in place of WEIGHTS.{guess}"

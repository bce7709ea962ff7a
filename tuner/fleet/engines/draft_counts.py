"""What an answer says of its own drafting, by the words of each engine.

vLLM: ``metrics.speculative_decoding``, of a server launched with ``--per-request-spec-decode-metrics``, null for n > 1
(vllm/entrypoints/generate/base/protocol.py, 0.32). llama.cpp: ``timings``, in which ``draft_n`` is there only if
something was drafted (tools/server/server-common.cpp). SGLang: ``meta_info`` of ``/generate``, or
``sglext.spec_tokens_details`` where the request said ``return_spec_tokens_details``. Its proposed drafts are cycles
times the launch setting and no count (srt/managers/tokenizer_manager.py), wrong wherever a cycle proposed less: they
are left out.
"""

from collections.abc import Mapping
from typing import Any

from tuner.fleet.types import DraftCounts

MOST_TOKENS = 10_000_000
"""Of one answer and its prompt; no engine has a context of so many. What says more is a fault, and is left out: one
such number would outweigh all that is learned."""
_SGLANG_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts")
"""The second one is the name before 2026."""


def draft_counts(body: Mapping[str, Any]) -> DraftCounts | None:
    """The counts in the members of an answer, or of the last event of a stream; never an exception.

    None where it tells nothing, or what cannot be: more accepted than drafted. Nothing told is no acceptance, neither
    of 0 nor of 100 %.
    """
    metrics = mapping(body, "metrics")
    if (told := metrics.get("speculative_decoding")) is not None:
        return _counted(told, "num_draft_tokens", "num_accepted_draft_tokens", "num_spec_steps")
    if (timings := body.get("timings")) is not None:
        return _counted(timings, "draft_n", "draft_n_accepted", "")
    for place in (
        mapping(body, "meta_info"),
        *(mapping(mapping(body, name), "spec_tokens_details") for name in ("sglext", "sgl_ext")),
    ):
        if (cycles := whole(place, "spec_verify_ct")) is not None:
            accepted = next((found for name in _SGLANG_ACCEPTED if (found := whole(place, name)) is not None), None)
            return None if accepted is None else DraftCounts(None, accepted, cycles)
    return None


def _counted(told: Any, drafted: str, accepted: str, cycles: str) -> DraftCounts | None:
    if not isinstance(told, Mapping):
        return None
    proposed, kept = whole(told, drafted), whole(told, accepted)
    if proposed is None or kept is None or kept > proposed:
        return None
    return DraftCounts(proposed, kept, whole(told, cycles))


def mapping(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The member `name`; empty where that is no object."""
    found = told.get(name)
    return found if isinstance(found, Mapping) else {}


def whole(told: Mapping[str, Any], name: str) -> int | None:
    """The member `name`; None where that is no count, or one that cannot be."""
    found = told.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MOST_TOKENS:
        return None
    return found

"""What an answer says of itself, by the words of each engine.

OpenAI and vLLM: ``usage``, and ``metrics`` where vLLM was launched with ``--per-request-spec-decode-metrics`` or
``--enable-per-request-metrics`` (vllm/entrypoints/generate/base/protocol.py, 0.32). llama.cpp: ``timings``, in which
``draft_n`` is there only if something was drafted (tools/server/server-common.cpp). SGLang: ``meta_info``
(srt/managers/tokenizer_manager.py); what it calls proposed is reckoned from the launch setting, and not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.fleet.types import DraftCounts


@dataclass(frozen=True, slots=True)
class Counts:
    """None for what was not told."""

    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    drafts: DraftCounts | None = None
    decode_seconds: float | None = None
    """By the engine's own clock."""


def read_counts(told: Mapping[str, Any]) -> Counts:
    """The counts in the members of an answer, or of the last event of a stream that had any. Never an exception."""
    usage, timings = _mapping(told, "usage"), _mapping(told, "timings")
    meta, metrics = _mapping(told, "meta_info"), _mapping(told, "metrics")
    output = _told((usage, "completion_tokens"), (timings, "predicted_n"), (meta, "completion_tokens"))
    cached = _told(
        (_mapping(usage, "prompt_tokens_details"), "cached_tokens"), (timings, "cache_n"), (meta, "cached_tokens")
    )
    prompt = _told((usage, "prompt_tokens"), (meta, "prompt_tokens"))
    processed = _whole(timings, "prompt_n")
    if prompt is None and processed is not None:  # llama.cpp counts what was not in its cache
        prompt = processed + (cached or 0)
    milliseconds = _number(timings, "predicted_ms")
    if milliseconds is None:
        milliseconds = _number(metrics, "generation_time_ms")
    seconds = None if milliseconds is None else milliseconds / 1000.0
    return Counts(output, prompt, cached, _drafts(timings, meta, metrics), seconds)


def _drafts(timings: Mapping[str, Any], meta: Mapping[str, Any], metrics: Mapping[str, Any]) -> DraftCounts | None:
    vllm = _mapping(metrics, "speculative_decoding")
    for found, drafted, accepted, cycles in (
        (vllm, "num_draft_tokens", "num_accepted_draft_tokens", "num_spec_steps"),
        (timings, "draft_n", "draft_n_accepted", ""),
    ):
        proposed, kept = _whole(found, drafted), _whole(found, accepted)
        if proposed is not None and kept is not None:
            return DraftCounts(proposed, kept, _whole(found, cycles))
    kept = _told((meta, "spec_num_correct_drafts"), (meta, "spec_accepted_drafts"))
    return None if kept is None else DraftCounts(None, kept, _whole(meta, "spec_verify_ct"))


def _told(*places: tuple[Mapping[str, Any], str]) -> int | None:
    """The first count that is there."""
    return next((found for told, name in places if (found := _whole(told, name)) is not None), None)


def _mapping(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = told.get(name)
    return found if isinstance(found, Mapping) else {}


def _whole(told: Mapping[str, Any], name: str) -> int | None:
    found = told.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def _number(told: Mapping[str, Any], name: str) -> float | None:
    found = told.get(name)
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) and found >= 0 else None

"""What an answer says of itself, by the words of each engine.

OpenAI and vLLM: ``usage``, and ``metrics`` where vLLM was launched with ``--enable-per-request-metrics``
(vllm/entrypoints/generate/base/protocol.py, 0.32). llama.cpp: ``timings`` (tools/server/server-common.cpp). SGLang:
``meta_info`` (srt/managers/tokenizer_manager.py). What it says of its drafts `tuner.fleet.engines.draft_counts` reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.fleet.engines.draft_counts import draft_counts, mapping, whole
from tuner.fleet.types import DraftCounts

_MOST_MILLISECONDS = 1e9
"""Of one answer: eleven days."""


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
    usage, timings = mapping(told, "usage"), mapping(told, "timings")
    meta, metrics = mapping(told, "meta_info"), mapping(told, "metrics")
    output = _told((usage, "completion_tokens"), (timings, "predicted_n"), (meta, "completion_tokens"))
    cached = _told(
        (mapping(usage, "prompt_tokens_details"), "cached_tokens"), (timings, "cache_n"), (meta, "cached_tokens")
    )
    prompt = _told((usage, "prompt_tokens"), (meta, "prompt_tokens"))
    processed = whole(timings, "prompt_n")
    if prompt is None and processed is not None:  # llama.cpp counts what was not in its cache
        prompt = processed + (cached or 0)
    seconds = _seconds(timings, "predicted_ms")
    if seconds is None:
        seconds = _seconds(metrics, "generation_time_ms")
    return Counts(output, prompt, cached, draft_counts(told), seconds)


def _told(*places: tuple[Mapping[str, Any], str]) -> int | None:
    """The first count that is there."""
    return next((found for told, name in places if (found := whole(told, name)) is not None), None)


def _seconds(told: Mapping[str, Any], name: str) -> float | None:
    """From milliseconds; None where that is no time, or one that cannot be (NaN is not at most anything)."""
    found = told.get(name)
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found <= _MOST_MILLISECONDS:
        return None
    return found / 1000.0

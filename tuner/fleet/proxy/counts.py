"""What an answer says of itself, by the words of each engine.

OpenAI and vLLM: ``usage``, and ``metrics`` where vLLM was launched with ``--enable-per-request-metrics``
(vllm/entrypoints/generate/base/protocol.py, 0.32). llama.cpp: ``timings`` (tools/server/server-common.cpp). SGLang:
``meta_info`` (srt/managers/tokenizer_manager.py). What it says of its drafts `tuner.fleet.engines.draft_counts` reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.fleet.engines.draft_counts import draft_counts
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
    return Counts(output, prompt, cached, draft_counts(told), seconds)


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

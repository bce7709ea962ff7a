"""What each engine calls what a reading holds.

vLLM: vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py, 0.32. llama.cpp: tools/server/server-task.cpp,
b10573. SGLang: python/sglang/srt/observability/metrics_collector.py, 2026-08. A name of None is one that the engine has
nothing for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tuner.fleet.types import EngineKind

PROCESS_START = "process_start_time_seconds"
"""Of the Prometheus client; one that another process has not."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The series of one engine."""

    prefix: str
    cycles: str
    """Counter: drafts that were verified."""
    output_tokens: str
    running: str
    waiting: str
    drafted: str | None = None
    accepted: str | None = None
    """Counter, without bonus tokens: vLLM and llama.cpp leave them out."""
    by_position: str | None = None
    """Counter with the label ``position``, from 0."""
    accept_length: str | None = None
    """Gauge of the last interval that the engine logged: tokens a cycle, *with* the bonus token."""
    drafts_per_cycle: str | None = None
    """Gauge: what a cycle verifies, the token before the drafts among it."""
    kv_share: str | None = None
    ttft: str | None = None
    tpot: str | None = None
    """Histograms, in seconds."""
    diffusion: str | None = None
    """A counter that only a model that denoises has."""


NAMES: Mapping[EngineKind, MetricNames] = {
    EngineKind.VLLM: MetricNames(
        prefix="vllm:",
        cycles="vllm:spec_decode_num_drafts_total",
        output_tokens="vllm:generation_tokens_total",
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        drafted="vllm:spec_decode_num_draft_tokens_total",
        accepted="vllm:spec_decode_num_accepted_tokens_total",
        by_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
        kv_share="vllm:kv_cache_usage_perc",
        ttft="vllm:time_to_first_token_seconds",
        # Its inter_token_latency is one of emissions, in which several tokens come at once.
        tpot="vllm:request_time_per_output_token_seconds",
        diffusion="vllm:diffusion_num_denoising_steps_total",
    ),
    EngineKind.LLAMA_CPP: MetricNames(
        prefix="llamacpp:",
        cycles="llamacpp:spec_decode_num_drafts_total",
        output_tokens="llamacpp:tokens_predicted_total",
        running="llamacpp:requests_processing",
        waiting="llamacpp:requests_deferred",
        drafted="llamacpp:spec_decode_num_draft_tokens_total",
        accepted="llamacpp:spec_decode_num_accepted_tokens_total",
        by_position="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    ),
    EngineKind.SGLANG: MetricNames(
        prefix="sglang:",
        cycles="sglang:spec_verify_calls_total",
        output_tokens="sglang:generation_tokens_total",
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        accept_length="sglang:spec_accept_length",
        drafts_per_cycle="sglang:spec_num_draft_tokens",
        kv_share="sglang:token_usage",
        ttft="sglang:time_to_first_token_seconds",
        tpot="sglang:inter_token_latency_seconds",
    ),
}

_HISTOGRAMS = ("ttft", "tpot")


def wanted(names: MetricNames) -> frozenset[str]:
    """The names of every series that a reading takes from a page, those that tell when a series began among them."""
    found = {PROCESS_START}
    for one in fields(names):
        name = getattr(names, one.name)
        if name is None or one.name == "prefix":
            continue
        if one.name in _HISTOGRAMS:
            found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count", f"{name}_created"}
        else:
            found |= {name, name.removesuffix("_total") + "_created"}
    return frozenset(found)


def engine_of_page(text: str) -> EngineKind:
    """Whose page of metrics `text` is."""
    for kind, names in NAMES.items():
        if text.startswith(names.prefix) or f"\n{names.prefix}" in text:
            return kind
    return EngineKind.UNKNOWN

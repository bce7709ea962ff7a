"""Engines made on purpose: what a real one does not do when it is asked to. Their words are those of the recordings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx

from tests.tuner.fleet.engines.recordings import changed, page
from tuner.fleet.types import EngineKind


class Honours(StrEnum):
    """What becomes of a request for a block length of 0."""

    IT = "it"
    NOTHING = "nothing"
    REFUSED = "refused"


@dataclass
class StubEngine:
    """An engine behind `transport`. It drafts `block_length` tokens a cycle, of which all are accepted."""

    kind: EngineKind
    honours: Honours = Honours.NOTHING
    block_length: int = 5
    """0: no drafter."""
    others: int = 0
    """Tokens that other clients get during each request."""
    tells_drafts: bool = False
    """vLLM: whether its answers tell of their drafts."""
    metrics: bool = True
    plain_models: frozenset[str] = frozenset()
    """Those that do not draft."""
    slow: float = 0.0
    """Seconds more that a token takes while it drafts, by the engine's own clock."""
    extra: Mapping[str, tuple[int, Any]] = field(default_factory=dict)
    """Status and content of further paths."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[httpx.Headers] = field(default_factory=list)
    counted: dict[str, float] = field(default_factory=lambda: {"cycles": 0.0, "drafted": 0.0, "tokens": 0.0})

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path in self.extra:
            status, content = self.extra[path]
            return httpx.Response(status, json=content)
        if path == "/v1/completions":
            self.headers.append(request.headers)
            return self._complete(json.loads(request.content))
        if path == "/v1/models":
            owner = {EngineKind.LLAMA_CPP: "llamacpp", EngineKind.UNKNOWN: "somebody"}.get(self.kind, self.kind.value)
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": owner}]})
        if path == "/metrics" and self.metrics and self.kind is not EngineKind.UNKNOWN:
            return httpx.Response(200, text=self._page())
        if path == "/version" and self.kind is EngineKind.VLLM:
            return httpx.Response(200, json={"version": "0.32.0"})
        return httpx.Response(404, json={"error": {"message": "not found"}})

    def _complete(self, body: dict[str, Any]) -> httpx.Response:
        self.requests.append(body)
        wished = body.get("speculative.n_max", body.get("vllm_xargs", {}).get("paceline_k"))
        if wished is not None and self.honours is Honours.REFUSED:
            return httpx.Response(400, json={"error": {"message": "unknown key"}})
        off = (wished == 0 and self.honours is Honours.IT) or body["model"] in self.plain_models
        length = 0 if off else self.block_length
        tokens = int(body["max_tokens"])
        cycles = -(-tokens // (length + 1)) if length else 0
        drafted = cycles * length
        self.counted["cycles"] += cycles
        self.counted["drafted"] += drafted
        self.counted["tokens"] += tokens + self.others
        answer: dict[str, Any] = {"choices": [{"text": ""}], "usage": {"completion_tokens": tokens}}
        seconds = tokens * (0.01 + (self.slow if length else 0.0))
        if self.kind is EngineKind.LLAMA_CPP:
            answer["timings"] = {"predicted_n": tokens, "predicted_ms": 1000 * seconds}
            if drafted:
                answer["timings"] |= {"draft_n": drafted, "draft_n_accepted": drafted}
        elif self.kind is EngineKind.VLLM:
            answer["metrics"] = {"generation_time_ms": 1000 * seconds}
            if self.tells_drafts:
                answer["metrics"]["speculative_decoding"] = {
                    "num_draft_tokens": drafted,
                    "num_accepted_draft_tokens": drafted,
                    "num_spec_steps": cycles,
                }
        elif self.kind is EngineKind.SGLANG and body.get("return_spec_tokens_details"):
            details = {"spec_verify_ct": cycles, "spec_num_correct_drafts": drafted}
            answer["sglext"] = {"spec_tokens_details": details}
        return httpx.Response(200, json=answer)

    def _page(self) -> str:
        cycles, drafted, tokens = (self.counted[name] for name in ("cycles", "drafted", "tokens"))
        if self.kind is EngineKind.SGLANG:
            text = changed(page("sglang_eagle"), "sglang:generation_tokens_total", 3500 + tokens, 'streaming="true"')
            return changed(text, "sglang:spec_verify_calls_total", 1700 + cycles)
        if self.kind is EngineKind.LLAMA_CPP:
            text = changed(page("llama_cpp_plain"), "llamacpp:tokens_predicted_total", tokens)
            return changed(text, "llamacpp:spec_decode_num_drafts_total", cycles)
        if not self.block_length:
            return changed(page("vllm_plain"), "vllm:generation_tokens_total", tokens)
        text = changed(page("vllm_ngram"), "vllm:generation_tokens_total", 164 + tokens)
        text = changed(text, "vllm:spec_decode_num_drafts_total", 21 + cycles)
        text = changed(text, "vllm:spec_decode_num_draft_tokens_total", 101 + drafted)
        return changed(text, "vllm:spec_decode_num_accepted_tokens_total", 68 + drafted)

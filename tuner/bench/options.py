"""What a scenario is asked to measure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCENARIOS = {
    "matrix": "arms against each other on the workload, by route and concurrency",
    "floor": "plain cycles against the seconds of the linear layers and of reading the KV cache",
    "drafters": "every drafter on every route and language: tokens per second, and how much of a block is kept",
    "transformers": "against transformers' generate, plain and assisted, and vLLM where PACELINE_VLLM_PYTHON names one",
    "fleet": "vLLM as it may be launched against vLLM that a sidecar steers; PACELINE_VLLM_ENV says where it is",
    "cold": "from the start of the process to the first token",
    "cancel": "half of many requests cancelled: the others' texts, and every block back",
    "preempt": "a KV cache a quarter of what the load wants",
    "fragment": "mixed lengths over many rounds: blocks come back, admission does not slow down",
    "stream": "how tokens reach clients: the delay behind the engine, and bursts",
    "tuner": "what the tuner itself takes: decisions, the policies of a cycle, folding telemetry, memory",
    "proxy": "what the sidecar's data path adds: to the first byte, CPU a chunk, memory of idle streams",
}
"""Every scenario by its name, in words."""
MIXED = "mixed"
"""``matrix``, ``fleet``: a route that is all the others that were named, or all there are, at once."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of the command; a scenario reads those that `READS` names."""

    scenario: str = "matrix"
    routes: Sequence[str] = ()
    concurrency: Sequence[int] = (1, 2, 4, 8, 16)
    arms: Sequence[str] = ("plain", "ngram:4", "tuned")
    repeats: int = 3
    json_path: Path | None = None
    languages: Sequence[str] = ("code", "en", "de", "fr")
    """``drafters``: languages whose prompts are measured."""
    drafters: Sequence[str] = ()
    """``drafters``: those that are measured; all that are loaded unless some are named."""
    lengths: Sequence[int] = (2, 4, 8)
    """``drafters``: block lengths that are tried."""
    prompts: int = 4
    """``drafters``, ``transformers``: prompts of each context or route."""
    tokens: int = 64
    """Longest output."""
    assistant: str | None = None
    """``transformers``: a folder of a small model that assists transformers' generate."""
    requests: int = 64
    """``cancel``, ``preempt``, ``fragment``: how many at a time."""

    @property
    def command(self) -> str:
        """The command line that measures the same."""
        parts = [f"paceline bench --scenario {self.scenario}"]
        for name in READS[self.scenario]:
            value = getattr(self, name)
            if value is None or value == ():
                continue
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            parts.append(f"--{name} {text}")
        return " ".join(parts)


READS = {
    "matrix": ("routes", "concurrency", "arms", "tokens", "repeats"),
    "floor": ("repeats",),
    "drafters": ("routes", "languages", "drafters", "lengths", "prompts", "tokens", "repeats"),
    "transformers": ("routes", "arms", "prompts", "tokens", "repeats", "assistant"),
    "fleet": ("routes", "concurrency", "arms", "tokens", "repeats"),
    "cold": ("routes", "repeats"),
    "cancel": ("routes", "requests", "arms", "tokens"),
    "preempt": ("routes", "requests", "arms", "tokens"),
    "fragment": ("routes", "requests", "arms", "tokens", "repeats"),
    "stream": ("routes", "concurrency", "arms", "tokens"),
    "tuner": ("repeats",),
    "proxy": ("repeats",),
}
"""The options that a scenario reads; the command refuses the others."""

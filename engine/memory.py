"""The memory that the engine process will take at most, computed from the configuration before anything is loaded.

Imports no tensor library.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.blocks import BLOCK_TOKENS
from engine.drafter_plan import DrafterPlan, planned_bytes
from engine.model_config import ModelConfig
from engine.model_tensors import BYTES_OF, FLOAT32_BYTES, kv_bytes_per_token, weight_bytes
from policies.types import MAX_BLOCK_LENGTH

PROCESS_BYTES = 320 << 20
"""Python with the tensor library, the tokenizer's tables and the grammars' tables, before any model."""
CONTROL_PROCESS_BYTES = 450 << 20
"""About what the control process (HTTP, tokenizer, learning, store) takes beside it, as measured with the default
model: told to people, and part of no plan."""
CHOICE_ARRAYS = 4
"""Arrays over the vocabulary that choosing the tokens of a row holds at a time: logits, order, probabilities, noise."""
CHOICE_ROWS = 16
"""Rows whose choice is computed together."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by what takes them."""

    target: int
    """Packed weights."""
    kv_cache: int
    """Keys, values, and the features that feature heads read."""
    drafters: int
    workspace: int
    """What a pass and the choice of its tokens need, and what loading the weights leaves to the allocator."""
    process: int

    @property
    def total(self) -> int:
        return self.target + self.kv_cache + self.drafters + self.workspace + self.process

    def __str__(self) -> str:
        parts = {
            "target": self.target,
            "KV cache": self.kv_cache,
            "drafters": self.drafters,
            "workspace": self.workspace,
            "process": self.process,
        }
        told = ", ".join(f"{name} {_mebibytes(size)}" for name, size in parts.items())
        return f"{_mebibytes(self.total)} of memory at most: {told}"


def plan_memory(
    config: ModelConfig,
    dtype: str,
    *,
    blocks: int,
    context_limit: int,
    slots: int,
    prefill_chunk: int,
    drafters: Sequence[DrafterPlan],
) -> MemoryPlan:
    """What a server with these settings comes to hold.

    Args:
        config: the target's shape.
        dtype: of weights and cache, bfloat16 or float32.
        blocks: KV blocks.
        context_limit: longest context, in tokens.
        slots: sequences that run together.
        prefill_chunk: prompt tokens in a pass.
        drafters: those that are loaded.
    """
    element = BYTES_OF[dtype]
    positions = blocks * BLOCK_TOKENS
    decode_rows = slots * (MAX_BLOCK_LENGTH + 1)
    rows = max(decode_rows, prefill_chunk)
    qkv = config.query_width + 2 * config.kv_width
    row_bytes = (config.hidden_size + qkv) * FLOAT32_BYTES + element * (
        config.hidden_size + 2 * config.query_width + 2 * config.feed_forward_size
    )
    logits = decode_rows * config.vocab_size * FLOAT32_BYTES
    choice = CHOICE_ROWS * CHOICE_ARRAYS * config.vocab_size * FLOAT32_BYTES
    rotary = context_limit * config.head_dim * FLOAT32_BYTES
    head = config.vocab_size * config.hidden_size * element
    return MemoryPlan(
        target=weight_bytes(config, dtype),
        kv_cache=positions * (kv_bytes_per_token(config, dtype) + config.hidden_size * element),
        drafters=planned_bytes(drafters),
        workspace=rows * row_bytes + logits + choice + rotary + head,
        process=PROCESS_BYTES,
    )


def words(plan: MemoryPlan) -> str:
    """What is told of memory at start, of both processes."""
    return (
        f"the engine process takes {plan}; the control process beside it takes about "
        f"{_mebibytes(CONTROL_PROCESS_BYTES)} more"
    )


def refusal(plan: MemoryPlan, available: int | None) -> str | None:
    """Why a server with this plan must not start, in one sentence; None if it may."""
    if available is None or plan.total <= available:
        return None
    return (
        f"The engine needs {plan}; this machine has {_mebibytes(available)}: lower engine.kv_blocks, engine.slots, "
        "engine.context_limit or engine.prefill_chunk, or name fewer engine.drafters."
    )


def _mebibytes(size: int) -> str:
    return f"{-(-size // 2**20)} MiB"

"""What a drafter will be, before it is loaded: whether it fits the target, and the memory that it takes.

Imports no tensor library.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.blocks import BLOCK_TOKENS
from engine.drafter_files import (
    BUILT_IN,
    NGRAM,
    RESERVED,
    DrafterError,
    DrafterFile,
    DrafterKind,
    check_fits,
    check_model_fits,
    find_drafter,
    is_ours,
    parse_spec,
    read_drafter,
)
from engine.drafter_weights import check_learned_weights, check_model_weights
from engine.model_config import ModelConfig, read_config
from engine.model_tensors import BYTES_OF, FLOAT32_BYTES, kv_bytes_per_token, weight_bytes
from engine.ngram import INDEX_BYTES
from engine.suffix import TOKEN_BYTES
from engine.vocabulary import Vocabulary, read_vocabulary

CATCH_UP_TOKENS = 256
"""Tokens that a learned drafter catches up with in one call, over all sequences, so that a long prompt does not hold up
a cycle."""
SUFFIX_SHARED_TOKENS = 32768
"""Tokens of output that the suffix drafter keeps for a route that shares them."""


@dataclass(frozen=True, slots=True)
class DraftedTarget:
    """What is known of the target before it is loaded."""

    path: Path
    config: ModelConfig
    vocabulary: Vocabulary
    dtype: str
    """bfloat16 or float32."""
    blocks: int
    """KV blocks, which every learned drafter has as well."""
    context_limit: int
    suffix_shared_routes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterPlan:
    """A drafter that was found and fits the target."""

    name: str
    memory_bytes: int
    """What it will hold at most."""
    learned: DrafterFile | None = None
    """One of ours."""
    folder: Path | None = None
    """A model of Hugging Face's, with `config`."""
    config: ModelConfig | None = None


def plan_drafter(text: str, target: DraftedTarget) -> DrafterPlan:
    """Find what an operator named and hold it against the target.

    Raises:
        DrafterError: it is not there, is placed where this engine cannot run, does not fit, or cannot be loaded.
    """
    spec = parse_spec(text)
    if spec.name in RESERVED:
        raise DrafterError(f"a drafter cannot be called {spec.name!r}; give its folder another name")
    if spec.source in BUILT_IN:
        context_tokens = target.blocks * BLOCK_TOKENS
        if spec.source == NGRAM:
            return DrafterPlan(NGRAM, context_tokens * INDEX_BYTES)
        shared_tokens = SUFFIX_SHARED_TOKENS * len(target.suffix_shared_routes)
        return DrafterPlan(spec.source, (context_tokens + shared_tokens) * TOKEN_BYTES)
    return plan_folder(find_drafter(spec), spec.name, target)


def plan_folder(folder: Path, name: str, target: DraftedTarget) -> DrafterPlan:
    """As `plan_drafter`, of a drafter that lies in `folder`, with its weights looked over.

    Raises:
        DrafterError: it does not fit.
        DamagedDrafterError: it fits nothing, since it cannot be loaded.
    """
    if is_ours(folder):
        drafter = replace(read_drafter(folder), name=name)
        check_fits(drafter, target.path, target.config, target.vocabulary)
        outputs = check_learned_weights(drafter, target.config.vocab_size)
        return DrafterPlan(name, _learned_bytes(drafter, outputs, target), learned=drafter)
    config = check_model_fits(folder, target.path)
    check_model_weights(folder, config)
    memory_bytes = weight_bytes(config, target.dtype) + _working_bytes(config, config.vocab_size, target)
    return DrafterPlan(name, memory_bytes, folder=folder, config=config)


def unloaded_target(path: Path) -> DraftedTarget:
    """A target of which only the files are known: enough to see what fits it, and not what it will take.

    Raises:
        ModelError: it cannot be read.
    """
    return DraftedTarget(path, read_config(path), read_vocabulary(path), dtype="float32", blocks=1, context_limit=1)


def planned_bytes(plans: Iterable[DrafterPlan]) -> int:
    """What several drafters hold together."""
    return sum(plan.memory_bytes for plan in plans)


def check_memory(plan: DrafterPlan, free: int | None) -> None:
    """Refuse a drafter for which there is no memory; `free` are bytes, None where the system does not tell.

    Raises:
        DrafterError: less is free than it needs.
    """
    if free is not None and plan.memory_bytes > free:
        raise DrafterError(
            f"the drafter {plan.name!r} needs {_mebibytes(plan.memory_bytes)} of memory and {_mebibytes(free)} are "
            "free; unload another drafter, or give the KV cache fewer blocks"
        )


def _mebibytes(size: int) -> str:
    return f"{-(-size // 2**20)} MiB"


def _learned_bytes(drafter: DrafterFile, outputs: int, target: DraftedTarget) -> int:
    config = drafter.config
    total = (
        weight_bytes(replace(config, vocab_size=0), target.dtype)
        + outputs * config.hidden_size * BYTES_OF[target.dtype]
    )
    if drafter.kind is DrafterKind.FEATURE_HEAD:
        total += 2 * config.hidden_size * (config.hidden_size * BYTES_OF[target.dtype] + FLOAT32_BYTES)
    return total + _working_bytes(config, outputs, target)


def _working_bytes(config: ModelConfig, outputs: int, target: DraftedTarget) -> int:
    """Keys and values, rotary tables, and what a call needs that catches up with as much as one may."""
    capacity = min(config.max_position, target.context_limit)
    row = (
        6 * config.hidden_size
        + config.query_width
        + 2 * config.kv_width
        + config.query_width
        + config.feed_forward_size
    )
    return (
        target.blocks * BLOCK_TOKENS * kv_bytes_per_token(config, target.dtype)
        + capacity * config.head_dim * FLOAT32_BYTES
        + CATCH_UP_TOKENS * row * FLOAT32_BYTES
        + outputs * FLOAT32_BYTES
    )

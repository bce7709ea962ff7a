"""A model folder into a `Decoder`."""

from pathlib import Path

import torch

from engine.checkpoint import Checkpoint, embedding_name
from engine.decoder import Decoder
from engine.model_config import ModelConfig, ModelError, read_config
from engine.model_fetch import cache_folder
from engine.model_weights import model_weights
from kernels.native_library import NativeError
from kernels.native_threads import NativeThreads

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def choose_dtype(name: str, stored: str = "float32") -> torch.dtype:
    """The dtype that weights and KV cache are held in.

    `auto` is bfloat16 for weights stored in 16 bits: a token costs the reading of every weight, so half the bytes are
    nearly half the time, on any CPU, and the native kernels expand bfloat16 exactly. (float16 is rounded to
    bfloat16, which keeps 8 of its 11 bits.) Weights stored in float32 are rounded to bfloat16 only where the CPU
    multiplies it (AVX512-BF16 or AMX).

    Args:
        name: auto, or a key of `DTYPES`.
        stored: name of the dtype that the model's weights are stored in.

    Raises:
        ModelError: an unknown name.
    """
    if name == "auto":
        if stored in ("bfloat16", "float16"):
            return torch.bfloat16
        capabilities = torch.cpu.get_capabilities()
        native = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
        return torch.bfloat16 if native else torch.float32
    if name not in DTYPES:
        raise ModelError(f"dtype is {name!r}; use auto, {' or '.join(DTYPES)}")
    return DTYPES[name]


def model_dtype(config: ModelConfig, checkpoint: Checkpoint, name: str) -> torch.dtype:
    """`choose_dtype` for a model whose weights are in `checkpoint`; its embedding stands for them all."""
    return choose_dtype(name, checkpoint.stored_dtype(embedding_name(config, checkpoint)))


def native_threads(count: int = 1) -> NativeThreads:
    """The compiled kernels, from the cache, with `count` threads. Raises ModelError when they cannot be compiled."""
    try:
        return NativeThreads(cache_folder() / "kernels", count)
    except NativeError as error:
        raise ModelError(str(error)) from error


def load_decoder(
    model_path: str | Path,
    dtype: str = "auto",
    *,
    blocks: int,
    capacity: int,
    features: bool = False,
    native: NativeThreads | None = None,
) -> Decoder:
    """Load a folder with config.json and *.safetensors (in one file or in shards).

    Args:
        model_path: the folder.
        dtype: auto, bfloat16 or float32; what weights and cache are in.
        blocks: KV blocks that the sequences share.
        capacity: the longest context.
        features: whether the hidden states after the final norm are kept, for feature heads.
        native: the threads to run on, if they are shared with another model; else one of its own.

    Raises:
        ModelError: the folder is no model, of another family, incomplete, or does not fit the arguments.
    """
    folder = Path(model_path)
    config = read_config(folder)
    if blocks < 1:
        raise ModelError(f"blocks is {blocks}; use at least 1")
    if not 1 <= capacity <= config.max_position:
        raise ModelError(f"capacity is {capacity}; this model has positions for 1 to {config.max_position}")
    checkpoint = Checkpoint(folder)
    chosen = model_dtype(config, checkpoint, dtype)
    with torch.inference_mode():
        weights = model_weights(config, checkpoint, chosen)
        return Decoder(config, weights, native or native_threads(), blocks=blocks, capacity=capacity, features=features)

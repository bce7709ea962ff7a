"""A model folder into a `Decoder`."""

import json
import math
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.decoder import Decoder, LayerWeights, Weights
from engine.linear import PackedLinear
from engine.model_config import ModelConfig, ModelError, read_config

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints carry the rotary frequencies; they follow from the config."""


def choose_dtype(name: str) -> torch.dtype:
    """`auto` is bfloat16 where the CPU multiplies it natively (AVX512-BF16 or AMX), else float32.

    Raises:
        ModelError: an unknown name, or bfloat16 on a CPU that oneDNN has no bfloat16 products for.
    """
    if name == "auto":
        capabilities = torch.cpu.get_capabilities()
        native = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
        return torch.bfloat16 if native else torch.float32
    if name not in DTYPES:
        raise ModelError(f"dtype is {name!r}; use auto, {' or '.join(DTYPES)}")
    if name == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise ModelError("dtype is bfloat16, but this CPU has no AVX512; use float32 or auto")
    return DTYPES[name]


def load_decoder(model_path: str | Path, dtype: str = "auto", slots: int = 16, capacity: int = 2048) -> Decoder:
    """Load a folder with config.json and *.safetensors (in one file or in shards).

    Args:
        model_path: the folder.
        dtype: auto, bfloat16 or float32; what weights, cache and logits are in.
        slots: sequences that can run together.
        capacity: positions of each.

    Raises:
        ModelError: the folder is no model, of another family, incomplete, or does not fit the arguments.
    """
    folder = Path(model_path)
    config = read_config(folder)
    if not torch._C._has_mkldnn:
        raise ModelError("this build of torch has no oneDNN; install the CPU build of torch for x86-64")
    if slots < 1:
        raise ModelError(f"slots is {slots}; use at least 1")
    if not 1 <= capacity <= config.max_position:
        raise ModelError(f"capacity is {capacity}; this model has positions for 1 to {config.max_position}")
    chosen = choose_dtype(dtype)
    with torch.inference_mode():
        weights = _assemble(config, _Checkpoint(folder), chosen)
        return Decoder(config, weights, slots=slots, capacity=capacity)


class _Checkpoint:
    """Tensors by name over all safetensors files of a folder; remembers what was taken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of: dict[str, Path] = {}
        for file in _weight_files(folder):
            try:
                with safe_open(file, framework="pt") as tensors:
                    self._file_of |= dict.fromkeys(tensors.keys(), file)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file} cannot be read ({error}); fetch the model again") from error
        self._left = {name for name in self._file_of if not name.endswith(IGNORED_SUFFIX)}

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, which must have `shape`."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelError(f"{self._folder} has no tensor {name}; fetch the model again")
        with safe_open(file, framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self._folder} has tensor {name} of shape {tuple(tensor.shape)}; the config says {shape}"
            )
        self._left.discard(name)
        return tensor

    def refuse_left(self) -> None:
        """Every tensor must have been taken: one that was not would change the model's output."""
        if self._left:
            raise ModelError(f"{self._folder} has tensor {min(self._left)}, which the Llama decoder does not support")

    def drop(self, name: str) -> None:
        self._left.discard(name)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index} is not a safetensors index ({error}); fetch the model again") from error
        files = [folder / name for name in names]
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{folder} has no {file.name}; only safetensors weights are supported")
    return files


def _assemble(config: ModelConfig, checkpoint: _Checkpoint, dtype: torch.dtype) -> Weights:
    hidden, feed_forward = config.hidden_size, config.feed_forward_size
    query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def matrix(name: str, outputs: int, inputs: int) -> Tensor:
        return checkpoint.take(f"{name}.weight", outputs, inputs).to(dtype)

    def norm(name: str) -> Tensor:
        return checkpoint.take(f"{name}.weight", hidden).to(torch.float32) * math.sqrt(hidden)

    def layer(prefix: str) -> LayerWeights:
        attention, feed = prefix + "self_attn.", prefix + "mlp."
        qkv = [
            matrix(attention + "q_proj", query_width, hidden),
            matrix(attention + "k_proj", kv_width, hidden),
            matrix(attention + "v_proj", kv_width, hidden),
        ]
        gate_up = [matrix(feed + name, feed_forward, hidden) for name in ("gate_proj", "up_proj")]
        return LayerWeights(
            attention_norm=norm(prefix + "input_layernorm"),
            qkv=PackedLinear(torch.cat(qkv)),
            attention_out=PackedLinear(matrix(attention + "o_proj", hidden, query_width)),
            feed_forward_norm=norm(prefix + "post_attention_layernorm"),
            gate_up=PackedLinear(torch.cat(gate_up)),
            down=PackedLinear(matrix(feed + "down_proj", hidden, feed_forward)),
        )

    embedding = matrix("model.embed_tokens", config.vocab_size, hidden)
    layers = tuple(layer(f"model.layers.{index}.") for index in range(config.num_layers))
    final_norm = norm("model.norm")
    if config.tied_head:
        checkpoint.drop("lm_head.weight")
        head = PackedLinear(embedding)
    else:
        head = PackedLinear(matrix("lm_head", config.vocab_size, hidden))
    checkpoint.refuse_left()
    return Weights(embedding=embedding, layers=layers, norm=final_norm, head=head)

"""A model's tensors as the decoder takes them: fused, in one dtype, layer by layer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoint import EMBEDDING, HEAD, Checkpoint, embedding_name
from engine.model_config import ModelConfig, ModelError


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, unpacked. Matrices are [outputs, inputs] in the model's dtype, everything else is float32.

    H is the hidden size, Q and KV the width of all queries and of all keys, D that of a head, F the feed-forward size.
    """

    attention_norm: Tensor
    """[H]."""
    qkv: Tensor
    """[Q + 2 KV, H]: the rows of the queries, of the keys and of the values."""
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    """[D]: RMSNorm of every query head, before it is turned."""
    key_norm: Tensor | None
    attention_out: Tensor
    """[H, Q]."""
    attention_out_bias: Tensor | None
    feed_forward_norm: Tensor
    """[H]."""
    gate_up: Tensor
    """[2 F, H]: the rows of the gate and of the up projection."""
    gate_up_bias: Tensor | None
    down: Tensor
    """[H, F]."""
    down_bias: Tensor | None
    window: int
    """Last positions that a row sees, itself included; 0: all."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model. What is large is read when it is asked for, so that whoever packs one part and lets go of it
    before the next holds no more than one unpacked part. `layers` can be gone through once."""

    dtype: torch.dtype
    """Of the matrices."""
    read_embedding: Callable[[], Tensor]
    """[vocabulary, H]."""
    read_head: Callable[[], Tensor]
    """[vocabulary, H]; the same numbers as the embedding when the two are tied."""
    layers: Iterable[LayerWeights]
    norm: Tensor
    """[H], float32."""


def model_weights(config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> Weights:
    """The weights of a whole model, in `dtype`.

    Raises:
        ModelError: a tensor is missing, has another shape than the config says, or would not be used.
    """
    name = embedding_name(config, checkpoint)
    checkpoint.check_model(config)
    refuse_a_second_head(config, checkpoint)

    def read(name: str) -> Tensor:
        return _stacked(checkpoint, [(name, config.vocab_size)], config.hidden_size, dtype)

    return Weights(
        dtype=dtype,
        read_embedding=lambda: read(name),
        read_head=lambda: read(name if config.tied_head else HEAD),
        layers=_layers(config, checkpoint, dtype),
        norm=_vector(checkpoint, [("model.norm.weight", config.hidden_size)]),
    )


def layer_weights(
    config: ModelConfig, checkpoint: Checkpoint, prefix: str, dtype: torch.dtype, window: int = 0
) -> LayerWeights:
    """One layer, in `dtype`.

    Args:
        config: the model's shape.
        checkpoint: where the tensors are.
        prefix: how their names begin, such as ``model.layers.0.`` or ``layers.0.``.
        dtype: of the matrices.
        window: `LayerWeights.window`.

    Raises:
        ModelError: a tensor is missing or has another shape than the config says.
    """
    hidden, feed_forward, attention, feed = config.hidden_size, config.feed_forward_size, "self_attn.", "mlp."
    qkv = [(attention + "q_proj", config.query_width)]
    qkv += [(attention + name, config.kv_width) for name in ("k_proj", "v_proj")]
    attention_out = [(attention + "o_proj", hidden)]
    gate_up = [(feed + name, feed_forward) for name in ("gate_proj", "up_proj")]
    down = [(feed + "down_proj", hidden)]

    def matrix(parts: Sequence[tuple[str, int]], inputs: int) -> Tensor:
        return _stacked(checkpoint, [(f"{prefix}{name}.weight", outputs) for name, outputs in parts], inputs, dtype)

    def bias(parts: Sequence[tuple[str, int]], present: bool) -> Tensor | None:
        return _vector(checkpoint, [(f"{prefix}{name}.bias", outputs) for name, outputs in parts]) if present else None

    def norm(name: str, width: int) -> Tensor:
        return _vector(checkpoint, [(f"{prefix}{name}.weight", width)])

    return LayerWeights(
        attention_norm=norm("input_layernorm", hidden),
        qkv=matrix(qkv, hidden),
        qkv_bias=bias(qkv, config.qkv_bias),
        query_norm=norm(attention + "q_norm", config.head_dim) if config.query_key_norm else None,
        key_norm=norm(attention + "k_norm", config.head_dim) if config.query_key_norm else None,
        attention_out=matrix(attention_out, config.query_width),
        attention_out_bias=bias(attention_out, config.attention_out_bias),
        feed_forward_norm=norm("post_attention_layernorm", hidden),
        gate_up=matrix(gate_up, hidden),
        gate_up_bias=bias(gate_up, config.feed_forward_bias),
        down=matrix(down, feed_forward),
        down_bias=bias(down, config.feed_forward_bias),
        window=window,
    )


def refuse_a_second_head(config: ModelConfig, checkpoint: Checkpoint) -> None:
    """A file may repeat the tied embedding as its head; where the two differ, the config is wrong: ModelError."""
    if not (config.tied_head and EMBEDDING in checkpoint and HEAD in checkpoint):
        return
    shape = (config.vocab_size, config.hidden_size)
    if not torch.equal(checkpoint.take(HEAD, *shape).float(), checkpoint.take(EMBEDDING, *shape).float()):
        raise ModelError(
            f"{checkpoint.folder} has tie_word_embeddings true and an {HEAD} that differs from {EMBEDDING}; "
            "set tie_word_embeddings to false to use both"
        )


def _layers(config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> Iterator[LayerWeights]:
    for layer in range(config.num_layers):
        yield layer_weights(config, checkpoint, f"model.layers.{layer}.", dtype, config.window(layer))


def _stacked(checkpoint: Checkpoint, parts: Sequence[tuple[str, int]], inputs: int, dtype: torch.dtype) -> Tensor:
    """Matrices one below the other, copied out of the mapped file one after the other."""
    stacked = torch.empty(sum(outputs for _, outputs in parts), inputs, dtype=dtype)
    start = 0
    for name, outputs in parts:
        stacked[start : start + outputs].copy_(checkpoint.take(name, outputs, inputs))
        start += outputs
    return stacked


def _vector(checkpoint: Checkpoint, parts: Sequence[tuple[str, int]]) -> Tensor:
    return torch.cat([checkpoint.take(name, width).to(torch.float32) for name, width in parts])

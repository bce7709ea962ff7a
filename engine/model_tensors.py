"""The tensors that a checkpoint of a model must hold, and the memory that the loaded model takes.

Everything here follows from the config alone, so that a wrong folder is refused, and the memory is known, before a
weight is read. Imports no tensor library.
"""

from engine.model_config import ModelConfig, ModelError
from kernels.native_library import LANES

OUTPUT_PADDING = 32
"""The native decoder packs a weight in panels of this many outputs; the last panel is filled up."""
BYTES_OF = {"bfloat16": 2, "float32": 4}
"""Bytes of an element by the name of the dtype that weights and KV cache are held in."""
FLOAT32_BYTES = 4


def check_widths(config: ModelConfig) -> None:
    """Raises ModelError: a width that the kernels do not divide."""
    widths = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.feed_forward_size,
        "head_dim": config.head_dim,
    }
    for name, width in widths.items():
        if width % LANES:
            raise ModelError(f"the model has {name} {width}; the CPU kernels need a multiple of {LANES}")


def layer_tensors(config: ModelConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the layer whose names begin with `prefix`, such as ``model.layers.0.``."""
    hidden, feed_forward = config.hidden_size, config.feed_forward_size
    attention, feed = prefix + "self_attn.", prefix + "mlp."
    linears = (
        (attention + "q_proj", config.query_width, hidden, config.qkv_bias),
        (attention + "k_proj", config.kv_width, hidden, config.qkv_bias),
        (attention + "v_proj", config.kv_width, hidden, config.qkv_bias),
        (attention + "o_proj", hidden, config.query_width, config.attention_out_bias),
        (feed + "gate_proj", feed_forward, hidden, config.feed_forward_bias),
        (feed + "up_proj", feed_forward, hidden, config.feed_forward_bias),
        (feed + "down_proj", hidden, feed_forward, config.feed_forward_bias),
    )
    shapes: dict[str, tuple[int, ...]] = {
        prefix + "input_layernorm.weight": (hidden,),
        prefix + "post_attention_layernorm.weight": (hidden,),
    }
    for name, outputs, inputs, bias in linears:
        shapes[name + ".weight"] = (outputs, inputs)
        if bias:
            shapes[name + ".bias"] = (outputs,)
    if config.query_key_norm:
        shapes[attention + "q_norm.weight"] = (config.head_dim,)
        shapes[attention + "k_norm.weight"] = (config.head_dim,)
    return shapes


def model_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the model; of a tied head only the embedding."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        shapes |= layer_tensors(config, f"model.layers.{layer}.")
    return shapes


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of the weights as the native decoder holds them: a tied head serves as the embedding too.

    While it loads, one unpacked layer comes on top, `layer_bytes`; before that, the head lies there twice.

    Args:
        config: the model's shape.
        dtype: of the weights, a key of `BYTES_OF`; norms and biases are float32 whatever it is.
    """
    head = _packed_bytes(config.vocab_size, config.hidden_size, dtype)
    embedding = 0 if config.tied_head else config.vocab_size * config.hidden_size * BYTES_OF[dtype]
    return embedding + head + config.hidden_size * FLOAT32_BYTES + config.num_layers * layer_bytes(config, dtype)


def layer_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of the packed weights, norms and biases of one layer."""
    hidden, feed_forward = config.hidden_size, config.feed_forward_size
    qkv_width = config.query_width + 2 * config.kv_width
    packed = (
        _packed_bytes(qkv_width, hidden, dtype)
        + _packed_bytes(hidden, config.query_width, dtype)
        + _packed_bytes(2 * feed_forward, hidden, dtype)
        + _packed_bytes(hidden, feed_forward, dtype)
    )
    floats = 2 * hidden
    floats += qkv_width if config.qkv_bias else 0
    floats += hidden if config.attention_out_bias else 0
    floats += 2 * feed_forward + hidden if config.feed_forward_bias else 0
    floats += 2 * config.head_dim if config.query_key_norm else 0
    return packed + floats * FLOAT32_BYTES


def kv_bytes_per_token(config: ModelConfig, dtype: str) -> int:
    """Bytes of the keys and values of one token, in all layers."""
    return config.num_layers * 2 * config.kv_width * BYTES_OF[dtype]


def _packed_bytes(outputs: int, inputs: int, dtype: str) -> int:
    return -(-outputs // OUTPUT_PADDING) * OUTPUT_PADDING * inputs * BYTES_OF[dtype]

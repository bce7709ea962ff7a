"""What the decoder needs to know of a model, read from its config.json. Imports no tensor library.

Everything in the config that would change the arithmetic is either supported here or refused by name: a model is
never served with a setting ignored. What a config leaves out has the value that transformers 5.24 gives it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.rope_scaling import LAYER_KINDS, RopeScaling, inverse_frequencies, read_rope

FULL_ATTENTION, SLIDING_ATTENTION = LAYER_KINDS


class ModelError(Exception):
    """A model cannot be fetched, read or served; the message is one sentence for people, with the remedy."""


@dataclass(frozen=True, slots=True)
class _Family:
    """What a `model_type` is when its config does not say, and which optional settings it knows."""

    kv_heads: int | None
    """None: as many as there are heads."""
    max_position: int
    head_dim: int | None = None
    """None: the hidden size over the heads."""
    biases: tuple[str, ...] = ()
    """Names of the settings for biases that its config may have true."""
    always_qkv_bias: bool = False
    query_key_norm: bool = False
    window: int | None = None
    """`sliding_window` when the config does not say; None: the family has none."""
    window_by_layer: bool = False
    """Layers with a window and without, as use_sliding_window, max_window_layers and layer_types say."""


FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(kv_heads=None, max_position=2048, biases=("attention_bias", "mlp_bias")),
    "mistral": _Family(kv_heads=8, max_position=131072, window=4096),
    "qwen2": _Family(kv_heads=32, max_position=32768, always_qkv_bias=True, window=4096, window_by_layer=True),
    "qwen3": _Family(
        kv_heads=32,
        max_position=32768,
        head_dim=128,
        biases=("attention_bias",),
        query_key_norm=True,
        window=4096,
        window_by_layer=True,
    ),
}
DEFAULT_MAX_WINDOW_LAYERS = 28


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a model of one of `FAMILIES`."""

    vocab_size: int
    hidden_size: int
    feed_forward_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling
    tied_head: bool
    family: str = "llama"
    qkv_bias: bool = False
    attention_out_bias: bool = False
    feed_forward_bias: bool = False
    query_key_norm: bool = False
    """Queries and keys are normed head by head before they are turned."""
    windows: tuple[int, ...] = ()
    """Of each layer, how many of the last positions a row sees, itself included; 0: all. Empty: all, in every layer."""

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the keys of a layer, and of the values."""
        return self.num_kv_heads * self.head_dim

    @property
    def rope_attention_factor(self) -> float:
        """What cosine and sine are multiplied with; other than 1 for yarn only."""
        return self.rope_scaling.attention_factor

    def inverse_frequencies(self) -> tuple[float, ...]:
        """Radians per position of each rotary pair, [head_dim / 2]."""
        return inverse_frequencies(self.head_dim, self.rope_theta, self.rope_scaling)

    def window(self, layer: int) -> int:
        """Positions that a row of `layer` sees, itself included; 0: all."""
        return self.windows[layer] if self.windows else 0


def read_config(model_path: Path) -> ModelConfig:
    """Read and check `model_path`/config.json.

    Raises:
        ModelError: no such folder or file, bad JSON, another family, or a setting that the decoder does not support.
    """
    file = model_path / "config.json"
    if not model_path.is_dir():
        raise ModelError(f"model path {str(model_path)!r} is not a folder; give a folder that holds config.json")
    if not file.is_file():
        raise ModelError(f"model path {str(model_path)!r} holds no config.json; give a Hugging Face model folder")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} is not JSON ({error}); fetch the model again") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} is not a JSON object; fetch the model again")
    try:
        return parse_config(config)
    except ValueError as error:
        raise ModelError(f"{file} has {error}") from None  # a setting is wrong; nothing failed


def parse_config(config: Mapping[str, Any]) -> ModelConfig:
    """The `ModelConfig` of the content of a config.json.

    Raises:
        ValueError: a setting is missing, wrong or not supported; the message continues "config.json has".
    """
    name = config.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise ValueError(f"model_type {name!r}; supported families: {', '.join(FAMILIES)}")
    _refuse_unsupported(config, str(name), family)
    hidden_size, num_heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    num_layers = _integer(config, "num_hidden_layers")
    # a null means "as many as heads", an absence the family's own number
    kv_default = num_heads if "num_key_value_heads" in config else family.kv_heads or num_heads
    num_kv_heads = _integer(config, "num_key_value_heads", kv_default)
    head_dim = _integer(config, "head_dim", family.head_dim or hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ValueError(
            f"{num_heads} heads of width {head_dim} over {num_kv_heads} key-value heads, which do not divide"
        )
    max_position = _integer(config, "max_position_embeddings", family.max_position)
    epsilon = config.get("rms_norm_eps", 1e-6)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
        raise ValueError(f"rms_norm_eps {epsilon!r}, which must be a number from 0 to 1")
    theta, scaling = read_rope(config, max_position)
    attention_bias = _flag(config, "attention_bias") and "attention_bias" in family.biases
    return ModelConfig(
        vocab_size=_integer(config, "vocab_size"),
        hidden_size=hidden_size,
        feed_forward_size=_integer(config, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=max_position,
        norm_epsilon=float(epsilon),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_head=_flag(config, "tie_word_embeddings"),
        family=str(name),
        qkv_bias=attention_bias or family.always_qkv_bias,
        attention_out_bias=attention_bias,
        feed_forward_bias=_flag(config, "mlp_bias"),
        query_key_norm=family.query_key_norm,
        windows=_windows(config, str(name), family, num_layers),
    )


def _refuse_unsupported(config: Mapping[str, Any], name: str, family: _Family) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act {activation!r}; only silu is supported")
    for bias in ("attention_bias", "mlp_bias"):
        # qwen2 has its biases whatever the setting says
        known = bias in family.biases or (bias == "attention_bias" and family.always_qkv_bias)
        if _flag(config, bias) and not known:
            raise ValueError(f"{bias} true, which {name} models do not have; set it to false")
    if config.get("quantization_config"):
        raise ValueError("a quantization_config; use the unquantised weights of the model")


def _windows(config: Mapping[str, Any], name: str, family: _Family, num_layers: int) -> tuple[int, ...]:
    """`ModelConfig.windows`: all layers of mistral; of qwen2 and qwen3 those that `layer_types` names, or the later."""
    window = config.get("sliding_window", family.window)
    if window and family.window is None:
        raise ValueError(f"sliding_window {window!r}, which {name} models do not have; remove it")
    full_layers = 0
    if family.window_by_layer:
        window = window if _flag(config, "use_sliding_window") else None
        full_layers = config.get("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS)
        if isinstance(full_layers, bool) or not isinstance(full_layers, int) or full_layers < 0:
            raise ValueError(f"max_window_layers {full_layers!r}, which must be an integer from 0 on")
    kinds = [
        FULL_ATTENTION if window is None or layer < full_layers else SLIDING_ATTENTION for layer in range(num_layers)
    ]
    given = config.get("layer_types")
    if given is not None:
        if not isinstance(given, list) or len(given) != num_layers or not set(map(str, given)) <= set(LAYER_KINDS):
            raise ValueError(f"layer_types {given!r}, which must name one of {', '.join(LAYER_KINDS)} for every layer")
        if given != kinds and not family.window_by_layer:
            raise ValueError(f"layer_types {given!r}, which {name} models do not have; remove them")
        if SLIDING_ATTENTION in given and window is None:
            raise ValueError(
                "layer_types with sliding_attention but no use_sliding_window and sliding_window; set both"
            )
        kinds = given
    if SLIDING_ATTENTION not in kinds:
        return ()
    width = _integer(config, "sliding_window", family.window)
    return tuple(width if kind == SLIDING_ATTENTION else 0 for kind in kinds)


def _integer(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} {value!r}, which must be a positive integer")
    return value


def _flag(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} {value!r}, which must be true or false")
    return bool(value)

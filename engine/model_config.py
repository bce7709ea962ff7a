"""What the decoder needs to know of a model, read from its config.json. Imports no tensor library.

Everything in the config that would change the arithmetic is either supported here or refused by name: a model is
never served with a setting ignored.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORTED_FAMILIES = ("llama",)
SUPPORTED_ROPE = ("default", "linear", "llama3")


class ModelError(Exception):
    """A model cannot be fetched, read or served; the message is one sentence for people, with the remedy."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are changed for long contexts; the names are those of transformers' config."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a Llama-family model."""

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

    def inverse_frequencies(self) -> tuple[float, ...]:
        """Radians per position of each rotary pair, [head_dim / 2]; formulae of transformers' modeling_rope_utils."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-2 * index / self.head_dim) for index in range(half)]
        scaling = self.rope_scaling
        if scaling.kind == "linear":
            return tuple(frequency / scaling.factor for frequency in plain)
        if scaling.kind == "llama3":
            return tuple(_llama3_frequency(frequency, scaling) for frequency in plain)
        return tuple(plain)


def _llama3_frequency(frequency: float, scaling: RopeScaling) -> float:
    wavelength = 2 * math.pi / frequency
    if wavelength < scaling.original_max_position / scaling.high_freq_factor:
        return frequency
    if wavelength > scaling.original_max_position / scaling.low_freq_factor:
        return frequency / scaling.factor
    smooth = (scaling.original_max_position / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


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
    _refuse_unsupported(config, file)
    num_heads = _integer(config, "num_attention_heads", file)
    hidden_size = _integer(config, "hidden_size", file)
    num_kv_heads = _integer(config, "num_key_value_heads", file, num_heads)
    head_dim = _integer(config, "head_dim", file, hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelError(
            f"{file} has {num_heads} heads of width {head_dim} over {num_kv_heads} key-value heads, which do not divide"
        )
    theta, scaling = _rope(config, file)
    return ModelConfig(
        vocab_size=_integer(config, "vocab_size", file),
        hidden_size=hidden_size,
        feed_forward_size=_integer(config, "intermediate_size", file),
        num_layers=_integer(config, "num_hidden_layers", file),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=_integer(config, "max_position_embeddings", file, 2048),
        norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_head=bool(config.get("tie_word_embeddings", False)),
    )


def _refuse_unsupported(config: dict[str, Any], file: Path) -> None:
    family = config.get("model_type")
    if family not in SUPPORTED_FAMILIES:
        supported = ", ".join(SUPPORTED_FAMILIES)
        raise ModelError(f"{file} has model_type {family!r}; supported families: {supported}")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"{file} has hidden_act {activation!r}; only silu is supported")
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            raise ModelError(f"{file} has {name} true; only models without biases are supported")
    if config.get("quantization_config"):
        raise ModelError(f"{file} has a quantization_config; use the unquantised weights of the model")


def _integer(config: dict[str, Any], name: str, file: Path, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{file} has {name} {value!r}, which must be a positive integer")
    return value


def _rope(config: dict[str, Any], file: Path) -> tuple[float, RopeScaling]:
    """Theta and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    parameters = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in SUPPORTED_ROPE:
        raise ModelError(f"{file} has rope type {kind!r}; supported: {', '.join(SUPPORTED_ROPE)}")
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError(f"{file} has a partial_rotary_factor; only rotation of the whole head is supported")
    if kind == "default":
        return theta, RopeScaling()
    try:
        if kind == "linear":
            return theta, RopeScaling(kind, float(parameters["factor"]))
        return theta, RopeScaling(
            kind,
            float(parameters["factor"]),
            float(parameters["low_freq_factor"]),
            float(parameters["high_freq_factor"]),
            int(parameters["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelError(f"{file} has rope type {kind!r} without {error.args[0]}") from error

"""Rotary frequencies and how they are changed for long contexts. Imports no tensor library.

The formulae are those of transformers' modeling_rope_utils (5.24), in float64. `dynamic` and `longrope` are not here:
their frequencies depend on how long the sequence is by now, so that keys already cached would have to be turned again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUPPORTED_ROPE = ("default", "linear", "llama3", "yarn")
DEFAULT_THETA = 10000.0
LAYER_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are changed; the names are those of transformers' config."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """What cosine and sine are multiplied with; other than 1 for yarn only."""


def read_rope(config: Mapping[str, Any], max_position: int) -> tuple[float, RopeScaling]:
    """Theta and scaling from a config.json, in the style of transformers 5 (`rope_parameters`) or before.

    Where both styles are present `rope_scaling` wins, and where a value is missing its default is used, as in
    transformers.

    Raises:
        ValueError: a kind that is not supported, or a value that is no number; the message has no subject.
    """
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise ValueError(f"rope parameters {parameters!r}, which must be an object")
    nested = [name for name in LAYER_KINDS if name in parameters]
    if nested:
        raise ValueError(f"rope parameters of its own for {nested[0]}; only one set for all layers is supported")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in SUPPORTED_ROPE:
        raise ValueError(f"rope type {kind!r}; supported: {', '.join(SUPPORTED_ROPE)}")
    for source in (parameters, config):
        if source.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise ValueError("a partial_rotary_factor; only rotation of the whole head is supported")
    outer_theta = config.get("rope_theta")
    theta = _number(parameters, kind, "rope_theta", DEFAULT_THETA if outer_theta is None else outer_theta)
    if theta <= 1:
        raise ValueError(f"rope_theta {theta}, which must be above 1")
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling(kind, _number(parameters, kind, "factor"))
    original = _original_max_position(parameters, config, kind, max_position)
    if kind == "llama3":
        low, high = (_number(parameters, kind, name) for name in ("low_freq_factor", "high_freq_factor"))
        if low == high:
            raise ValueError(f"rope type 'llama3' with low_freq_factor and high_freq_factor both {low}")
        return theta, RopeScaling(kind, _number(parameters, kind, "factor"), low, high, original)
    return theta, _yarn(parameters, original, max_position)


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> tuple[float, ...]:
    """Radians per position of each rotary pair, [head_dim / 2]."""
    plain = [theta ** (-2 * index / head_dim) for index in range(head_dim // 2)]
    if scaling.kind == "linear":
        return tuple(frequency / scaling.factor for frequency in plain)
    if scaling.kind == "llama3":
        return tuple(_llama3_frequency(frequency, scaling) for frequency in plain)
    if scaling.kind == "yarn":
        return _yarn_frequencies(plain, head_dim, theta, scaling)
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


def _yarn_frequencies(plain: list[float], head_dim: int, theta: float, scaling: RopeScaling) -> tuple[float, ...]:
    """Pairs that turn often keep their frequency, those that turn seldom are stretched, a ramp lies between."""

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(scaling.original_max_position / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # transformers does the same, so that the ramp has a slope
    frequencies = []
    for index, frequency in enumerate(plain):
        stretched = min(max((index - low) / (high - low), 0.0), 1.0)
        frequencies.append(frequency / scaling.factor * stretched + frequency * (1 - stretched))
    return tuple(frequencies)


def _yarn(parameters: Mapping[str, Any], original: int, max_position: int) -> RopeScaling:
    factor = _number(parameters, "yarn", "factor", max_position / original)
    return RopeScaling(
        "yarn",
        factor,
        original_max_position=original,
        beta_fast=_number(parameters, "yarn", "beta_fast", 32.0),
        beta_slow=_number(parameters, "yarn", "beta_slow", 1.0),
        truncate=bool(parameters.get("truncate", True)),
        attention_factor=_yarn_attention_factor(parameters, factor),
    )


def _yarn_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return _number(parameters, "yarn", "attention_factor")

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        above, below = (_number(parameters, "yarn", name) for name in ("mscale", "mscale_all_dim"))
        return magnitude(above) / magnitude(below)
    return magnitude(1.0)


def _original_max_position(
    parameters: Mapping[str, Any], config: Mapping[str, Any], kind: str, max_position: int
) -> int:
    name = "original_max_position_embeddings"
    outer = config.get(name)
    return int(_number(parameters if outer is None else config, kind, name, max_position))


def _number(parameters: Mapping[str, Any], kind: str, name: str, default: float | None = None) -> float:
    value = parameters.get(name)
    if value is None:
        value = default
    if value is None:
        raise ValueError(f"rope type {kind!r} without {name}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"rope type {kind!r} with {name} {value!r}, which must be a number above 0")
    return float(value)

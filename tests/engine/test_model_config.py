"""What a config.json is read as, and what is refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.model_config import ModelConfig, ModelError, parse_config, read_config
from tests.engine.family_model import LLAMA3, YARN

SMALLEST = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
}


def parsed(model_type: str, **settings: Any) -> ModelConfig:
    return parse_config(SMALLEST | {"model_type": model_type} | settings)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_a_config_leaves_out_is_what_transformers_takes(model_type: str) -> None:
    ours, theirs = parsed(model_type), AutoConfig.for_model(model_type, **SMALLEST)
    assert ours.family == model_type
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", 64 // 32)
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.norm_epsilon == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tied_head == theirs.tie_word_embeddings
    assert ours.windows == ((4096,) * 3 if model_type == "mistral" else ())


def test_key_value_heads_that_are_null_are_as_many_as_heads() -> None:
    assert parsed("mistral", num_key_value_heads=None).num_kv_heads == 32


def test_biases_and_norms_follow_the_family_and_its_settings() -> None:
    def present(config: ModelConfig) -> tuple[bool, bool, bool, bool]:
        return config.qkv_bias, config.attention_out_bias, config.feed_forward_bias, config.query_key_norm

    assert present(parsed("llama")) == (False, False, False, False)
    assert present(parsed("llama", attention_bias=True)) == (True, True, False, False)
    assert present(parsed("llama", mlp_bias=True)) == (False, False, True, False)
    assert present(parsed("qwen2")) == (True, False, False, False)
    assert present(parsed("qwen2", attention_bias=True)) == (True, False, False, False)
    assert present(parsed("qwen3")) == (False, False, False, True)
    assert present(parsed("qwen3", attention_bias=True)) == (True, True, False, True)


@pytest.mark.parametrize(
    ("model_type", "settings", "windows"),
    [
        ("mistral", {"sliding_window": 20}, (20, 20, 20)),
        ("mistral", {"sliding_window": None}, ()),
        ("mistral", {"sliding_window": 20, "layer_types": ["sliding_attention"] * 3}, (20, 20, 20)),
        ("qwen2", {"sliding_window": 20}, ()),
        ("qwen2", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, ()),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 3}, ()),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}, (0, 20, 20)),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 2}, (0, 0, 4096)),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 20,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            },
            (20, 0, 0),
        ),
        ("llama", {"sliding_window": None, "layer_types": ["full_attention"] * 3}, ()),
    ],
)
def test_the_windows_of_the_layers_follow_the_config(
    model_type: str, settings: dict[str, Any], windows: tuple[int, ...]
) -> None:
    config = parsed(model_type, **settings)
    assert config.windows == windows
    assert [config.window(layer) for layer in range(3)] == list(windows or (0, 0, 0))


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 4.0},
        LLAMA3,
        YARN,
        {**YARN, "factor": 0.5},
        {**YARN, "attention_factor": 1.7},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
        {**YARN, "mscale": 0.7},
        {**YARN, "beta_fast": 4, "beta_slow": 0.5},
        {**YARN, "truncate": False},
        {**YARN, "beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
        {"rope_type": "yarn", "factor": 4.0},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    ],
)
@pytest.mark.parametrize("style", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(("head_dim", "theta"), [(64, 10000.0), (128, 1000000.0)])
def test_scaled_frequencies_are_those_of_transformers(
    parameters: dict[str, Any], style: str, head_dim: int, theta: float
) -> None:
    settings: dict[str, Any] = {"head_dim": head_dim}
    if style == "rope_parameters":
        settings["rope_parameters"] = {"rope_theta": theta, **parameters}
    else:
        settings |= {"rope_theta": theta, "rope_scaling": dict(parameters)}
    ours = parsed("llama", **settings)
    theirs = AutoConfig.for_model("llama", **SMALLEST, **settings)
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[theirs.rope_parameters["rope_type"]](theirs)
    assert ours.inverse_frequencies() == pytest.approx(frequencies.tolist(), rel=1e-6)
    assert ours.rope_attention_factor == pytest.approx(attention_factor, rel=1e-12)
    assert ours.rope_theta == theta


@pytest.mark.parametrize(
    ("model_type", "settings", "named"),
    [
        ("gemma2", {}, "model_type 'gemma2'; supported families: llama, mistral, qwen2, qwen3"),
        ("qwen3_moe", {}, "model_type 'qwen3_moe'; supported families"),
        (None, {}, "model_type None; supported families"),
        (["llama"], {}, "model_type ['llama']; supported families"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'; only silu"),
        ("mistral", {"attention_bias": True}, "attention_bias true, which mistral models do not have"),
        ("qwen3", {"mlp_bias": True}, "mlp_bias true, which qwen3 models do not have"),
        ("llama", {"attention_bias": "yes"}, "attention_bias 'yes', which must be true or false"),
        ("llama", {"quantization_config": {"bits": 4}}, "a quantization_config; use the unquantised weights"),
        ("llama", {"num_hidden_layers": "two"}, "num_hidden_layers 'two', which must be a positive integer"),
        ("llama", {"vocab_size": True}, "vocab_size True, which must be a positive integer"),
        ("llama", {"hidden_size": None}, "hidden_size None, which must be a positive integer"),
        ("llama", {"num_key_value_heads": 3}, "over 3 key-value heads, which do not divide"),
        ("llama", {"head_dim": 15}, "heads of width 15"),
        ("llama", {"rms_norm_eps": "small"}, "rms_norm_eps 'small', which must be a number"),
        ("llama", {"sliding_window": 64}, "sliding_window 64, which llama models do not have"),
        ("mistral", {"sliding_window": 0}, "sliding_window 0, which must be a positive integer"),
        (
            "mistral",
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "layer_types ['full_attention', 'sliding_attention', 'full_attention'], which mistral models do not have",
        ),
        ("qwen2", {"max_window_layers": -1}, "max_window_layers -1, which must be an integer from 0 on"),
        ("qwen2", {"layer_types": ["full_attention"] * 2}, "for every layer"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "which must name one of full_attention, sliding"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "but no use_sliding_window and sliding_window; set both"),
        ("llama", {"rope_parameters": [1]}, "rope parameters [1], which must be an object"),
        (
            "qwen3",
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope parameters of its own for full_attention",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
            "rope type 'dynamic'; supported: default, linear, llama3, yarn",
        ),
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope type 'longrope'; supported"),
        ("qwen2", {"rope_scaling": {"type": "mrope", "mrope_section": [2]}}, "rope type 'mrope'; supported"),
        ("llama", {"partial_rotary_factor": 0.5}, "a partial_rotary_factor; only rotation of the whole head"),
        ("llama", {"rope_theta": "big"}, "rope_theta 'big', which must be a number above 0"),
        ("llama", {"rope_theta": 1}, "rope_theta 1.0, which must be above 1"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "rope type 'linear' without factor"),
        ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "'llama3' without low_freq_factor"),
        (
            "llama",
            {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}},
            "and high_freq_factor both 4.0",
        ),
        ("llama", {"rope_scaling": {**YARN, "factor": -1}}, "'yarn' with factor -1, which must be a number above 0"),
    ],
)
def test_a_setting_that_is_not_supported_is_refused_by_name(
    tmp_path: Path, model_type: Any, settings: dict[str, Any], named: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALLEST | {"model_type": model_type} | settings))
    with pytest.raises(ModelError) as caught:
        read_config(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'config.json'} has ")
    assert named in message


def test_what_is_no_config_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        read_config(tmp_path)
    for text, named in (("{", "is not JSON"), ("[]", "is not a JSON object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=named):
            read_config(tmp_path)

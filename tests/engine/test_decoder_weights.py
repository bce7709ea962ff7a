"""What can be loaded, and what is refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model_config import ModelError
from engine.weights import choose_dtype, load_decoder
from tests.engine.decoder_runs import chunked, random_tokens
from tests.engine.tiny_model import make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", layers=1)


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_shards_give_the_same_logits_as_one_file(folder: Path) -> None:
    token_ids = random_tokens(384, 30)
    whole = chunked(load_decoder(folder, "float32", slots=1, capacity=64), token_ids, 0, [30])
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sharded = chunked(load_decoder(folder, "float32", slots=1, capacity=64), token_ids, 0, [30])
    assert torch.equal(sharded, whole)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="model-00002-of-00002"):
        load_decoder(folder, "float32", slots=1, capacity=64)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": "qwen3"}, "'qwen3'; supported families: llama"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'; supported: default, linear, llama3"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "without low_freq_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers 'two'"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"num_hidden_layers": 2}, "no tensor model.layers.1."),
        ({"intermediate_size": 64}, "shape"),
        ({"tie_word_embeddings": False}, "no tensor lm_head.weight"),
    ],
)
def test_a_setting_that_the_decoder_does_not_support_is_refused_by_name(
    folder: Path, fields: dict[str, Any], named: str
) -> None:
    change_config(folder, **fields)
    with pytest.raises(ModelError) as caught:
        load_decoder(folder, "float32", slots=1, capacity=64)
    assert named in str(caught.value)


def test_a_tensor_that_the_decoder_would_not_use_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}
    save_file(tensors | bias, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"q_proj\.bias"):
        load_decoder(folder, "float32", slots=1, capacity=64)


def test_a_tied_head_that_the_file_repeats_is_not_read(folder: Path) -> None:
    token_ids = random_tokens(384, 10)
    before = chunked(load_decoder(folder, "float32", slots=1, capacity=64), token_ids, 0, [10])
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"lm_head.weight": torch.zeros(384, 64)}, folder / "model.safetensors")
    after = chunked(load_decoder(folder, "float32", slots=1, capacity=64), token_ids, 0, [10])
    assert torch.equal(before, after)


def test_what_is_no_model_is_told_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        load_decoder(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        load_decoder(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not JSON"):
        load_decoder(folder)


def test_a_broken_or_missing_weight_file_is_told_by_name(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_decoder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        load_decoder(folder)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "float16"}, "dtype is 'float16'; use auto, bfloat16 or float32"),
        ({"slots": 0}, "slots is 0"),
        ({"capacity": 4096}, "capacity is 4096; this model has positions for 1 to 2048"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_by_name(folder: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        load_decoder(folder, **options)


def test_auto_is_bfloat16_only_where_the_cpu_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for capabilities, expected in (
        ({"avx512_bf16": True, "amx_bf16": False}, torch.bfloat16),
        ({"avx512_bf16": False, "amx_bf16": True}, torch.bfloat16),
        ({"avx512_f": True}, torch.float32),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda capabilities=capabilities: capabilities)
        assert choose_dtype("auto") == expected

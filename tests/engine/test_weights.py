"""What can be loaded, what is refused in one sentence, and what it takes."""

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine import model_weights
from engine.checkpoint import Checkpoint
from engine.decoder import Decoder
from engine.model_config import ModelError, read_config
from engine.model_tensors import kv_bytes_per_token, layer_bytes, layer_tensors, model_tensors, weight_bytes
from engine.model_weights import layer_weights
from engine.weights import choose_dtype, load_decoder, model_dtype
from kernels.native_threads import NativeThreads
from tests.engine.decoder_runs import chunked, random_tokens
from tests.engine.family_model import FAMILIES, make_family_model
from tests.engine.tiny_model import make_tiny_model

WEIGHTS = "model.safetensors"
TOKEN_IDS = random_tokens(384, 30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", layers=1)


@pytest.fixture
def load(folder: Path, native: NativeThreads) -> Callable[[], Decoder]:
    return lambda: load_decoder(folder, "float32", blocks=4, capacity=64, native=native)


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    (folder / WEIGHTS).unlink()
    save_file(tensors, folder / WEIGHTS)


def split_into_shards(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_give_the_same_logits_as_one_file(folder: Path, load: Callable[[], Decoder]) -> None:
    whole = chunked(load(), TOKEN_IDS, [30])
    split_into_shards(folder)
    assert torch.equal(chunked(load(), TOKEN_IDS, [30]), whole)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model-00002-of-00002\.safetensors"):
        load()


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {"a": 5}}'])
def test_an_index_that_is_none_is_told_by_name(folder: Path, load: Callable[[], Decoder], index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"index\.json is not a safetensors index"):
        load()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_hidden_layers": 2}, "no tensor model.layers.1."),
        ({"intermediate_size": 64}, "of shape (128, 64); the config says (64, 64)"),
        ({"tie_word_embeddings": False}, "no tensor lm_head.weight"),
        ({"attention_bias": True}, "no tensor model.layers.0.self_attn.q_proj.bias"),
        ({"model_type": "qwen3"}, "no tensor model.layers.0.self_attn.q_norm.weight"),
    ],
)
def test_a_config_that_the_tensors_do_not_fit_is_refused_by_name(
    folder: Path, load: Callable[[], Decoder], fields: dict[str, Any], named: str
) -> None:
    change_config(folder, **fields)
    with pytest.raises(ModelError) as caught:
        load()
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.input_layernorm.weight"])
def test_a_tensor_that_would_not_be_used_is_refused_by_name(
    folder: Path, load: Callable[[], Decoder], name: str
) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: torch.ones(64)}))
    with pytest.raises(ModelError, match=f"has tensor {name}, which the decoder would not use"):
        load()


def test_rotary_frequencies_in_the_file_are_not_needed(folder: Path, load: Callable[[], Decoder]) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    load()


def test_a_quantised_tensor_is_refused_by_name(folder: Path, load: Callable[[], Decoder]) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(ModelError, match=r"down_proj\.weight stored as F8_E4M3; use unquantised weights"):
        load()


def test_a_tied_head_may_be_repeated_or_stand_alone(folder: Path, load: Callable[[], Decoder]) -> None:
    embedding = "model.embed_tokens.weight"
    before = chunked(load(), TOKEN_IDS, [30])
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()}))
    assert torch.equal(chunked(load(), TOKEN_IDS, [30]), before)
    change_tensors(folder, lambda tensors: tensors.pop(embedding).zero_())
    assert torch.equal(chunked(load(), TOKEN_IDS, [30]), before)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(folder: Path, load: Callable[[], Decoder]) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(384, 64)}))
    with pytest.raises(ModelError, match="set tie_word_embeddings to false to use both"):
        load()
    change_config(folder, tie_word_embeddings=False)
    assert not chunked(load(), TOKEN_IDS, [30]).any()


def test_a_broken_or_missing_weight_file_is_told_by_name(folder: Path, load: Callable[[], Decoder]) -> None:
    (folder / WEIGHTS).write_bytes(b"no header")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load()
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors; only safetensors weights are supported"):
        load()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "float16"}, "dtype is 'float16'; use auto, bfloat16 or float32"),
        ({"blocks": 0}, "blocks is 0"),
        ({"capacity": 4096}, "capacity is 4096; this model has positions for 1 to 2048"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_by_name(folder: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        load_decoder(folder, **({"blocks": 4, "capacity": 64} | options))


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("capabilities", "native"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx512_f": True}, False),
    ],
)
def test_auto_is_bfloat16_for_16_bit_weights_and_where_the_cpu_multiplies_it(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: torch.dtype,
    capabilities: dict[str, bool],
    native: bool,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    change_tensors(folder, lambda tensors: tensors.update({name: t.to(stored) for name, t in tensors.items()}))
    expected = torch.float32 if stored == torch.float32 and not native else torch.bfloat16
    config, checkpoint = read_config(folder), Checkpoint(folder)
    assert model_dtype(config, checkpoint, "auto") == expected
    assert model_dtype(config, checkpoint, "float32") == choose_dtype("float32") == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "llama, all biases, wide heads", "qwen3, biases, one layer with a window"])
def test_the_memory_that_is_computed_is_what_the_decoder_holds(
    tmp_path: Path, native: NativeThreads, name: str, dtype: str
) -> None:
    folder = make_family_model(tmp_path, FAMILIES[name])
    config = read_config(folder)
    few, more = (load_decoder(folder, dtype, blocks=blocks, capacity=64, native=native) for blocks in (1, 11))
    rotary_bytes = 2 * 64 * config.head_dim // 2 * 4
    kept_bytes = weight_bytes(config, dtype) + rotary_bytes + 16 * kv_bytes_per_token(config, dtype)
    assert few.memory_bytes == kept_bytes
    assert more.memory_bytes - few.memory_bytes == 160 * kv_bytes_per_token(config, dtype)


def test_loading_reads_one_layer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies unpacked is held by nobody once it is packed: at most the parts of one layer are alive."""
    folder = make_family_model(tmp_path, FAMILIES["llama, as many key-value heads"])
    alive, most = 0, 0
    stacked, config = model_weights._stacked, read_config(folder)

    def released(size: int) -> None:
        nonlocal alive
        alive -= size

    def counted(*arguments: Any) -> Tensor:
        nonlocal alive, most
        tensor = stacked(*arguments)
        weakref.finalize(tensor, released, tensor.nbytes)
        alive += tensor.nbytes
        most = max(most, alive)
        return tensor

    monkeypatch.setattr(model_weights, "_stacked", counted)
    decoder = load_decoder(folder, "float32", blocks=4, capacity=64)
    embedding_bytes = config.vocab_size * config.hidden_size * 4
    # an untied embedding is kept as it was read
    assert most <= embedding_bytes + max(layer_bytes(config, "float32"), embedding_bytes)
    assert alive == embedding_bytes
    assert decoder.config == config


def test_a_layer_loads_from_names_that_begin_otherwise(tmp_path: Path, folder: Path) -> None:
    config = read_config(folder)
    layer = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(folder / WEIGHTS).items()
        if name.startswith("model.layers.0.")
    }
    (tmp_path / "drafter").mkdir()
    save_file(layer, tmp_path / "drafter" / WEIGHTS)
    drafter = Checkpoint(tmp_path / "drafter")
    drafter.check(layer_tensors(config, "layers.0."))
    ours = layer_weights(config, drafter, "layers.0.", torch.float32, window=7)
    theirs = layer_weights(config, Checkpoint(folder), "model.layers.0.", torch.float32)
    assert torch.equal(ours.qkv, theirs.qkv)
    assert torch.equal(ours.gate_up, theirs.gate_up)
    assert (ours.window, theirs.window) == (7, 0)
    with pytest.raises(ModelError, match=r"no tensor model\.embed_tokens\.weight"):
        drafter.check(model_tensors(config))

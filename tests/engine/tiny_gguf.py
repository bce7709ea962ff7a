"""The tiny model as llama.cpp would store it: what a fetch of the default model downloads, in small."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy
from gguf import GGUFWriter
from safetensors.torch import load_file

from engine.gguf_convert import CONTROL_TOKEN, LAYER_TENSORS, OUTER_TENSORS

NORMAL_TOKEN = 1


def write_tiny_gguf(model: Path, file: Path, extra: Mapping[str, numpy.ndarray] | None = None) -> None:
    """Write the tiny model in the folder `model` as `file`, its query and key rows in llama.cpp's order.

    `extra` are tensors to add as they are, by their GGUF name.
    """
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL_TOKEN if token in special else NORMAL_TOKEN for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_unk_token_id(config["bos_token_id"])
    writer.add_chat_template(json.loads((model / "tokenizer_config.json").read_text())["chat_template"])
    for name, tensor in load_file(model / "model.safetensors").items():
        weight = tensor.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            kind = "num_attention_heads" if name.endswith("q_proj.weight") else "num_key_value_heads"
            rows, columns = weight.shape
            halves = weight.reshape(config[kind], 2, rows // config[kind] // 2, columns)
            weight = halves.swapaxes(1, 2).reshape(rows, columns).copy()
        writer.add_tensor(_gguf_name(name), weight)
    for name, weight in (extra or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    for short, long in OUTER_TENSORS.items():
        if stem == long:
            return f"{short}.weight"
    _, _, layer, rest = stem.split(".", 3)
    short = next(short for short, long in LAYER_TENSORS.items() if long == rest)
    return f"blk.{layer}.{short}.weight"

"""A Llama-family GGUF with a byte-level BPE tokenizer into a Hugging Face model folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN = 3
"""`tokenizer.ggml.token_type` of a token that is never the text of a prompt."""

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert_gguf(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write the model in `file` to `folder`, dequantised and rounded to bfloat16.

    Args:
        file: the GGUF.
        folder: exists and is empty.
        progress: told the quantised bytes that are done, and all of them.

    Raises:
        ValueError: another architecture or tokenizer, or a tensor that Llama does not have.
        OSError: the disk is full, and the like.
    """
    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.model"] != "gpt2":
        raise ValueError(
            f"the GGUF is {fields['general.architecture']} with a {fields['tokenizer.ggml.model']} tokenizer; "
            "only llama with gpt2 is converted"
        )
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    tensors: dict[str, torch.Tensor] = {}
    total, done = sum(tensor.n_bytes for tensor in reader.tensors), 0
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        name = _tensor_name(tensor.name)
        if name.endswith("q_proj.weight"):
            weight = _halves(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = _halves(weight, kv_heads)
        tensors[name] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
        done += tensor.n_bytes
        progress(done, total)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = _config(fields, tied="lm_head.weight" not in tensors)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(special, indent=2), encoding="utf-8")
    _write_tokenizer(fields, folder)


def _tensor_name(name: str) -> str:
    """`blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[-1] == "weight" and len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    if parts[-1] == "weight" and len(parts) == 2 and parts[0] in OUTER_TENSORS:
        return f"{OUTER_TENSORS[parts[0]]}.weight"
    raise ValueError(f"the GGUF has tensor {name}, which the Llama decoder does not support")


def _halves(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Undo llama.cpp's order of a head's rows: rotary pairs lie side by side there, in two halves in transformers."""
    outputs, inputs = weight.shape
    return weight.reshape(heads, outputs // heads // 2, 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "num_hidden_layers": fields["llama.block_count"],
        "head_dim": hidden // heads,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in fields["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    splits: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if fields["tokenizer.ggml.pre"] == "smollm":
        splits.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif fields["tokenizer.ggml.pre"] != "gpt-2":
        raise ValueError(f"the GGUF splits text as {fields['tokenizer.ggml.pre']!r}; only smollm and gpt-2 are known")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")

"""A tiny random Llama with a real tokenizer, written to a folder: what tests load instead of the default model."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = range(3)
"""Token ids of `SPECIAL_TOKENS`: begin of text and padding, begin of a turn, end of a turn (which is EOS)."""

HEAD_DIM = 16
FEED_FORWARD = 128

CORPUS = """\
The riders take turns at the front so that the others can draft behind them, and somebody has to say who pulls.
def rider(name: str, speed: float) -> dict[str, object]:
    return {"name": name, "speed": speed, "at_front": False}
for index, item in enumerate(items):
    if item is None or not item.strip():
        continue
    print(f"{index}: {item}", end="\\n")
Rytterne skiftes til at ligge forrest, så de andre kan køre i læ af dem. Die Fahrer wechseln sich vorne ab.
Les coureurs se relaient en tête. Los corredores se turnan al frente del pelotón para descansar detrás.
What is the fastest way to get from the station to the harbour with two bicycles and one heavy suitcase?
"""


def make_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    vocabulary: int = 384,
    layers: int = 2,
    tied: bool = True,
    heads: int = 4,
    kv_heads: int = 2,
    max_position: int = 2048,
) -> Path:
    """Write config.json, model.safetensors (float32) and the tokenizer files to `folder`, and return it.

    Every one of the `vocabulary` ids is a token of the tokenizer: the three special ones, the 256 bytes, and merges
    learned from `CORPUS`. The same arguments give the same bytes.

    Raises:
        ValueError: `vocabulary` is below 259 or beyond what the corpus has merges for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder, vocabulary)
    hidden = heads * HEAD_DIM
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "head_dim": HEAD_DIM,
        "vocab_size": vocabulary,
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generator = torch.Generator().manual_seed(seed)

    def linear(outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs)

    def norm() -> torch.Tensor:
        return 1.0 + 0.1 * torch.randn(hidden, generator=generator)

    kv_width = kv_heads * HEAD_DIM
    tensors = {"model.embed_tokens.weight": 2.0 * linear(vocabulary, hidden), "model.norm.weight": norm()}
    if not tied:
        tensors["lm_head.weight"] = 2.0 * linear(vocabulary, hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": linear(hidden, hidden),
            prefix + "self_attn.k_proj.weight": linear(kv_width, hidden),
            prefix + "self_attn.v_proj.weight": linear(kv_width, hidden),
            prefix + "self_attn.o_proj.weight": linear(hidden, hidden),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": linear(FEED_FORWARD, hidden),
            prefix + "mlp.up_proj.weight": linear(FEED_FORWARD, hidden),
            prefix + "mlp.down_proj.weight": linear(hidden, FEED_FORWARD),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=1,
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise ValueError(f"vocabulary is {vocabulary}, but the corpus gives {tokenizer.get_vocab_size()} tokens")
    tokenizer.save(str(folder / "tokenizer.json"))
    end_of_text, _, im_end = SPECIAL_TOKENS
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end_of_text,
        "eos_token": im_end,
        "pad_token": end_of_text,
        "additional_special_tokens": ["<|im_start|>"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))

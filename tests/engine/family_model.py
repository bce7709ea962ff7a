"""Small random models of every family, made and saved by transformers' own classes."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

HIDDEN = 64
HEADS = 4
LAYERS = 3
VOCABULARY = 320
WINDOW = 20
"""Far below the length of the texts, and no multiple of a KV block."""

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, as many key-value heads": {"model_type": "llama", "num_key_value_heads": 4},
    "llama, one key-value head": {"model_type": "llama", "num_key_value_heads": 1},
    "llama, attention biases": {"model_type": "llama", "attention_bias": True},
    "llama, all biases, wide heads": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 32,
    },
    "llama, linear": {"model_type": "llama", "rope_parameters": {"rope_theta": 10000.0, **LINEAR}},
    "llama, llama3": {"model_type": "llama", "rope_parameters": {"rope_theta": 50000.0, **LLAMA3}},
    "llama, yarn": {"model_type": "llama", "rope_parameters": {"rope_theta": 10000.0, **YARN}},
    "llama, yarn with its own numbers": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_theta": 500.0,
            **YARN,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "truncate": False,
        },
    },
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 32},
    "mistral, window": {"model_type": "mistral", "sliding_window": WINDOW},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2, window and yarn": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "rope_parameters": {"rope_theta": 10000.0, **YARN, "attention_factor": 1.3},
    },
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 32},
    "qwen3, biases, one layer with a window": {
        "model_type": "qwen3",
        "head_dim": 16,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
}


def make_family_model(folder: Path, settings: dict[str, Any], *, seed: int = 0) -> Path:
    """Write config.json and model.safetensors to `folder`, and return it.

    Every value can be held in bfloat16, so that a decoder has the same weights in either dtype. Biases and norms are
    far from what they are initialised with: one that is left out shows.
    """
    size = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    }
    config = AutoConfig.for_model(**(size | settings))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2:
                drawn *= (2.0 if "embed_tokens" in name else 1.0) / math.sqrt(parameter.shape[1])
            elif "norm" in name:
                drawn = 1.0 + 0.3 * drawn
            else:
                drawn *= 0.5
            parameter.copy_(drawn.to(torch.bfloat16))
    model.save_pretrained(folder)
    return folder


def transformers_logits(folder: Path, token_ids: list[int], dtype: torch.dtype) -> Tensor:
    """Logits [tokens, vocabulary] of transformers' eager attention over the whole text at once."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits

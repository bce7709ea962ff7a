"""Tiny random drafters for tiny models: their folders, and a plain PyTorch twin of their arithmetic."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from engine.drafter_files import DESCRIPTION, WEIGHTS, DrafterFile, DrafterKind, read_drafter
from engine.model_config import read_config
from engine.vocabulary import read_vocabulary


def make_tiny_drafter(
    folder: Path,
    target_path: Path,
    kind: DrafterKind,
    *,
    seed: int = 0,
    layers: int = 1,
    outputs: int = 200,
    context_limit: int = 2048,
    special_tokens: dict[str, int] | None = None,
    scale: float = 1.0,
) -> Path:
    """Write drafter.json and its tensors (float32) for the tiny model in `target_path`, and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    target, vocabulary = read_config(target_path), read_vocabulary(target_path)
    hidden, feed_forward, kv_width = target.hidden_size, 96, target.kv_width
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values: Tensor = scale * torch.randn(rows, columns, generator=generator) / math.sqrt(columns)
        return values

    def norm() -> Tensor:
        return 1.0 + 0.1 * torch.randn(hidden, generator=generator)

    chosen = torch.randperm(target.vocab_size, generator=generator)[:outputs].sort().values
    tensors = {"norm.weight": norm(), "output_tokens": chosen.to(torch.int32)}
    if kind is DrafterKind.FEATURE_HEAD:
        tensors |= {
            "fc.weight": matrix(hidden, 2 * hidden),
            "embedding_norm.weight": norm(),
            "feature_norm.weight": norm(),
        }
    for layer in range(layers):
        prefix = f"layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(target.query_width, hidden),
            prefix + "self_attn.k_proj.weight": matrix(kv_width, hidden),
            prefix + "self_attn.v_proj.weight": matrix(kv_width, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, target.query_width),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(feed_forward, hidden),
            prefix + "mlp.up_proj.weight": matrix(feed_forward, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, feed_forward),
        }
    save_file(tensors, folder / WEIGHTS)
    description: dict[str, Any] = {
        "format": 1,
        "name": folder.name,
        "kind": kind.value,
        "target": {
            "model": target_path.name,
            "hidden_size": hidden,
            "vocab_size": target.vocab_size,
            "vocabulary_sha256": vocabulary.sha256,
            "special_tokens": vocabulary.special_tokens if special_tokens is None else special_tokens,
            "weights_sha256": "0" * 64,
        },
        "config": {
            "num_layers": layers,
            "num_heads": target.num_heads,
            "num_kv_heads": target.num_kv_heads,
            "head_dim": target.head_dim,
            "feed_forward_size": feed_forward,
            "rope_theta": target.rope_theta,
            "norm_epsilon": target.norm_epsilon,
            "context_limit": context_limit,
        },
        "training": {"tokens": 0},
        "held_out": {"all": [0.5, 0.25]},
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2))
    return folder


@dataclass(frozen=True, slots=True)
class Twin:
    """A drafter of ours in float32, the whole text at once, without a cache."""

    drafter: DrafterFile
    tensors: dict[str, Tensor]
    embedding: Tensor
    """The target's, [vocabulary, hidden]; its head as well."""

    @classmethod
    def of(cls, folder: Path, target_path: Path) -> "Twin":
        model = load_file(target_path / "model.safetensors")
        return cls(read_drafter(folder), load_file(folder / WEIGHTS), model["model.embed_tokens.weight"])

    @property
    def output_tokens(self) -> Tensor:
        return self.tensors["output_tokens"].long()

    def logits(self, token_ids: Sequence[int], features: Tensor, drafted: Sequence[int]) -> Tensor:
        """Logits of the next token after the text and after each draft, [1 + drafts, outputs].

        `features` [tokens, hidden]: the target's of each token of the text; the last one is not read.
        """
        entries = self._entries(token_ids, features)
        rows = []
        for step in range(len(drafted) + 1):
            out = self._layers(entries)[-1]
            normed = self._norm(out, "norm.weight")
            rows.append(self.embedding[self.output_tokens] @ normed)
            if step < len(drafted):
                following = self.embedding[drafted[step]]
                if self.drafter.kind is DrafterKind.FEATURE_HEAD:
                    following = self._join(following, normed)
                entries = torch.cat([entries, following[None]])
        return torch.stack(rows)

    def _entries(self, token_ids: Sequence[int], features: Tensor) -> Tensor:
        embedded = self.embedding[torch.tensor(token_ids)]
        if self.drafter.kind is DrafterKind.DRAFT_MODEL:
            return embedded
        before = torch.cat([torch.zeros(1, features.shape[1]), features[: len(token_ids) - 1]])
        return torch.stack([self._join(e, f) for e, f in zip(embedded, before, strict=True)])

    def _join(self, embedded: Tensor, feature: Tensor) -> Tensor:
        both = torch.cat([self._norm(embedded, "embedding_norm.weight"), self._norm(feature, "feature_norm.weight")])
        return self.tensors["fc.weight"] @ both

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.drafter.config.norm_epsilon)
        return hidden * scale * self.tensors[name]

    def _layers(self, hidden: Tensor) -> Tensor:
        config = self.drafter.config
        count = hidden.shape[0]
        angles = torch.outer(torch.arange(count).float(), torch.tensor(config.inverse_frequencies()))
        cosine, sine = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def turned(heads: Tensor) -> Tensor:
            half = config.head_dim // 2
            return heads * cosine + torch.cat([-heads[..., half:], heads[..., :half]], -1) * sine

        for layer in range(config.num_layers):
            weights = {
                name.removeprefix(f"layers.{layer}.").removesuffix(".weight"): tensor
                for name, tensor in self.tensors.items()
                if name.startswith(f"layers.{layer}.")
            }
            normed = self._norm(hidden, f"layers.{layer}.input_layernorm.weight")

            def heads(name: str, number: int, normed: Tensor = normed, weights: dict[str, Tensor] = weights) -> Tensor:
                return (normed @ weights[name].T).view(count, number, config.head_dim).transpose(0, 1)

            query = turned(heads("self_attn.q_proj", config.num_heads))
            group = config.num_heads // config.num_kv_heads
            key = turned(heads("self_attn.k_proj", config.num_kv_heads)).repeat_interleave(group, 0)
            value = heads("self_attn.v_proj", config.num_kv_heads).repeat_interleave(group, 0)
            mixed = functional.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True)[0]
            hidden = hidden + mixed.transpose(0, 1).reshape(count, -1) @ weights["self_attn.o_proj"].T
            normed = self._norm(hidden, f"layers.{layer}.post_attention_layernorm.weight")
            gated = functional.silu(normed @ weights["mlp.gate_proj"].T) * (normed @ weights["mlp.up_proj"].T)
            hidden = hidden + gated @ weights["mlp.down_proj"].T
        return hidden

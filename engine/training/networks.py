"""The drafters as they are trained: float32 weights, products in bfloat16, the residual stream in float32.

`FeatureHead` (EAGLE, Li et al. 2024): one layer of the target's shape that reads the embedding of the token at a
position and the target's feature (its hidden state after the final norm) of the position before, and estimates the
feature at the position. `DraftModel`: a small Llama. Both embed and score tokens by the target's own rows.

Both are run by *bases*: at step s, index b of a tensor stands for position b + s - 1 of the draft that starts from the
real tokens and features up to base b. Its keys are those of step 1 up to b, and those that the same draft made in the
steps 2..s (Zhang et al. 2024, "Learning Harmonized Representations for Speculative Sampling", does so in training).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """The shape of a drafter's layers; hidden size, heads and rope are the target's."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    feed_forward_size: int
    rope_theta: float
    norm_epsilon: float


@dataclass(slots=True)
class DraftedKeys:
    """Keys and values of a layer, [batch, kv_heads, bases, head_dim] each: of step 1, and of each step since."""

    first: tuple[Tensor, Tensor] | None = None
    later: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class RmsNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden.float()
        normed: Tensor = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self._epsilon) * self.weight
        return normed


class _Attention(nn.Module):
    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self._shape = shape
        powers = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        self._frequencies = (shape.rope_theta**-powers).float()

    def _turn(self, heads: Tensor, positions: Tensor) -> Tensor:
        angles = torch.outer(positions.float(), self._frequencies)
        cosine, sine = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)
        return heads * cosine + heads.roll(self._shape.head_dim // 2, -1) * sine

    def forward(self, hidden: Tensor, positions: Tensor, cache: DraftedKeys) -> Tensor:
        """[batch, bases, hidden] -> the same; `positions` [bases] of this step; adds the step's keys to `cache`."""
        shape = self._shape
        batch, bases, _ = hidden.shape
        group = shape.num_heads // shape.num_kv_heads

        def heads(projected: Tensor, count: int) -> Tensor:
            return projected.view(batch, bases, count, shape.head_dim).transpose(1, 2)

        query = self._turn(heads(self.q_proj(hidden), shape.num_heads).float(), positions).bfloat16()
        key = self._turn(heads(self.k_proj(hidden), shape.num_kv_heads).float(), positions).bfloat16()
        value = heads(self.v_proj(hidden), shape.num_kv_heads).bfloat16()
        if cache.first is None:
            cache.first = key, value
        else:
            cache.later.append((key, value))
        grouped = query.reshape(batch, shape.num_kv_heads, group, bases, shape.head_dim)
        packed = grouped.reshape(batch, shape.num_kv_heads, group * bases, shape.head_dim)
        first_keys, first_values = cache.first
        scores = (packed @ first_keys.transpose(-1, -2)).float().view(batch, -1, group, bases, bases)
        unseen = torch.ones(bases, bases, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(unseen, float("-inf"))
        own = [(grouped * keys[:, :, None]).float().sum(-1, keepdim=True) for keys, _ in cache.later]
        shares = torch.softmax(torch.cat([scores, *own], -1) * shape.head_dim**-0.5, -1).bfloat16()
        over_first = shares[..., :bases].reshape(batch, shape.num_kv_heads, group * bases, bases)
        mixed = (over_first @ first_values).view_as(grouped)
        for step, (_, values) in enumerate(cache.later):
            mixed = mixed + shares[..., bases + step, None] * values[:, :, None]
        attended = mixed.reshape(batch, shape.num_heads, bases, shape.head_dim).transpose(1, 2)
        out: Tensor = self.o_proj(attended.reshape(batch, bases, -1))
        return out


class _FeedForward(nn.Module):
    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.feed_forward_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.feed_forward_size, bias=False)
        self.down_proj = nn.Linear(shape.feed_forward_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class DrafterLayer(nn.Module):
    """A Llama layer by bases."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.norm_epsilon)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = _FeedForward(shape)

    def forward(self, hidden: Tensor, positions: Tensor, cache: DraftedKeys) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), positions, cache).float()
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden)).float()
        return out


class Drafter(nn.Module, ABC):
    """What training needs of either kind."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(DrafterLayer(shape) for _ in range(shape.num_layers))
        self.norm = RmsNorm(shape.hidden_size, shape.norm_epsilon)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def new_cache(self) -> list[DraftedKeys]:
        return [DraftedKeys() for _ in self.layers]

    def _through_layers(self, hidden: Tensor, step: int, cache: list[DraftedKeys]) -> Tensor:
        positions = torch.arange(hidden.shape[1]) + step - 1
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            hidden = layer(hidden, positions, layer_cache)
        normed: Tensor = self.norm(hidden)
        return normed

    @abstractmethod
    def step(self, embedded: Tensor, features: Tensor, step: int, cache: list[DraftedKeys]) -> Tensor:
        """One drafting step for every base.

        Args:
            embedded: [batch, bases, hidden], the target's embedding of the token at position b + step - 1.
            features: [batch, bases, hidden], the feature of the position before: the target's in step 1, the last
                step's result afterwards. A draft model does not look at it.
            step: 1, 2, ...
            cache: of `new_cache`, the same for every step of a batch.

        Returns:
            [batch, bases, hidden] float32, what the target's rows are multiplied with.
        """


class FeatureHead(Drafter):
    def __init__(self, shape: NetworkShape) -> None:
        super().__init__(shape)
        self.embedding_norm = RmsNorm(shape.hidden_size, shape.norm_epsilon)
        self.feature_norm = RmsNorm(shape.hidden_size, shape.norm_epsilon)
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        nn.init.normal_(self.fc.weight, std=0.02)

    def step(self, embedded: Tensor, features: Tensor, step: int, cache: list[DraftedKeys]) -> Tensor:
        both = torch.cat([self.embedding_norm(embedded), self.feature_norm(features)], -1)
        return self._through_layers(self.fc(both).float(), step, cache)


class DraftModel(Drafter):
    def step(self, embedded: Tensor, features: Tensor, step: int, cache: list[DraftedKeys]) -> Tensor:
        del features
        return self._through_layers(embedded.float(), step, cache)


NETWORKS: Mapping[str, type[Drafter]] = {"feature_head": FeatureHead, "draft_model": DraftModel}

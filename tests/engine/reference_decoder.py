"""A decoder in plain PyTorch over `engine.model_weights`: float32 throughout, one sequence, no thought of speed."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.model_config import ModelConfig
from engine.model_weights import LayerWeights, Weights


class ReferenceDecoder:
    """Holds the keys and values of one sequence, which every `forward` continues."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self._config = config
        self._embedding = weights.read_embedding().float()
        self._layers = tuple(weights.layers)
        self._final_norm = weights.norm
        self._head = weights.read_head().float()
        self._keys = [torch.zeros(config.num_kv_heads, 0, config.head_dim) for _ in self._layers]
        self._values = list(self._keys)
        self.features = torch.zeros(0, config.hidden_size)
        """[tokens so far, hidden]: the hidden states after the final norm."""

    @torch.inference_mode()
    def forward(self, token_ids: Sequence[int]) -> Tensor:
        """Logits [tokens, vocabulary] of the next tokens of the sequence, in float32."""
        start = self._keys[0].shape[1]
        hidden = self._embedding[torch.tensor(token_ids)]
        angles = torch.outer(
            torch.arange(start, start + len(token_ids), dtype=torch.float32),
            torch.tensor(self._config.inverse_frequencies(), dtype=torch.float32),
        ).repeat(1, 2)
        factor = self._config.rope_attention_factor
        cosine, sine = angles.cos() * factor, angles.sin() * factor
        for number, layer in enumerate(self._layers):
            attended = self._attention(number, layer, self._norm(hidden, layer.attention_norm), cosine, sine)
            hidden = hidden + functional.linear(attended, layer.attention_out.float(), layer.attention_out_bias)
            normed = self._norm(hidden, layer.feed_forward_norm)
            gate, up = functional.linear(normed, layer.gate_up.float(), layer.gate_up_bias).chunk(2, -1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down.float(), layer.down_bias)
        features = self._norm(hidden, self._final_norm)
        self.features = torch.cat([self.features, features])
        return functional.linear(features, self._head)

    def _attention(self, number: int, layer: LayerWeights, normed: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        config = self._config
        qkv = functional.linear(normed, layer.qkv.float(), layer.qkv_bias)
        query, key, value = (
            part.view(len(normed), -1, config.head_dim)
            for part in qkv.split_with_sizes((config.query_width, config.kv_width, config.kv_width), -1)
        )
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        query, key = _turned(query, cosine, sine).transpose(0, 1), _turned(key, cosine, sine).transpose(0, 1)
        keys = self._keys[number] = torch.cat([self._keys[number], key], 1)
        values = self._values[number] = torch.cat([self._values[number], value.transpose(0, 1)], 1)
        group = config.num_heads // config.num_kv_heads
        scores = query @ keys.repeat_interleave(group, 0).transpose(1, 2) * config.head_dim**-0.5
        position = torch.arange(keys.shape[1] - len(normed), keys.shape[1])[:, None]
        distance = position - torch.arange(keys.shape[1])
        hidden_from_row = (distance < 0) | (distance >= (layer.window or keys.shape[1]))
        shares = scores.masked_fill(hidden_from_row, float("-inf")).softmax(-1)
        attended: Tensor = shares @ values.repeat_interleave(group, 0)
        return attended.transpose(0, 1).reshape(len(normed), -1)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        mean = hidden.square().mean(-1, keepdim=True)
        return torch.mul(hidden * torch.rsqrt(mean + self._config.norm_epsilon), weight)


def _turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return heads * cosine[:, None] + torch.cat([-second, first], -1) * sine[:, None]

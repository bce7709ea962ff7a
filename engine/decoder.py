"""The target: a Llama-family decoder over slots of a KV cache, on the CPU.

The logits of a row are bit-identical whatever block, batch or prefill chunk the row sits in, so that the text does
not depend on how it was decoded. Three things make it so, and every change here must keep them:

* linear layers through `PackedLinear`, over at least `MIN_ROWS` rows;
* attention as plain batched products, the query rows of a slot (row by head of the group) padded to a multiple of
  `QUERY_PADDING` and the keys to a multiple of `KEY_PADDING`, where a masked key weighs exactly zero; and the sum over
  the values cut where the libraries change its order: in float32 MKL does so below `MIN_KEYS_FLOAT32` keys, in
  bfloat16 oneDNN does above `VALUE_CHUNK_BFLOAT16`;
* one path for every shape.
"""

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kv_cache import KvCache
from engine.linear import MIN_ROWS, PackedLinear
from engine.model_config import ModelConfig

QUERY_PADDING = 16
KEY_PADDING = 64
MIN_KEYS_FLOAT32 = 384
VALUE_CHUNK_BFLOAT16 = 1024


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows to run through the target together, grouped by slot, with rising positions inside a slot.

    A row writes the key and value of its token at its position of its slot and sees every position up to its own.
    """

    token_ids: list[int]
    slots: list[int]
    positions: list[int]
    logit_rows: list[int] | None
    """The rows whose logits are wanted, in the order wanted; None for all; empty skips the head."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `qkv` is query, key and value rows one below the other."""

    attention_norm: Tensor
    qkv: PackedLinear
    attention_out: PackedLinear
    feed_forward_norm: Tensor
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor
    """[vocabulary, hidden]."""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: PackedLinear


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the rows of a pass go. Rows: those of the pass, padded to `MIN_ROWS`; N without the padding."""

    count: int
    """N."""
    token_ids: Tensor
    """[rows]."""
    cosine: Tensor
    """[rows, 1, head_dim]."""
    sine: Tensor
    """[rows, 1, head_dim], the first half negated."""
    query_rows: Tensor
    """[N, heads]: row of the packed queries."""
    cache_rows: Tensor
    """[N, kv_heads]: (slot, kv head) as one index."""
    positions: Tensor
    """[N, 1]."""
    value_rows: Tensor
    """[N, kv_heads]: (slot, kv head, position) as one index."""
    low: int
    """First (slot, kv head) that takes part."""
    high: int
    keys: int
    """Key length that is read: the longest context, padded."""
    queries: int
    """Packed query rows of a (slot, kv head), padded."""
    mask: Tensor
    """[(high - low), queries, keys], 0 or -inf."""


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _weighted_sum(shares: Tensor, values: Tensor) -> Tensor:
    """[batch, queries, keys] by [batch, keys, head_dim], in an order of sums that does not depend on `keys`."""
    keys = shares.shape[-1]
    if keys <= VALUE_CHUNK_BFLOAT16 or shares.dtype == torch.float32:
        return torch.bmm(shares, values)
    total = torch.bmm(shares[:, :, :VALUE_CHUNK_BFLOAT16], values[:, :VALUE_CHUNK_BFLOAT16])
    for start in range(VALUE_CHUNK_BFLOAT16, keys, VALUE_CHUNK_BFLOAT16):
        stop = start + VALUE_CHUNK_BFLOAT16
        total += torch.bmm(shares[:, :, start:stop], values[:, start:stop])
    return total


class Decoder:
    """A loaded model with its KV cache. Not thread-safe: the engine loop owns it.

    Attributes:
        config: the model's shape.
        slots: sequences that the cache holds.
        capacity: positions of a slot.
    """

    def __init__(self, config: ModelConfig, weights: Weights, *, slots: int, capacity: int) -> None:
        self.config = config
        self.slots = slots
        self.capacity = capacity
        self.dtype = weights.embedding.dtype
        self._weights = weights
        self._min_keys = MIN_KEYS_FLOAT32 if self.dtype == torch.float32 else KEY_PADDING
        self._cache = KvCache(
            layers=config.num_layers,
            slots=slots,
            kv_heads=config.num_kv_heads,
            capacity=max(self._min_keys, _round_up(capacity, KEY_PADDING)),
            head_dim=config.head_dim,
            dtype=self.dtype,
        )
        self._group = config.num_heads // config.num_kv_heads
        self._scale = config.head_dim**-0.5
        frequencies = torch.tensor(config.inverse_frequencies(), dtype=torch.float64).to(torch.float32)
        angles = torch.outer(torch.arange(capacity, dtype=torch.float32), frequencies)
        cosine, sine = angles.cos(), angles.sin()
        self._cosine = torch.cat([cosine, cosine], dim=-1).to(self.dtype)
        self._sine = torch.cat([-sine, sine], dim=-1).to(self.dtype)
        self._key_positions = torch.arange(self._cache.capacity)

    @torch.inference_mode()
    def forward(self, batch: Pass) -> Tensor:
        """Run a pass and return the logits [len(logit_rows), vocabulary] in the decoder's dtype.

        The result is an inference tensor: outside `torch.inference_mode` copy it before changing it in place.

        Raises:
            ValueError: no rows, lists of different lengths, or a slot or position outside the cache.
        """
        layout = self._layout(batch)
        config = self.config
        count, keys, queries = layout.count, layout.keys, layout.queries
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        rotated = heads + kv_heads
        hidden = self._weights.embedding[layout.token_ids]
        packed = hidden.new_zeros(layout.high - layout.low, queries, head_dim)
        packed_rows = packed.view(-1, head_dim)
        gathered_rows = layout.query_rows.view(-1)
        attended = hidden.new_zeros(hidden.shape[0], heads * head_dim)
        attended_rows = attended[:count].view(count * heads, head_dim)
        for layer, weights in enumerate(self._weights.layers):
            qkv = weights.qkv(self._norm(hidden, weights.attention_norm)).view(-1, rotated + kv_heads, head_dim)
            turned = qkv[:, :rotated]
            other_half = torch.roll(turned, head_dim // 2, -1)
            turned.mul_(layout.cosine).add_(other_half.mul_(layout.sine))
            cached_keys = self._cache.keys[layer].view(-1, head_dim, self._cache.capacity)
            cached_values = self._cache.values[layer]
            cached_keys[layout.cache_rows, :, layout.positions] = qkv[:count, heads:rotated]
            cached_values.view(-1, head_dim)[layout.value_rows] = qkv[:count, rotated:]
            packed_rows[layout.query_rows] = qkv[:count, :heads]
            scores = torch.baddbmm(
                layout.mask, packed, cached_keys[layout.low : layout.high, :, :keys], alpha=self._scale
            )
            values = cached_values.view(-1, self._cache.capacity, head_dim)[layout.low : layout.high, :keys]
            mixed = _weighted_sum(torch.softmax(scores, -1), values)
            torch.index_select(mixed.view(-1, head_dim), 0, gathered_rows, out=attended_rows)
            hidden = weights.attention_out.plus(attended, hidden)
            normed = self._norm(hidden, weights.feed_forward_norm)
            hidden = weights.down.plus(weights.up.times(normed, weights.gate.silu(normed)), hidden)
        return self._head(hidden, batch.logit_rows, count)

    def _head(self, hidden: Tensor, logit_rows: list[int] | None, count: int) -> Tensor:
        if logit_rows is not None:
            wanted = len(logit_rows)
            if wanted == 0:
                return hidden.new_empty(0, self.config.vocab_size)
            hidden = hidden[torch.tensor(logit_rows + [0] * (MIN_ROWS - wanted))]
            count = wanted
        return self._weights.head(self._norm(hidden, self._weights.norm))[:count]

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(hidden, weight.shape, weight, self.config.norm_epsilon)

    def _layout(self, batch: Pass) -> _Layout:
        token_ids, slots, positions = batch.token_ids, batch.slots, batch.positions
        count = len(token_ids)
        if count == 0 or len(slots) != count or len(positions) != count:
            raise ValueError(
                f"a pass has {count} token_ids, {len(slots)} slots and {len(positions)} positions; "
                "give one of each per row, and at least one row"
            )
        first_slot, last_slot, last_position = min(slots), max(slots), max(positions)
        if first_slot < 0 or last_slot >= self.slots or min(positions) < 0 or last_position >= self.capacity:
            raise ValueError(
                f"a pass names slots {first_slot}..{last_slot} and position {last_position}; "
                f"the cache holds {self.slots} slots of {self.capacity} positions"
            )
        group, kv_heads, capacity = self._group, self.config.num_kv_heads, self._cache.capacity
        seen = [0] * (last_slot - first_slot + 1)
        turns = []
        for number in slots:
            turns.append(seen[number - first_slot])
            seen[number - first_slot] += 1
        queries = _round_up(max(seen) * group, QUERY_PADDING)
        keys = max(self._min_keys, _round_up(last_position + 1, KEY_PADDING))
        padding = [0] * (MIN_ROWS - count)
        padded_positions = torch.tensor(positions + padding)
        slot, position, turn = torch.tensor(slots), padded_positions[:count], torch.tensor(turns)
        kv_head = torch.arange(kv_heads)
        cache_rows = slot[:, None] * kv_heads + kv_head
        member = torch.arange(group)
        query_rows = (
            ((cache_rows - first_slot * kv_heads) * queries + turn[:, None] * group)[:, :, None] + member
        ).view(count, -1)
        reach = torch.full(((last_slot - first_slot + 1) * queries,), capacity)
        reach[((slot - first_slot) * queries + turn * group)[:, None] + member] = position[:, None]
        mask = torch.zeros(last_slot - first_slot + 1, 1, queries, keys, dtype=self.dtype)
        mask.masked_fill_(self._key_positions[:keys] > reach.view(-1, 1, queries, 1), float("-inf"))
        return _Layout(
            count=count,
            token_ids=torch.tensor(token_ids + padding),
            cosine=self._cosine[padded_positions][:, None],
            sine=self._sine[padded_positions][:, None],
            query_rows=query_rows,
            cache_rows=cache_rows,
            positions=position[:, None],
            value_rows=cache_rows * capacity + position[:, None],
            low=first_slot * kv_heads,
            high=(last_slot + 1) * kv_heads,
            keys=keys,
            queries=queries,
            mask=mask.expand(-1, kv_heads, -1, -1).reshape(-1, queries, keys),
        )

    @torch.inference_mode()
    def linear_seconds(self, repeats: int = 20) -> float:
        """Median seconds of the linear layers alone, head included, for one row: the floor of a plain cycle."""
        weights, config = self._weights, self.config
        hidden = torch.ones(MIN_ROWS, config.hidden_size, dtype=self.dtype)
        attended = torch.ones(MIN_ROWS, config.num_heads * config.head_dim, dtype=self.dtype)
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            for layer in weights.layers:
                layer.qkv(hidden)
                layer.attention_out(attended)
                layer.down(layer.up.times(hidden, layer.gate(hidden)))
            weights.head(hidden)
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds)

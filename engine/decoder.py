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

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from engine.kv_cache import KvCache
from engine.linear import MIN_ROWS, PackedLinear
from engine.model_config import ModelConfig

QUERY_PADDING = 4
KEY_PADDING = 64
MIN_KEYS_FLOAT32 = 384
VALUE_CHUNK_BFLOAT16 = 1024
SERIAL_ELEMENTS = 1 << 15
"""ATen shares an element-wise operation among threads when it has more elements than this (GRAIN_SIZE)."""


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
    """One layer. `qkv` is query, key and value rows one below the other, `gate_up` likewise; norms as in `Weights`."""

    attention_norm: Tensor
    qkv: PackedLinear
    attention_out: PackedLinear
    feed_forward_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor
    """[vocabulary, hidden]."""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    """[hidden] in float32, times the root of hidden: the root mean square is a length over that root."""
    head: PackedLinear


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the rows of a pass go. Rows are those of the pass, padded to `MIN_ROWS` by rows of the spare slot."""

    count: int
    """Rows without the padding."""
    token_ids: Tensor
    """[rows]."""
    cosine: Tensor
    """[rows, 1, head_dim]."""
    sine: Tensor
    """[rows, 1, head_dim], the first half negated."""
    query_rows: Tensor
    """[rows, heads]: row of the packed queries, of which there is one more for the padding."""
    key_elements: Tensor
    """[rows, kv_heads, head_dim]: element of a layer's keys."""
    value_rows: Tensor
    """[rows, kv_heads]: row of a layer's values."""
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


def _weighted_sum(shares: Tensor, values: Tensor, out: Tensor) -> None:
    """[batch, queries, keys] by [batch, keys, head_dim], in an order of sums that does not depend on `keys`."""
    keys = shares.shape[-1]
    if keys <= VALUE_CHUNK_BFLOAT16 or shares.dtype == torch.float32:
        torch.bmm(shares, values, out=out)
        return
    torch.bmm(shares[:, :, :VALUE_CHUNK_BFLOAT16], values[:, :VALUE_CHUNK_BFLOAT16], out=out)
    for start in range(VALUE_CHUNK_BFLOAT16, keys, VALUE_CHUNK_BFLOAT16):
        stop = start + VALUE_CHUNK_BFLOAT16
        out += torch.bmm(shares[:, :, start:stop], values[:, start:stop])


def _silu(gate: Tensor) -> Tensor:
    """silu of [rows, feed_forward], by calls that are too small to be shared among threads.

    A thread's share may end inside a vector, and the elements left over are computed with another exponential.
    """
    step = max(1, SERIAL_ELEMENTS // gate.shape[1])
    if gate.shape[0] <= step:
        return functional.silu(gate)
    parts = [gate[start : start + step] for start in range(0, gate.shape[0], step)]
    return torch.cat([functional.silu(part) for part in parts])


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
        self._norm_floor = config.hidden_size * config.norm_epsilon
        self._scale = config.head_dim**-0.5
        frequencies = torch.tensor(config.inverse_frequencies(), dtype=torch.float64).to(torch.float32)
        angles = torch.outer(torch.arange(capacity, dtype=torch.float32), frequencies)
        cosine, sine = angles.cos(), angles.sin()
        self._cosine = torch.cat([cosine, cosine], dim=-1).to(self.dtype)[:, None]
        self._sine = torch.cat([-sine, sine], dim=-1).to(self.dtype)[:, None]
        # a row that reaches position r sees zeros up to r, then -inf: it is the ramp read from capacity - 1 - r on
        self._ramp = torch.zeros(2 * self._cache.capacity, dtype=self.dtype)
        self._ramp[self._cache.capacity :] = float("-inf")

    @torch.inference_mode()
    def forward(self, batch: Pass) -> Tensor:
        """Run a pass and return the logits [len(logit_rows), vocabulary] in the decoder's dtype.

        The result is an inference tensor: outside `torch.inference_mode` copy it before changing it in place.

        Raises:
            ValueError: no rows, lists of different lengths, or a slot or position outside the cache.
        """
        layout = self._layout(batch)
        config, cache, scale, mask = self.config, self._cache, self._scale, layout.mask
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        feed_forward = config.feed_forward_size
        query_rows, key_elements, value_rows = (layout.query_rows,), (layout.key_elements,), (layout.value_rows,)
        cosine, sine, gathered = layout.cosine, layout.sine, layout.query_rows.view(-1)
        hidden = self._weights.embedding[layout.token_ids]
        rows = hidden.shape[0]
        normed = torch.empty_like(hidden)
        packed_rows = hidden.new_zeros((layout.high - layout.low) * layout.queries + 1, head_dim)
        mixed_rows = torch.zeros_like(packed_rows)
        packed = packed_rows[:-1].view(-1, layout.queries, head_dim)
        mixed = mixed_rows[:-1].view(-1, layout.queries, head_dim)
        seen_keys, seen_values = cache.seen(layout.low, layout.high, layout.keys)
        for layer, weights in enumerate(self._weights.layers):
            self._norm(hidden, weights.attention_norm, normed)
            qkv = weights.qkv(normed).view(rows, heads + 2 * kv_heads, head_dim)
            turned = qkv[:, : heads + kv_heads]
            other_half = torch.roll(turned, head_dim // 2, -1)
            turned.mul_(cosine).add_(other_half.mul_(sine))
            query, key, value = qkv.split_with_sizes((heads, kv_heads, kv_heads), 1)
            cache.key_elements[layer].index_put_(key_elements, key)
            cache.value_rows[layer].index_put_(value_rows, value)
            packed_rows.index_put_(query_rows, query)
            scores = torch.bmm(packed, seen_keys[layer])
            shares = torch.softmax(torch.add(mask, scores, alpha=scale, out=scores), -1)
            _weighted_sum(shares, seen_values[layer], mixed)
            attended = mixed_rows.index_select(0, gathered).view(rows, -1)
            hidden = weights.attention_out.plus(attended, hidden)
            self._norm(hidden, weights.feed_forward_norm, normed)
            gate, up = weights.gate_up(normed).split_with_sizes((feed_forward, feed_forward), 1)
            hidden = weights.down.plus(_silu(gate).mul_(up), hidden)
        return self._head(hidden, batch.logit_rows, layout.count)

    def _head(self, hidden: Tensor, logit_rows: list[int] | None, count: int) -> Tensor:
        if logit_rows is not None:
            count = len(logit_rows)
            if count == 0:
                return hidden.new_empty(0, self.config.vocab_size)
            hidden = hidden[torch.tensor(logit_rows + [0] * (MIN_ROWS - count))]
        normed = torch.empty_like(hidden)
        self._norm(hidden, self._weights.norm, normed)
        return self._weights.head(normed)[:count]

    def _norm(self, hidden: Tensor, weight: Tensor, out: Tensor) -> None:
        """RMSNorm in float32, rounded once: x / sqrt(sum x^2 + n e) * (weight sqrt n).

        Only operations that IEEE rounds exactly: a fused multiply-add, or a function that the vector unit computes
        in another way than the scalar one, would make a row depend on how many rows there are.
        """
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        scale = length.square_().add_(self._norm_floor).rsqrt_()
        torch.mul(torch.mul(hidden, scale), weight, out=out)

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
        slot_count = last_slot - first_slot + 1
        seen = [0] * slot_count
        turns = []
        for number in slots:
            turns.append(seen[number - first_slot])
            seen[number - first_slot] += 1
        group, kv_heads, head_dim, capacity = (
            self._group,
            self.config.num_kv_heads,
            self.config.head_dim,
            self._cache.capacity,
        )
        queries = _round_up(max(seen) * group, QUERY_PADDING)
        keys = max(self._min_keys, _round_up(last_position + 1, KEY_PADDING))
        padding = MIN_ROWS - count
        # numpy: these arrays are small, and a torch operation costs ten times as much to start
        slot = numpy.array(slots + [self.slots] * padding)
        position = numpy.array(positions + [0] * padding)
        turn = numpy.array(turns)
        kv_head = numpy.arange(kv_heads)
        cache_rows = slot[:, None] * kv_heads + kv_head
        member = numpy.arange(group)
        first_query = (cache_rows[:count] - first_slot * kv_heads) * queries + turn[:, None] * group
        query_rows = numpy.full((slot.size, kv_heads * group), slot_count * kv_heads * queries)
        query_rows[:count] = (first_query[:, :, None] + member).reshape(count, -1)
        ramp_starts = numpy.zeros(slot_count * kv_heads * queries, dtype=numpy.int64)
        ramp_starts[query_rows[:count]] = capacity - 1 - position[:count, None]
        key_elements = cache_rows[:, :, None] * (head_dim * capacity) + numpy.arange(head_dim) * capacity
        return _Layout(
            count=count,
            token_ids=torch.tensor(token_ids + [0] * padding),
            cosine=self._cosine[torch.from_numpy(position)],
            sine=self._sine[torch.from_numpy(position)],
            query_rows=torch.from_numpy(query_rows),
            key_elements=torch.from_numpy(key_elements + position[:, None, None]),
            value_rows=torch.from_numpy(cache_rows * capacity + position[:, None]),
            low=first_slot * kv_heads,
            high=(last_slot + 1) * kv_heads,
            keys=keys,
            queries=queries,
            mask=self._ramp.as_strided((capacity, keys), (1, 1))[torch.from_numpy(ramp_starts)].view(-1, queries, keys),
        )

    @torch.inference_mode()
    def linear_seconds(self, rows: int = 1, repeats: int = 20) -> float:
        """Median seconds of the linear layers alone, head included, for `rows` rows: the floor of a plain cycle."""
        weights, config, computed = self._weights, self.config, max(rows, MIN_ROWS)
        hidden = torch.ones(computed, config.hidden_size, dtype=self.dtype)
        attended = torch.ones(computed, config.num_heads * config.head_dim, dtype=self.dtype)
        gated = torch.ones(computed, config.feed_forward_size, dtype=self.dtype)
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            for layer in weights.layers:
                layer.qkv(hidden)
                layer.attention_out(attended)
                layer.gate_up(hidden)
                layer.down(gated)
            weights.head(hidden)
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds)

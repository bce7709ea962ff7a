"""A model of the Llama family on the CPU: its weights, its paged cache, and passes through the native kernels.

The logits of a row are bit-identical whatever block, batch or prefill chunk the row sits in, so that the text does
not depend on how it was decoded: every sum in ``kernels/native`` runs in one order of its own row.
"""

import ctypes
import statistics
import time
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.blocks import BLOCK_TOKENS
from engine.kv_cache import KvCache
from engine.model_config import ModelConfig
from engine.model_tensors import check_widths
from engine.model_weights import LayerWeights, Weights
from engine.packed import ELEMENTS, alternating, packed
from engine.rows import Rows
from kernels.native_library import LANES, Layer, Model, Pass
from kernels.native_threads import NativeThreads


class Decoder:
    """A loaded model with its KV cache. Not thread-safe: the engine loop owns it.

    Attributes:
        config: the model's shape.
        blocks: blocks of the cache.
        capacity: the longest context.
        dtype: of weights and cache, bfloat16 or float32; the residual stream and the logits are float32.
        features: [blocks * 16, hidden] in `dtype`, at every position what the head read there; None unless asked for.
        native: the threads that passes run on.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        native: NativeThreads,
        *,
        blocks: int,
        capacity: int,
        features: bool = False,
    ) -> None:
        """Pack the weights, layer by layer.

        Raises:
            ModelError: a width that the kernels do not divide.
        """
        check_widths(config)
        self.config = config
        self.blocks = blocks
        self.capacity = capacity
        self.native = native
        self.dtype = weights.dtype
        self._cache = KvCache(
            layers=config.num_layers,
            blocks=blocks,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=self.dtype,
        )
        self.features = torch.zeros(blocks * BLOCK_TOKENS, config.hidden_size, dtype=self.dtype) if features else None
        self._kept: list[Tensor] = []
        self._layers = (Layer * config.num_layers)()
        # The largest first: while it lies there both unpacked and packed, nothing else does.
        # A tied head serves as the embedding too: a row of it is found in its strip.
        embedding = None if config.tied_head else self._keep(weights.read_embedding())
        head = self._keep(packed(native, weights.read_head()))
        layers = iter(weights.layers)
        for index in range(config.num_layers):
            # no name holds the unpacked layer while the next one is read
            self._layers[index] = self._layer(index, next(layers))
        frequencies = torch.tensor(config.inverse_frequencies(), dtype=torch.float64).to(torch.float32)
        angles = torch.outer(torch.arange(capacity, dtype=torch.float32), frequencies)
        self.model = Model(
            element=ELEMENTS[self.dtype],
            hidden=config.hidden_size,
            feed_forward=config.feed_forward_size,
            layer_count=config.num_layers,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocabulary=config.vocab_size,
            capacity=capacity,
            norm_epsilon=config.norm_epsilon,
            layers=ctypes.cast(self._layers, ctypes.POINTER(Layer)),
            head=head,
            embedding=embedding,
            norm=self._keep(weights.norm),
            cosines=self._keep(angles.cos() * config.rope_attention_factor),
            sines=self._keep(angles.sin() * config.rope_attention_factor),
            features=None if self.features is None else self.features.data_ptr(),
        )
        self.workspace = native.library.workspace_create()
        weakref.finalize(self, native.library.workspace_destroy, self.workspace)
        self._logits = torch.empty(0, -(-config.vocab_size // LANES) * LANES, dtype=torch.float32)

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights, cache, features, and what passes have needed so far."""
        cache = self._cache.keys.nbytes + self._cache.values.nbytes
        features = 0 if self.features is None else self.features.nbytes
        workspace: int = self.native.library.workspace_bytes(self.workspace)
        return sum(tensor.nbytes for tensor in self._kept) + cache + features + workspace + self._logits.nbytes

    def forward(self, parts: Sequence[Rows]) -> Tensor:
        """Run a pass and return the logits wanted, in order, [sum of logit_count, vocabulary] float32.

        They are valid until the next pass and must not be changed.

        Raises:
            ValueError: no rows, or a token, position or block outside the model's.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        first_rows = [0]
        table_starts: list[int] = []
        block_tables: list[int] = []
        wanted_rows: list[int] = []
        for part in parts:
            count = len(part.token_ids)
            end = part.start + count
            if not count or part.start < 0 or end > self.capacity or end > len(part.blocks) * BLOCK_TOKENS:
                raise ValueError(
                    f"a pass has {count} rows from position {part.start} on over {len(part.blocks)} blocks; give at "
                    f"least one row, and blocks for every position below {self.capacity}"
                )
            token_ids.extend(part.token_ids)
            positions.extend(range(part.start, end))
            first_rows.append(len(token_ids))
            table_starts.append(len(block_tables))
            block_tables.extend(part.blocks)
            wanted_rows.extend(range(len(token_ids) - part.logit_count, len(token_ids)))
        tokens = np.array(token_ids, dtype=np.int32)
        tables = np.array(block_tables, dtype=np.int32)
        if not token_ids or tokens.min() < 0 or tokens.max() >= self.config.vocab_size:
            raise ValueError(f"a pass has a token outside 0..{self.config.vocab_size - 1}, or no rows")
        if tables.min() < 0 or tables.max() >= self.blocks:
            raise ValueError(f"a pass names a block outside 0..{self.blocks - 1}")
        arrays = (
            tokens,
            np.array(positions, dtype=np.int32),
            np.array(first_rows, dtype=np.int32),
            np.array(table_starts, dtype=np.int32),
            tables,
            np.array(wanted_rows, dtype=np.int32),
        )
        logits = self._room_for_logits(len(wanted_rows))
        asked = Pass(len(token_ids), len(parts), len(wanted_rows), *(array.ctypes.data for array in arrays))
        failed = self.native.library.decoder_forward(
            self.model, self.native.handle, self.workspace, asked, logits.data_ptr()
        )
        if failed:
            raise MemoryError(f"no memory for a pass of {len(token_ids)} rows")
        return logits[:, : self.config.vocab_size]

    def linear_seconds(self, rows: int = 1, repeats: int = 20) -> float:
        """Median seconds of the linear layers alone, head included, for `rows` rows: the floor of a plain cycle."""
        logits = self._room_for_logits(rows)
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            failed = self.native.library.linear_layers(
                self.model, self.native.handle, self.workspace, rows, logits.data_ptr()
            )
            seconds.append(time.perf_counter() - begin)
            if failed:
                raise MemoryError(f"no memory for a pass of {rows} rows")
        return statistics.median(seconds)

    def _layer(self, index: int, layer: LayerWeights) -> Layer:
        native = self.native
        gate_up_bias = None if layer.gate_up_bias is None else alternating(layer.gate_up_bias)
        return Layer(
            attention_norm=self._keep(layer.attention_norm),
            qkv=self._keep(packed(native, layer.qkv)),
            qkv_bias=self._keep_optional(layer.qkv_bias),
            query_norm=self._keep_optional(layer.query_norm),
            key_norm=self._keep_optional(layer.key_norm),
            attention_out=self._keep(packed(native, layer.attention_out)),
            attention_out_bias=self._keep_optional(layer.attention_out_bias),
            feed_forward_norm=self._keep(layer.feed_forward_norm),
            gate_up=self._keep(packed(native, alternating(layer.gate_up))),
            gate_up_bias=self._keep_optional(gate_up_bias),
            down=self._keep(packed(native, layer.down)),
            down_bias=self._keep_optional(layer.down_bias),
            keys=self._cache.keys[index].data_ptr(),
            values=self._cache.values[index].data_ptr(),
            window=layer.window,
        )

    def _keep(self, tensor: Tensor) -> int:
        """Hold on to what the kernels read, and its address."""
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _keep_optional(self, tensor: Tensor | None) -> int | None:
        return None if tensor is None else self._keep(tensor)

    def _room_for_logits(self, rows: int) -> Tensor:
        if self._logits.shape[0] < rows:
            self._logits = torch.empty(rows, self._logits.shape[1], dtype=torch.float32)
        return self._logits[:rows]

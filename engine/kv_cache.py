"""Keys and values of every running sequence, written in place."""

import torch
from torch import Tensor


class KvCache:
    """Per layer, keys [slots, kv_heads, head_dim, capacity] and values [slots, kv_heads, capacity, head_dim].

    Keys lie transposed, since the product of queries and keys is twice as fast that way on a CPU. Memory is taken
    from the system as it is first written. A slot is reused without being cleared: the attention masks positions
    beyond a row's own, and a masked position weighs exactly zero.
    """

    def __init__(
        self, *, layers: int, slots: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.slots = slots
        self.capacity = capacity
        self.keys: list[Tensor] = [torch.zeros(slots, kv_heads, head_dim, capacity, dtype=dtype) for _ in range(layers)]
        self.values: list[Tensor] = [
            torch.zeros(slots, kv_heads, capacity, head_dim, dtype=dtype) for _ in range(layers)
        ]

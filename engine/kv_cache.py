"""Keys and values of every running sequence, written in place."""

import torch
from torch import Tensor


class KvCache:
    """Per layer, keys [slots, kv_heads, head_dim, capacity] and values [slots, kv_heads, capacity, head_dim].

    Keys lie transposed, since the product of queries and keys is twice as fast that way on a CPU. There is a spare
    slot after the last, for the rows that pad a pass. Memory is taken from the system as it is first written. A slot
    is reused without being cleared: the attention masks positions beyond a row's own, and a masked position weighs
    exactly zero.

    Attributes:
        key_elements: per layer, its keys as one row of elements.
        value_rows: per layer, its values as [(slots + 1) * kv_heads * capacity, head_dim].
    """

    def __init__(
        self, *, layers: int, slots: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.capacity = capacity
        self._keys = torch.zeros(layers, (slots + 1) * kv_heads, head_dim, capacity, dtype=dtype)
        self._values = torch.zeros(layers, (slots + 1) * kv_heads, capacity, head_dim, dtype=dtype)
        self.key_elements = self._keys.view(layers, -1).unbind(0)
        self.value_rows = self._values.view(layers, -1, head_dim).unbind(0)
        self._last_seen: tuple[tuple[int, int, int], tuple[Tensor, ...], tuple[Tensor, ...]] | None = None

    def seen(self, low: int, high: int, keys: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The first `keys` positions of the (slot, kv head) rows `low` to `high`, per layer: keys, values.

        They are views. Making them takes as long as a layer's attention, and most passes ask for those of the pass
        before, so the last ones are kept.
        """
        asked = (low, high, keys)
        if self._last_seen is None or self._last_seen[0] != asked:
            seen_keys = self._keys[:, low:high, :, :keys].unbind(0)
            self._last_seen = (asked, seen_keys, self._values[:, low:high, :keys].unbind(0))
        return self._last_seen[1:]

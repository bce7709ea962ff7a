"""Keys and values of one model, paged, in the layout of ``kernels/native/element.inc``."""

import torch
from torch import Tensor

from engine.blocks import BLOCK_TOKENS


class KvCache:
    """Per layer, keys and values [blocks, kv_heads, 16 * head_dim].

    A block's place for a token is overwritten when the token is; nothing is cleared, since attention gives exactly no
    weight to places beyond a row's own. Memory is taken from the system as it is first written.
    """

    def __init__(self, *, layers: int, blocks: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        shape = (layers, blocks, kv_heads, BLOCK_TOKENS * head_dim)
        self.keys: Tensor = torch.zeros(shape, dtype=dtype)
        self.values: Tensor = torch.zeros(shape, dtype=dtype)

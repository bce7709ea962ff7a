"""A linear layer whose rows come out bit-identical whatever other rows are in the product."""

import torch
from torch import Tensor

MIN_ROWS = 4
"""Products over fewer rows take another path in oneDNN and may differ in the last bit: pad to this many."""

PACKING_ROWS = 8
"""The row count that the weight's blocked layout is chosen for; the result depends on the layout, not on the rows."""


class PackedLinear:
    """``x @ weight.T`` with the weight kept in oneDNN's blocked layout, which halves the time of a small product.

    torch's own `linear` picks its kernel by the number of rows, and with it the order of the sums: of 5, 6, 7 or 9
    rows in float32 some differ from the same rows among 8. Through one packed weight they are equal from `MIN_ROWS`
    to 1024 rows, in bfloat16 and float32; `tests/engine/test_decoder_invariance.py` holds it.
    """

    __slots__ = ("_weight", "outputs")

    def __init__(self, weight: Tensor) -> None:
        """`weight` is [outputs, inputs]; it is copied."""
        self.outputs = weight.shape[0]
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, inputs] to [rows, outputs]."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        return result

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """``self(x) + other``, rounded once; `other` is [rows, outputs]."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, None, "add")
        return result

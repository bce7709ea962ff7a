"""The rows of a block as every verifier reads them: after all that changes which token may come next."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.processors import Row, RowError, RowProcessors, TargetScores
from kernels.sampler import Sampler
from kernels.sampling import Block

Rows = NDArray[np.float32]


def usable_rows(logits: torch.Tensor, blocks: Sequence[Block]) -> Rows:
    """`logits` [R, V] as an array on the same memory, for reading only.

    ValueError where they are no float32 on the CPU, or where a block names rows or draft_probs that it has not got.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.device.type != "cpu":
        raise ValueError(
            "logits must be float32 [rows, vocabulary] on the CPU, not "
            f"{logits.dtype} {list(logits.shape)} on {logits.device}"
        )
    for block in blocks:
        last = block.first_row + len(block.drafts)
        if block.first_row < 0 or last >= logits.shape[0]:
            raise ValueError(
                f"a block owns rows {block.first_row} to {last}, but logits have {logits.shape[0]} rows; "
                "give each block a row for its last token and one for each draft"
            )
        if block.draft_probs is not None and len(block.draft_probs) != len(block.drafts):
            raise ValueError(
                f"a block has {len(block.drafts)} drafts and {len(block.draft_probs)} draft_probs; give each its own"
            )
    rows: Rows = logits.detach().numpy()
    return rows


class TargetRows:
    """The rows of one block, each made when it is asked for. Row 0 follows the last token before the block."""

    def __init__(self, rows: Rows, block: Block, sampler: Sampler) -> None:
        self._rows = rows
        self._block = block
        self._sampler = sampler
        self._processors = RowProcessors(block, rows.shape[1])

    def greedy_token(self, index: int) -> int:
        """The lowest token id among the most likely ones of row `index`. Raises `RowError`."""
        logits = self._logits(index)
        token = int(logits.argmax())
        highest = logits[token]
        if not highest > -np.inf:
            raise RowError(
                f"The target's logits have the maximum {highest}, which no sampling can use; check its weights.",
                fault=True,
            )
        return token

    def coupled_token(self, index: int) -> int:
        """The sample of row `index` with the coupled noise of its position. Raises `RowError`."""
        return self._sampler.token(self._logits(index), self._block.sampling, self._block.position + index)

    def scores(self, index: int) -> TargetScores:
        """log target_probs of row `index`; the one most likely token where the block is greedy. Raises `RowError`."""
        if self._block.sampling.greedy:
            return TargetScores(np.array([self.greedy_token(index)]), np.zeros(1, dtype=np.float32))
        return self._sampler.scores(self._logits(index), self._block.sampling)

    def _logits(self, index: int) -> Row:
        return self._processors.apply(self._rows[self._block.first_row + index], index)

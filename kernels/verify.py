"""Verification of a pass: each block by the verifier that its sequence asks for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from kernels.block_verification import block_block
from kernels.coupled_verify import coupled_block
from kernels.logprobs import token_logprob
from kernels.processors import RowError
from kernels.rejection import rejection_block
from kernels.sampler import NUMPY, Sampler
from kernels.sampling import Block, Chosen, Verifier
from kernels.target_rows import Rows, usable_rows

_VERIFIERS: Mapping[Verifier, Callable[[Rows, Block, Sampler], Chosen]] = {
    Verifier.COUPLED: coupled_block,
    Verifier.REJECTION: rejection_block,
    Verifier.BLOCK: block_block,
}


def verify(logits: torch.Tensor, blocks: Sequence[Block], sampler: Sampler = NUMPY) -> list[Chosen]:
    """What each block emits: the drafts that are kept, then the recovered or bonus token, with their logprobs.

    `logits` is [R, V], float32, on the CPU, and is not changed; each block owns ``len(drafts) + 1`` of its rows. What a
    block emits does not depend on the rows and blocks beside it. A greedy sequence is verified alike by all three
    verifiers: a draft is kept where it is the most likely token. A row without a token: see `Chosen`. ValueError for
    what the other verifiers refuse: see `coupled_verify` and `rejection_verify`.
    """
    rows = usable_rows(logits, blocks)
    return [_verify_block(rows, block, sampler) for block in blocks]


def _verify_block(rows: Rows, block: Block, sampler: Sampler) -> Chosen:
    # Of two one-hot distributions nothing is left to chance.
    verifier = Verifier.COUPLED if block.sampling.greedy else block.sampling.verifier
    chosen = _VERIFIERS[verifier](rows, block, sampler)
    if block.top_logprobs is None:
        return chosen
    top = block.top_logprobs
    try:
        logprobs = [token_logprob(rows[block.first_row + i], one, top, sampler) for i, one in enumerate(chosen.tokens)]
    except RowError as error:
        # A forced token needs no numbers from the target; its log-probability does.
        return Chosen((), failure=error.failure)
    return replace(chosen, logprobs=tuple(logprobs))

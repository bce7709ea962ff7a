"""Coupled verification: which drafts the target keeps, and the token that it emits after them.

For output position t of a choice, noise g_t comes from the seed, the choice, t and the token id (`philox`). The
target's token at t is argmax(log target_probs_t + g_t), a sample from target_probs_t by the Gumbel-max trick; a
draft is kept while it equals the target's own token. So the text is a function of the target and the seed alone: not
of drafter, block length or batch, nor of whether anything was drafted (Daliri, Musco, Suresh 2024, "Coupling without
communication and drafter-invariant speculative decoding"). Using g_t again after a rejection is sound: it meets only
prefixes made from earlier noise. Greedy is the same with no noise.

Logits, then target_probs, are made in the order that `processors` documents: logit bias, repetition penalty, presence
penalty, frequency penalty, temperature, top-k, top-p, min-p. The drafts before a row count as output there.

This implementation is the CPU's. `reference` holds a dense and plain one; the two agree token for token.
"""

from collections.abc import Mapping, Sequence, Set

import numpy as np
import torch

from kernels.processors import RowError
from kernels.sampler import NUMPY, Sampler
from kernels.sampling import Block, Chosen, Sampling
from kernels.target_rows import Rows, TargetRows, usable_rows


def coupled_verify(logits: torch.Tensor, blocks: Sequence[Block], sampler: Sampler = NUMPY) -> list[Chosen]:
    """What each block emits: the drafts that the target keeps, then its recovered or bonus token.

    `logits` is [R, V], float32, on the CPU, and is not changed; each block owns ``len(drafts) + 1`` of its rows. A
    row's token is the same bit for bit whatever rows and blocks are beside it. Greedy ties go to the lowest token id.
    ValueError for a block beyond the logits or a bias for a token that does not exist.
    """
    rows = usable_rows(logits, blocks)
    return [coupled_block(rows, block, sampler) for block in blocks]


def coupled_block(rows: Rows, block: Block, sampler: Sampler) -> Chosen:
    """`coupled_verify` of one block; logprobs are left to the caller."""
    target = TargetRows(rows, block, sampler)
    greedy = block.sampling.greedy
    tokens: list[int] = []
    # Lazy: a row counts only when every row before it kept its draft.
    for index, draft in enumerate((*block.drafts, None)):
        try:
            token = target.greedy_token(index) if greedy else target.coupled_token(index)
        except RowError as error:
            return Chosen(tuple(tokens), failure=None if tokens else error.failure)
        tokens.append(token)
        if token != draft:
            break
    return Chosen(tuple(tokens))


def processed_log_probs(
    logits: torch.Tensor,
    sampling: Sampling,
    prompt_tokens: Set[int] = frozenset(),
    output_counts: Mapping[int, int] | None = None,
) -> torch.Tensor:
    """log target_probs of one row [V] after every processor, float32 [V]; -inf where a mask removed the token.

    Greedy target_probs are one-hot.
    """
    block = Block(0, (), sampling, 0, frozenset(prompt_tokens), output_counts)
    target = TargetRows(usable_rows(logits[None], [block]), block, NUMPY).scores(0)
    log_probs = np.full(logits.numel(), -np.inf, dtype=np.float32)
    scores = target.scores.astype(np.float64)
    log_probs[slice(None) if target.token_ids is None else target.token_ids] = scores - np.log(np.exp(scores).sum())
    return torch.from_numpy(log_probs)

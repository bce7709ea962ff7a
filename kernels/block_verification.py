"""Block verification: the drafts of a block are kept or rejected together, so that more of them can be kept.

Sun et al. 2024, "Block verification accelerates speculative decoding", algorithm 2. For a block of drafts x_1..x_K let
share_0 = 1 and

    share_i = min(share_{i-1} * target_probs_i[x_i] / draft_probs_i[x_i], 1)
    mass_i = sum over x of max(share_i * target_probs_{i+1}[x] - draft_probs_{i+1}[x], 0)
    keep_i = mass_i / (mass_i + 1 - share_i) for i < K, and keep_K = share_K

Each i draws its own uniform; the longest prefix whose uniform is at most keep_i is kept, not the one before the first
failure. After a full accept the bonus token is drawn from target_probs_{K+1}, else the recovered token from
max(share_i * target_probs_{i+1} - draft_probs_{i+1}, 0), normalised. At least i drafts are kept with probability
E[share_i], which no valid verifier exceeds in sum over i, token-wise rejection included.

What `rejection` says of distribution, seeds, drafters, processors and masks holds here. A draft's noise must not be
drawn again by a later block, since how many drafts are kept depends on those behind them: `philox.draft_stream`.
"""

from collections.abc import Sequence

import torch

from kernels.philox import Stream
from kernels.processors import RowError
from kernels.residual import TargetProbs, draft_point
from kernels.sampler import NUMPY, Sampler
from kernels.sampling import Block, Chosen
from kernels.target_rows import Rows, TargetRows, usable_rows


def block_verify(logits: torch.Tensor, blocks: Sequence[Block], sampler: Sampler = NUMPY) -> list[Chosen]:
    """What each block emits: the drafts that are kept, then its recovered or bonus token.

    Arguments and checks: as `rejection_verify`.
    """
    rows = usable_rows(logits, blocks)
    return [block_block(rows, block, sampler) for block in blocks]


def block_block(rows: Rows, block: Block, sampler: Sampler) -> Chosen:
    """`block_verify` of one block; logprobs are left to the caller."""
    sampling, drafts = block.sampling, block.drafts
    target = TargetRows(rows, block, sampler)
    uniforms = sampler.uniforms(sampling, block.position, len(drafts))
    try:
        target_probs = TargetProbs(target.scores(0), sampler)
    except RowError as error:
        return Chosen((), failure=error.failure)
    points = [draft_point(drafts, block.draft_probs, index) for index in range(len(drafts))]
    # What the token after the drafts kept so far is drawn from: its row, and the share that is left of it.
    kept, kept_share, share = 0, 1.0, 1.0
    after: TargetProbs | None = target_probs
    for index, token in enumerate(drafts):
        share = min(share * target_probs.of(token) / points[index].prob, 1.0)
        if share == 0.0:
            break
        try:
            target_probs = TargetProbs(target.scores(index + 1), sampler)
        except RowError:
            # The block ends before a row without a token, as if it had been drafted no further.
            if uniforms[index] <= share:
                kept, after = index + 1, None
            break
        keep = share
        if index + 1 < len(drafts):
            mass = target_probs.residual_mass(share, points[index + 1])
            # Both vanish where the following distributions are equal and so will be kept for certain.
            keep = mass / (mass + (1.0 - share)) if mass > 0.0 else float(share == 1.0)
        if uniforms[index] <= keep:
            kept, kept_share, after = index + 1, share, target_probs
    if after is None:
        return Chosen(drafts[:kept])
    left = after.target if kept == len(drafts) else after.residual(kept_share, points[kept])
    position = block.position + kept
    token = sampler.race(left.scores, left.token_ids, sampling, position, Stream.RECOVERED)
    return Chosen((*drafts[:kept], token))

"""Token-wise rejection: a draft is kept with probability min(1, target / draft), else what the drafter gave too little
of is sampled.

Leviathan, Kalman, Matias 2023, "Fast inference from transformers via speculative decoding", algorithm 1; Chen et al.
2023, "Accelerating large language model decoding with speculative sampling", algorithm 2. A draft x drawn from
draft_probs is kept if a uniform is below target_probs[x] / draft_probs[x]. At the first that is not, the recovered
token is drawn from max(target_probs - draft_probs, 0), normalised; after a full accept the bonus token from
target_probs. A draft is kept with probability 1 - TV(target_probs, draft_probs). A greedy or n-gram drafter has one-hot
draft_probs.

The text follows the target's distribution exactly, but it depends on the drafter and the block length: with the same
seed it repeats only while those, and the cycles in which nothing was verified, repeat as well. Who needs the text to be
a function of the seed takes coupled verification. Where the sequence is greedy the two are the same.

It rests on two promises of the drafter: its noise is of a stream of its own (`philox.draft_stream`), and whether a
draft is verified does not depend on that draft's value. Processors and masks: see `processors`; every row sees the
drafts before it.
"""

from collections.abc import Sequence

import torch

from kernels.philox import Stream
from kernels.processors import RowError
from kernels.residual import TargetProbs, draft_point
from kernels.sampler import NUMPY, Sampler
from kernels.sampling import Block, Chosen
from kernels.target_rows import Rows, TargetRows, usable_rows


def rejection_verify(logits: torch.Tensor, blocks: Sequence[Block], sampler: Sampler = NUMPY) -> list[Chosen]:
    """What each block emits: the drafts that are kept, then its recovered or bonus token.

    Arguments, checks and independence of the rows beside a block: as `coupled_verify`. ValueError too for a draft that
    its own draft_probs make impossible.
    """
    rows = usable_rows(logits, blocks)
    return [rejection_block(rows, block, sampler) for block in blocks]


def rejection_block(rows: Rows, block: Block, sampler: Sampler) -> Chosen:
    """`rejection_verify` of one block; logprobs are left to the caller."""
    sampling, drafts = block.sampling, block.drafts
    target = TargetRows(rows, block, sampler)
    uniforms = sampler.uniforms(sampling, block.position, len(drafts))
    accepted = 0
    try:
        scores = target.scores(0)
        while accepted < len(drafts):
            target_probs = TargetProbs(scores, sampler)
            draft = draft_point(drafts, block.draft_probs, accepted)
            if uniforms[accepted] * draft.prob >= target_probs.of(drafts[accepted]):
                scores = target_probs.residual(1.0, draft)
                break
            accepted += 1
            scores = target.scores(accepted)
    except RowError as error:
        return Chosen(drafts[:accepted], failure=None if accepted else error.failure)
    position = block.position + accepted
    token = sampler.race(scores.scores, scores.token_ids, sampling, position, Stream.RECOVERED)
    return Chosen((*drafts[:accepted], token))

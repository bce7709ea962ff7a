"""What a drafter proposes from its own scores, with the noise that the sequence's verifier expects of it."""

import numpy as np
from numpy.typing import NDArray

from kernels.gumbel_race import race
from kernels.philox import draft_stream
from kernels.sampling import DraftProbs, Sampling, Verifier


def choose_draft(
    scores: NDArray[np.float32], token_ids: NDArray[np.int64] | None, sampling: Sampling, position: int, index: int
) -> int:
    """The draft `index` (from 0) of the block whose first token has the output position `position`.

    `scores` [n] are the drafter's logits of `token_ids` (rising; None: of the whole vocabulary), divided by its
    temperature where the sequence is sampled, with a finite maximum. A greedy sequence gets the most likely token.
    Under coupled verification it is the drafter's sample with the target's own noise; under rejection and block
    verification a sample with noise of its own, whose distribution is `draft_probs` of the same scores.
    """
    if sampling.greedy:
        best = int(scores.argmax())
        return best if token_ids is None else int(token_ids[best])
    scores = scores - scores.max()
    if sampling.verifier is Verifier.COUPLED:
        return race(scores, token_ids, sampling, position + index)
    return race(scores, token_ids, sampling, position, draft_stream(index))


def draft_probs(
    scores: NDArray[np.float32], token_ids: NDArray[np.int64] | None, sampling: Sampling
) -> DraftProbs | None:
    """What `choose_draft` samples from; None, a one-hot, where it takes the most likely token."""
    if sampling.greedy:
        return None
    weights = np.exp((scores - scores.max()).astype(np.float64))
    probs = (weights / weights.sum()).astype(np.float32)
    return DraftProbs(np.arange(scores.size) if token_ids is None else token_ids, probs)

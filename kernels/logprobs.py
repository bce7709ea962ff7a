"""Log-probabilities of emitted tokens, for clients that ask for them.

They are those of the raw target: the log-softmax of its logits as they come, before bias, penalties, masks, watermark
and temperature, which is what vLLM calls ``raw_logprobs``. So a token that a grammar or a forced prefix made certain
still shows how likely the model itself found it, and a value does not depend on the block that its row sat in.
"""

import math

import numpy as np
from numpy.typing import NDArray

from kernels.sampler import NUMPY, Sampler
from kernels.sampling import Sampling, TokenLogprob

_RAW = Sampling(temperature=1.0)


def token_logprob(row: NDArray[np.float32], token: int, top: int, sampler: Sampler = NUMPY) -> TokenLogprob:
    """The log-probability of `token` under the logits `row` [V], and the `top` most likely tokens.

    Among equal logits the lower token id comes first. Raises `processors.RowError` for a row without a finite maximum.
    """
    scores = sampler.scores(row, _RAW).scores
    log_total = math.log(sampler.mass(scores))
    likely: list[tuple[int, float]] = []
    if top > 0:
        kept = sampler.scores(row, Sampling(temperature=1.0, top_k=top))
        # Rising ids and a stable sort: of equals the lowest ids.
        order = np.argsort(-kept.scores, kind="stable")[:top]
        token_ids = order if kept.token_ids is None else kept.token_ids[order]
        likely = [(int(one), _rounded(kept.scores[at], log_total)) for one, at in zip(token_ids, order, strict=True)]
    return TokenLogprob(_rounded(scores[token], log_total), tuple(likely))


def _rounded(score: np.float32, log_total: float) -> float:
    """In float32, which the last bits of a sum do not reach."""
    return float(np.float32(float(score) - log_total))

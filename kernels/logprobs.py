"""Log-probabilities of emitted tokens, for clients that ask for them.

They are those of the raw target: the log-softmax of its logits as they come, before bias, penalties, masks, watermark
and temperature, which is what vLLM calls ``raw_logprobs``. So a token that a grammar or a forced prefix made certain
still shows how likely the model itself found it, and a value does not depend on the block that its row sat in.
"""

import math

import numpy as np
from numpy.typing import NDArray

from kernels.sampling import TokenLogprob


def token_logprob(row: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """The log-probability of `token` under the logits `row` [V], and the `top` most likely tokens.

    Among equal logits the lower token id comes first. The sum of the softmax is float64, everything else float32.
    """
    highest = row.max()
    shift = np.float32(highest) + np.float32(math.log(np.exp(row - highest).sum(dtype=np.float64)))
    likely: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    if top > 0:
        count = min(top, row.size)
        edge = np.partition(row, -count)[-count]
        # Rising ids and a stable sort: of what equals the edge, the lowest ids.
        at_least = np.flatnonzero(row >= edge)
        likely = at_least[np.argsort(-row[at_least], kind="stable")][:count]
    return TokenLogprob(float(row[token] - shift), tuple((int(one), float(row[one] - shift)) for one in likely))

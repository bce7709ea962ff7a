"""A sample by the Gumbel-max trick: argmax(score + noise), with noise only for tokens that can still win."""

import numpy as np
from numpy.typing import NDArray

from kernels.philox import GUMBEL_MAX, UNIFORM_BITS, Stream, gumbel_from_bits, uniform_bits
from kernels.sampling import Sampling

_HEAD_TOKENS = 64
_HEAD_DEPTH = np.float32(4.0)
_SLACK = np.float32(1e-4)
"""More than float32 can err in a sum of a score and its noise, both below 64 in magnitude."""


def race(
    scores: NDArray[np.float32],
    token_ids: NDArray[np.int64] | None,
    sampling: Sampling,
    position: int,
    stream: int = Stream.COUPLED,
) -> int:
    """The token with the largest sum of its score and its noise: a sample of the softmax of the scores.

    `scores` [n] are log-probabilities up to a constant that makes the largest 0, of `token_ids` (rising; None: of the
    whole vocabulary). Noise is read at `position` of `stream`, with the seed and the choice of `sampling`.

    The noise of a few likely tokens gives a total that the winner must reach. Noise is bounded, which leaves the
    `contenders`; and ``-log(u) >= 1 - u``, which tells from a contender's uniform, before two logarithms, that most of
    them do not reach it either. Both bounds err to the safe side, so that the result is the dense one.
    """
    seed, choice = sampling.seed, sampling.choice
    if token_ids is not None and token_ids.size == 1:
        return int(token_ids[0])
    if scores.size <= _HEAD_TOKENS:
        contenders = np.arange(scores.size)
        tokens = contenders if token_ids is None else token_ids
        bits = uniform_bits(seed, choice, position, tokens, stream)
    else:
        head = np.flatnonzero(scores >= -_HEAD_DEPTH)[:_HEAD_TOKENS]
        head_tokens = head if token_ids is None else token_ids[head]
        head_bits = uniform_bits(seed, choice, position, head_tokens, stream)
        reached = (scores[head] + gumbel_from_bits(head_bits)).max()
        contenders = np.flatnonzero(scores >= reached - np.float32(GUMBEL_MAX) - _SLACK)
        tokens = contenders if token_ids is None else token_ids[contenders]
        bits = uniform_bits(seed, choice, position, tokens, stream)
        shortfall = 1.0 - (bits.astype(np.float64) + 0.5) * 2.0**-UNIFORM_BITS
        able = np.flatnonzero(shortfall <= np.exp(scores[contenders] - reached + _SLACK))
        contenders, tokens, bits = contenders[able], tokens[able], bits[able]
    # The first of equal totals is the lowest token id, since ids rise.
    return int(tokens[(scores[contenders] + gumbel_from_bits(bits)).argmax()])

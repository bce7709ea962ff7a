"""Noise that depends on the seed, the choice, the output position and the token alone: Philox 4x32-10 and Gumbel.

A counter-based generator has no state, so a drafter, a verifier and a GPU read the same noise for a token in any
order, one token at a time or the whole vocabulary at once. Source: Salmon, Moraes, Dror, Shaw, "Parallel random
numbers: as easy as 1, 2, 3", 2011.

Key: the 64-bit seed, low word first. Counter: (token id >> 2, output position, choice, stream). The word of a token is
lane ``token id & 3`` of its counter's output, so that a vocabulary of V costs V / 4 counters.

The stream keeps apart what must be independent. Coupled verification has one, in which drafter and target meet. Under
rejection and block verification they must not meet: the draft, its acceptance and the recovered token each have their
own. There a draft's noise is named by the position of its block and its index in it (`draft_stream`), never by its
own position: a block's ending depends on drafts behind it, so that a later block may not draw them again.
"""

from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""32-bit words in 64-bit lanes: a product of two needs no carry."""

ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_WEYL_STEPS = np.arange(ROUNDS, dtype=np.uint64)[:, None, None] * _WEYL

UNIFORM_BITS = 24
"""Bits of a uniform: its half-open cells have their midpoint in float32, so the noise is never infinite."""

GUMBEL_MAX = 17.3287
"""Above every value of `gumbel_from_bits`; the largest is ``-log(-log(1 - 2**-25))``, 17.32868."""


class Stream(IntEnum):
    """The low byte of the counter's fourth word."""

    COUPLED = 0
    """A token's own position: the target's noise under coupled verification, which its drafter shares."""
    DRAFT = 1
    """The position of the block, with the draft's index in it above the low byte: see `draft_stream`."""
    ACCEPTANCE = 2
    """The position of the block; the draft's index stands in place of ``token id >> 2``."""
    RECOVERED = 3
    """A token's own position: the recovered or bonus token, and every plain one, under the two."""
    WATERMARK = 4
    """The token before stands in place of the position, the watermark's key in place of the seed."""


def draft_stream(index: int) -> int:
    """The stream of the draft `index` (from 0) of a block, under rejection and block verification."""
    return Stream.DRAFT | index << 8


def philox_4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds of Philox: `counter` [4, n] and `key`, all 32-bit words, to [4, n] words."""
    even = counter[0::2].copy()
    odd = counter[1::2].copy()
    # Rows hold words (0, 2) and (1, 3), and the round's exchange of the halves is a reversed view, never a copy.
    round_keys = (np.array([[key[0]], [key[1]]], dtype=np.uint64) + _WEYL_STEPS) & _LOW
    product, high = np.empty_like(even), np.empty_like(even)
    for round_key in round_keys:
        np.multiply(even, _MULTIPLIERS, out=product)
        np.right_shift(product, _WORD, out=high)
        np.bitwise_and(product, _LOW, out=product)
        np.bitwise_xor(high[::-1], odd, out=even)
        np.bitwise_xor(even, round_key, out=even)
        odd, product = product[::-1], odd
    words = np.empty_like(counter)
    words[0::2] = even
    words[1::2] = odd
    return words


def uniform_bits(
    seed: int, choice: int, position: int, token_ids: NDArray[np.int64], stream: int = Stream.COUPLED
) -> Words:
    """The upper 24 bits of each token's word, [n]. `token_ids` are below 2**34, in any order."""
    if token_ids.size == 0:
        return np.empty(0, dtype=np.uint64)
    blocks = int(token_ids.max() >> 2) + 1
    whole = token_ids.size >= blocks  # then a word for every token costs no more than four for each of these
    counter = np.zeros((4, blocks if whole else token_ids.size), dtype=np.uint64)
    counter[0] = np.arange(blocks) if whole else token_ids >> 2
    counter[1] = position
    counter[2] = choice
    counter[3] = stream
    words = philox_4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    chosen = words.T.ravel().take(token_ids) if whole else words[token_ids & 3, np.arange(token_ids.size)]
    return chosen >> np.uint64(32 - UNIFORM_BITS)


def gumbel_from_bits(bits: Words) -> NDArray[np.float32]:
    """Standard Gumbel noise ``-log(-log(u))`` with ``u = (bits + 0.5) * 2**-24``, [n].

    Float64 inside and rounded once, so that a last-bit difference between two libraries' logarithms is lost in the
    rounding for all but about one value in 2**28.
    """
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-UNIFORM_BITS
    return (-np.log(-np.log(uniform))).astype(np.float32)


def gumbel_noise(
    seed: int,
    choice: int,
    position: int,
    token_ids: torch.Tensor | None = None,
    *,
    vocabulary: int = 0,
    stream: int = Stream.COUPLED,
) -> torch.Tensor:
    """Gumbel noise of `token_ids` (int64 [n]), or of the whole `vocabulary` where they are None; float32 [n]."""
    tokens = np.arange(vocabulary) if token_ids is None else token_ids.numpy()
    return torch.from_numpy(gumbel_from_bits(uniform_bits(seed, choice, position, tokens, stream)))


def acceptance_uniforms(seed: int, choice: int, position: int, count: int) -> NDArray[np.float64]:
    """The uniforms that decide on the `count` drafts of the block at `position`: above 0 and below 1."""
    counter = np.zeros((4, count), dtype=np.uint64)
    counter[0] = np.arange(count)
    counter[1] = position
    counter[2] = choice
    counter[3] = Stream.ACCEPTANCE
    words = philox_4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    high, low = (words[:2] >> np.uint64(6)).astype(np.float64)
    # 26 bits of each of two words, and a half: exact in float64.
    uniforms: NDArray[np.float64] = (high * 2.0**26 + low + 0.5) * 2.0**-52
    return uniforms

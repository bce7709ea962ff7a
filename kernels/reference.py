"""The dense twin of `coupled_verify`: the whole vocabulary at every row, in plain PyTorch, with nothing clever.

It shares no code with the implementation that it checks, its Philox included. Its scores and noise are the same
float32 operations, so the chosen tokens are equal, not merely close.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import torch

from kernels.sampling import Block, Sampling

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox_4x32(counter: torch.Tensor, key: tuple[int, int]) -> torch.Tensor:
    """Philox 4x32-10 in masked int64: `counter` [4, n] of 32-bit words to [4, n]."""
    c0, c1, c2, c3 = counter.unbind(0)
    k0, k1 = key
    for _ in range(10):
        # A product of two words overflows int64 into its sign; the shift's sign bits are masked off.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, low0 = (product0 >> 32) & _MASK, product0 & _MASK
        high1, low1 = (product1 >> 32) & _MASK, product1 & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3))


def gumbel_noise(seed: int, choice: int, position: int, vocabulary: int) -> torch.Tensor:
    """Noise of every token, float32 [V]."""
    token_ids = torch.arange(vocabulary)
    counter = torch.stack(
        (token_ids >> 2, torch.full_like(token_ids, position), torch.full_like(token_ids, choice), token_ids * 0)
    )
    words = philox_4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    word = words.gather(0, (token_ids & 3).unsqueeze(0)).squeeze(0)
    uniform = ((word >> 8).double() + 0.5) * 2.0**-24
    return (-torch.log(-torch.log(uniform))).float()


def processed_scores(
    logits: torch.Tensor, sampling: Sampling, prompt_tokens: Collection[int], output_counts: Mapping[int, int]
) -> torch.Tensor:
    """The row [V] after bias, penalties, temperature and masks: float32 [V], the largest 0, -inf where masked.

    The largest of a greedy row is not shifted to 0.
    """
    scores = logits.detach().float().clone()
    vocabulary = scores.numel()
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    counts = torch.zeros(vocabulary)
    for token, count in output_counts.items():
        counts[token] = count
    if sampling.repetition_penalty != 1.0:
        present = counts > 0
        present[list(prompt_tokens)] = True
        penalty = torch.tensor(sampling.repetition_penalty)
        scores = torch.where(present, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
    scores = scores - torch.tensor(sampling.presence_penalty) * (counts > 0).float()
    scores = scores - torch.tensor(sampling.frequency_penalty) * counts
    if sampling.temperature < 1e-5:
        return scores
    scores = (scores - scores.max()) / torch.tensor(sampling.temperature)
    if 0 < sampling.top_k < vocabulary:
        kth = scores.sort(descending=True).values[sampling.top_k - 1]
        scores = scores.masked_fill(scores < kth, -math.inf)
    if sampling.top_p < 1.0:
        ordered, token_ids = scores.sort(descending=True, stable=True)
        mass = (ordered.double().exp() * 2.0 ** (52 - (vocabulary - 1).bit_length())).round()
        kept = mass.cumsum(0) - mass < sampling.top_p * mass.sum()
        kept[0] = True
        scores = scores.masked_fill(~torch.zeros_like(kept).scatter(0, token_ids, kept), -math.inf)
    if sampling.min_p > 0.0:
        scores = scores.masked_fill(scores < torch.tensor(math.log(sampling.min_p)), -math.inf)
    return scores


def processed_log_probs(
    logits: torch.Tensor,
    sampling: Sampling,
    prompt_tokens: Collection[int] = frozenset(),
    output_counts: Mapping[int, int] | None = None,
) -> torch.Tensor:
    """log target_probs of one row [V] after every processor, float32 [V]; one-hot when greedy."""
    scores = processed_scores(logits, sampling, prompt_tokens, output_counts or {})
    if sampling.temperature < 1e-5:
        return torch.full_like(scores, -math.inf).index_fill(0, scores.argmax(), 0.0)
    return scores.double().log_softmax(0).float()


def coupled_verify(logits: torch.Tensor, blocks: Sequence[Block]) -> list[list[int]]:
    """The tokens that each block emits; see `kernels.coupled_verify.coupled_verify`."""
    emitted = []
    for block in blocks:
        output_counts = dict(block.output_counts or {})
        tokens: list[int] = []
        for index, draft in enumerate((*block.drafts, None)):
            row = logits[block.first_row + index]
            scores = processed_scores(row, block.sampling, block.prompt_tokens, output_counts)
            if block.sampling.temperature >= 1e-5:
                position = block.position + index
                scores += gumbel_noise(block.sampling.seed, block.sampling.choice, position, row.numel())
            token = int(scores.argmax())
            tokens.append(token)
            if token != draft:
                break
            output_counts[token] = output_counts.get(token, 0) + 1
        emitted.append(tokens)
    return emitted

"""The dense twins of the verifiers: the whole vocabulary at every row, in plain PyTorch, with nothing clever.

They share no code with the implementations that they check, their Philox included. Scores and noise are the same
float32 operations, so the chosen tokens are equal, not merely close.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import torch

from kernels.sampling import Block, DraftProbs, Sampling

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_COUPLED, _ACCEPTANCE, _RECOVERED, _WATERMARK = 0, 2, 3, 4

Emitted = tuple[int, ...]
"""A block's tokens; none where its first row has no token."""


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


def token_words(seed: int, choice: int, position: int, vocabulary: int, stream: int) -> torch.Tensor:
    """Each token's 32-bit word, int64 [V]."""
    token_ids = torch.arange(vocabulary)
    rest = [torch.full_like(token_ids, word) for word in (position, choice, stream)]
    words = philox_4x32(torch.stack((token_ids >> 2, *rest)), (seed & _MASK, (seed >> 32) & _MASK))
    return words.gather(0, (token_ids & 3).unsqueeze(0)).squeeze(0)


def gumbel_noise(seed: int, choice: int, position: int, vocabulary: int, stream: int = _COUPLED) -> torch.Tensor:
    """Noise of every token, float32 [V]."""
    uniform = ((token_words(seed, choice, position, vocabulary, stream) >> 8).double() + 0.5) * 2.0**-24
    return (-torch.log(-torch.log(uniform))).float()


def acceptance_uniform(sampling: Sampling, position: int, index: int) -> float:
    """Decides on draft `index` of the block at `position`."""
    counter = torch.tensor([[index], [position], [sampling.choice], [_ACCEPTANCE]])
    high, low, _, _ = philox_4x32(counter, (sampling.seed & _MASK, (sampling.seed >> 32) & _MASK))[:, 0].tolist()
    return (int(high) // 64 * 2.0**26 + int(low) // 64 + 0.5) * 2.0**-52


def processed_scores(row: torch.Tensor, block: Block, index: int) -> torch.Tensor:
    """Row `index` of the block [V] after every processor: float32 [V], the largest 0, -inf where masked.

    The largest of a greedy row is not shifted to 0. Where nothing is left, all are -inf or NaN.
    """
    sampling, position = block.sampling, block.position + index
    vocabulary = row.numel()
    scores = row.detach().float().clone()
    if position < len(sampling.forced_prefix):
        scores = torch.full((vocabulary,), -math.inf)
        scores[sampling.forced_prefix[position]] = 0.0
        return scores
    drafts = block.drafts[:index]
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    counts = torch.zeros(vocabulary)
    for token, count in (block.output_counts or {}).items():
        counts[token] += count
    for token in drafts:
        counts[token] += 1
    if sampling.repetition_penalty != 1.0:
        present = counts > 0
        present[list(block.prompt_tokens)] = True
        penalty = torch.tensor(sampling.repetition_penalty)
        scores = torch.where(present, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
    scores = scores - torch.tensor(sampling.presence_penalty) * (counts > 0).float()
    scores = scores - torch.tensor(sampling.frequency_penalty) * counts
    scores = _masked(scores, block, index)
    if sampling.watermark is not None:
        before = (0, *block.tail, *drafts)[-1]
        words = token_words(sampling.watermark.key, 0, before, vocabulary, _WATERMARK)
        green = (words >> 8) < round(sampling.watermark.gamma * 2**24)
        scores = torch.where(green, scores + torch.tensor(sampling.watermark.delta), scores)
    if sampling.temperature < 1e-5 or not scores.max().isfinite():
        return scores
    return _truncated((scores - scores.max()) / torch.tensor(sampling.temperature), sampling)


def _masked(scores: torch.Tensor, block: Block, index: int) -> torch.Tensor:
    sampling = block.sampling
    permitted = torch.ones(scores.numel(), dtype=torch.bool)
    if sampling.allowed_tokens:
        permitted[:] = False
        permitted[list(sampling.allowed_tokens)] = True
    output = (*block.tail[max(0, len(block.tail) - block.position) :], *block.drafts[:index])
    for word in sampling.bad_words:
        if len(word) == 1 or output[-len(word) + 1 :] == word[:-1]:
            permitted[word[-1]] = False
    mask = block.masks[index] if block.masks is not None else None
    if mask is not None:
        permitted &= torch.tensor([bool(mask[token // 32] >> (token % 32) & 1) for token in range(scores.numel())])
    scores = scores.masked_fill(~permitted, -math.inf)
    if block.position + index < sampling.min_tokens:
        without_ends = scores.index_fill(0, torch.tensor(sampling.end_tokens, dtype=torch.int64), -math.inf)
        if without_ends.max() > -math.inf:
            return without_ends
    return scores


def _truncated(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    vocabulary = scores.numel()
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
    block = Block(0, (), sampling, 0, frozenset(prompt_tokens), output_counts)
    return target_probs(logits, block, 0).log().float()


def target_probs(row: torch.Tensor, block: Block, index: int) -> torch.Tensor:
    """Of row `index` of the block, float64 [V]; one-hot when greedy. NaN where the row has no token."""
    scores = processed_scores(row, block, index)
    if block.sampling.temperature < 1e-5 and scores.max() > -math.inf:
        return torch.zeros_like(scores, dtype=torch.float64).index_fill(0, scores.argmax(), 1.0)
    return scores.double().softmax(0)


def draft_probs(draft: int, probs: DraftProbs | None, vocabulary: int) -> torch.Tensor:
    """float64 [V]."""
    dense = torch.zeros(vocabulary, dtype=torch.float64)
    if probs is None:
        dense[draft] = 1.0
    else:
        dense[torch.from_numpy(probs.token_ids)] = torch.from_numpy(probs.probs).double()
    return dense


def coupled_verify(logits: torch.Tensor, blocks: Sequence[Block]) -> list[Emitted]:
    """The tokens that each block emits; see `kernels.coupled_verify.coupled_verify`."""
    emitted = []
    for block in blocks:
        tokens: list[int] = []
        for index, draft in enumerate((*block.drafts, None)):
            scores = processed_scores(logits[block.first_row + index], block, index)
            if not scores.max() > -math.inf:
                break
            if block.sampling.temperature >= 1e-5:
                position = block.position + index
                scores += gumbel_noise(block.sampling.seed, block.sampling.choice, position, scores.numel())
            token = int(scores.argmax())
            tokens.append(token)
            if token != draft:
                break
        emitted.append(tuple(tokens))
    return emitted


def rejection_verify(logits: torch.Tensor, blocks: Sequence[Block]) -> list[Emitted]:
    """The tokens that each block emits; see `kernels.rejection.rejection_verify`."""
    emitted = []
    for block in blocks:
        targets, drafts = _distributions(logits, block)
        accepted, left = 0, targets[0]
        for index, token in enumerate(block.drafts):
            ratio = float(targets[index][token] / drafts[index][token])
            if not acceptance_uniform(block.sampling, block.position, index) < ratio:
                left = (targets[index] - drafts[index]).clamp(min=0.0)
                break
            accepted, left = index + 1, targets[index + 1]
        emitted.append(_with_recovered(block, accepted, left))
    return emitted


def block_verify(logits: torch.Tensor, blocks: Sequence[Block]) -> list[Emitted]:
    """The tokens that each block emits; see `kernels.block_verification.block_verify`."""
    emitted = []
    for block in blocks:
        targets, drafts = _distributions(logits, block)
        # A row without a token ends the block before it.
        length = next((index for index, row in enumerate(targets) if row.isnan().any()), len(block.drafts))
        shares = [1.0]
        for index, token in enumerate(block.drafts[:length]):
            shares.append(min(shares[-1] * float(targets[index][token] / drafts[index][token]), 1.0))
        accepted = 0
        for count in range(1, length + 1):
            keep = shares[count]
            if count < length:
                mass = float((shares[count] * targets[count] - drafts[count]).clamp(min=0.0).sum())
                keep = mass / (mass + (1 - shares[count])) if mass > 0.0 else float(shares[count] == 1.0)
            if shares[count] > 0.0 and acceptance_uniform(block.sampling, block.position, count - 1) <= keep:
                accepted = count
        left = targets[accepted]
        if accepted < length:
            left = (shares[accepted] * left - drafts[accepted]).clamp(min=0.0)
        emitted.append(_with_recovered(block, accepted, left))
    return emitted


def _distributions(logits: torch.Tensor, block: Block) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    rows = range(len(block.drafts) + 1)
    targets = [target_probs(logits[block.first_row + index], block, index) for index in rows]
    named = block.draft_probs or (None,) * len(block.drafts)
    drafts = [draft_probs(*pair, logits.shape[1]) for pair in zip(block.drafts, named, strict=True)]
    return targets, drafts


def _with_recovered(block: Block, accepted: int, left: torch.Tensor) -> Emitted:
    """The kept drafts and a sample of the weights `left` [V]; only the drafts where these are no weights."""
    kept = block.drafts[:accepted]
    if left.isnan().any():
        return kept
    position = block.position + accepted
    scores = (left.log() - left.max().log()).float()
    noise = gumbel_noise(block.sampling.seed, block.sampling.choice, position, left.numel(), _RECOVERED)
    return (*kept, int((scores + noise).argmax()))

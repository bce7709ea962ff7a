"""Coupled verification: which drafts the target keeps, and the token that it emits after them.

For output position t of a choice, noise g_t comes from the seed, the choice, t and the token id (`philox`). The
target's token at t is argmax(log target_probs_t + g_t), a sample from target_probs_t by the Gumbel-max trick; a
draft is kept while it equals the target's own token. So the text is a function of the target and the seed alone: not
of drafter, block length or batch, nor of whether anything was drafted (Daliri, Musco, Suresh 2024, "Coupling without
communication and drafter-invariant speculative decoding"). Using g_t again after a rejection is sound: it meets only
prefixes made from earlier noise. Greedy is the same with no noise.

Logits, then target_probs, are made in the order that `processors` documents: logit bias, repetition penalty, presence
penalty, frequency penalty, temperature, top-k, top-p, min-p. The drafts before a row count as output there.

`coupled_verify` and `processed_log_probs` are what a kernel for another device will serve. This implementation is the
CPU's. `reference` holds the same two functions, dense and plain; the two agree token for token.
"""

from collections.abc import Mapping, Sequence, Set

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.gumbel_race import race
from kernels.processors import Row, TokenPenalties, processed_logits, target_scores
from kernels.sampling import Block, Sampling

_BFLOAT16_INFINITY = 0x7F80


def coupled_verify(logits: torch.Tensor, blocks: Sequence[Block]) -> list[list[int]]:
    """The tokens that each block emits: the drafts that the target keeps, then its recovered or bonus token.

    `logits` is [R, V], bfloat16 or float32, on the CPU, and is not changed; each block owns ``len(drafts) + 1`` of its
    rows. A row's token is the same bit for bit whatever rows and blocks are beside it. Greedy ties go to the lowest
    token id. ValueError for a block beyond the logits, a bias for a token that does not exist, or logits that hold
    NaN or have no finite maximum.
    """
    _refuse_unusable(logits, blocks)
    logits = logits.detach()
    vocabulary = logits.shape[1]
    # One call for all rows costs less than sorting out which rows need it.
    greedy = _greedy_tokens(logits) if any(_is_raw_greedy(block.sampling) for block in blocks) else None
    emitted = []
    for block in blocks:
        sampling, drafts = block.sampling, block.drafts
        raw_greedy = greedy if _is_raw_greedy(sampling) else None
        penalties = None
        if sampling.penalised:
            penalties = TokenPenalties(sampling, block.prompt_tokens, block.output_counts or {}, vocabulary)
        tokens: list[int] = []
        # Lazy: a row counts only when every row before it kept its draft.
        for index in range(len(drafts) + 1):
            row = block.first_row + index
            if raw_greedy is not None:
                token = int(raw_greedy[row])
            else:
                processed = processed_logits(_float_row(logits[row]), sampling, penalties, drafts[:index])
                token = _target_token(processed, sampling, block.position + index)
            tokens.append(token)
            if index == len(drafts) or token != drafts[index]:
                break
        emitted.append(tokens)
    return emitted


def processed_log_probs(
    logits: torch.Tensor,
    sampling: Sampling,
    prompt_tokens: Set[int] = frozenset(),
    output_counts: Mapping[int, int] | None = None,
) -> torch.Tensor:
    """log target_probs of one row [V] after every processor, float32 [V]; -inf where a mask removed the token.

    Greedy target_probs are one-hot.
    """
    row = _float_row(logits.detach())
    penalties = None
    if sampling.penalised:
        penalties = TokenPenalties(sampling, prompt_tokens, output_counts or {}, row.size)
    processed = processed_logits(row, sampling, penalties, ())
    log_probs = np.full(row.size, -np.inf, dtype=np.float32)
    if sampling.greedy:
        log_probs[_greedy_token(processed)] = 0.0
        return torch.from_numpy(log_probs)
    target = target_scores(processed, sampling)
    scores = target.scores.astype(np.float64)
    log_probs[slice(None) if target.token_ids is None else target.token_ids] = scores - np.log(np.exp(scores).sum())
    return torch.from_numpy(log_probs)


def _is_raw_greedy(sampling: Sampling) -> bool:
    """Greedy on the logits as they come from the target."""
    return sampling.greedy and not sampling.logit_bias and not sampling.penalised


def _target_token(processed: Row, sampling: Sampling, position: int) -> int:
    if sampling.greedy:
        return _greedy_token(processed)
    target = target_scores(processed, sampling)
    return race(target.scores, target.token_ids, sampling, position)


def _float_row(row: torch.Tensor) -> Row:
    """A float32 view or copy of a row [V]: for reading only."""
    values: Row = row.float().contiguous().numpy()
    return values


def _greedy_token(logits: Row) -> int:
    token = int(logits.argmax())
    if np.isnan(logits[token]):
        raise ValueError("logits hold NaN, for which there is no greedy token; check the target's weights")
    return token


def _greedy_tokens(logits: torch.Tensor) -> NDArray[np.int64]:
    """The lowest token id among each row's largest logits, [R]."""
    if logits.dtype == torch.bfloat16:
        # Positive bfloat16 values order as their bits do, and above every negative one; numpy's argmax of int16 takes
        # a hundredth of torch's of bfloat16.
        bits = logits.contiguous().view(torch.int16).numpy()
        tokens: NDArray[np.int64] = bits.argmax(axis=1)
        largest = np.take_along_axis(bits, tokens[:, None], axis=1)[:, 0]
        unordered = np.flatnonzero((largest <= 0) | (largest > _BFLOAT16_INFINITY))
        for row in unordered:
            tokens[row] = _greedy_token(_float_row(logits[row]))
        return tokens
    values: Row = logits.contiguous().numpy()
    tokens = values.argmax(axis=1)
    if np.isnan(np.take_along_axis(values, tokens[:, None], axis=1)).any():
        raise ValueError("logits hold NaN, for which there is no greedy token; check the target's weights")
    return tokens


def _refuse_unusable(logits: torch.Tensor, blocks: Sequence[Block]) -> None:
    if logits.dim() != 2 or logits.dtype not in (torch.bfloat16, torch.float32) or logits.device.type != "cpu":
        raise ValueError(
            "logits must be bfloat16 or float32 [rows, vocabulary] on the CPU, not "
            f"{logits.dtype} {list(logits.shape)} on {logits.device}"
        )
    for block in blocks:
        last = block.first_row + len(block.drafts)
        if block.first_row < 0 or last >= logits.shape[0]:
            raise ValueError(
                f"a block owns rows {block.first_row} to {last}, but logits have {logits.shape[0]} rows; "
                "give each block a row for its last token and one for each draft"
            )

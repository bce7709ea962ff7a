"""What is left of a row of logits once everything that changes the next token is applied: the scores of its target.

Inside a forced prefix the target is its token, whatever else is set. After it the order is that of transformers'
``GenerationMixin._get_logits_processor``, but for the watermark:

1. logit bias (``SequenceBiasLogitsProcessor`` with single tokens),
2. repetition penalty, over prompt and output (``RepetitionPenaltyLogitsProcessor``),
3. presence, then frequency penalty, over the output only; transformers has neither, this is where vLLM has them,
4. masks: allowed tokens, bad words over the output, a grammar, and `end_tokens` before `min_tokens`. The last gives way
   where nothing else is left, as when a grammar has ended; where the others leave nothing, the row fails,
5. watermark: delta is added to the green tokens. transformers adds it after min-p, text-generation-inference before
   temperature; here it is before temperature, so that top-k, top-p and min-p see what is sampled from,
6. temperature (``TemperatureLogitsWarper``),
7. top-k (``TopKLogitsWarper``): everything below the k-th largest logit goes, what equals it stays,
8. top-p (``TopPLogitsWarper``): a token stays while the tokens before it, most likely first, hold less than top-p of
   the mass that top-k left; the first always stays,
9. min-p (``MinPLogitsWarper``): less likely than min-p times the most likely goes.

In all of them the drafts before a row count as output.

Among equal logits top-p takes the lower token id first. transformers leaves that to an unstable sort: there the
number of equal tokens that stay is the same and which of them is undefined.

Arithmetic is float32, as in transformers, but for top-p's mass. That is summed in whole multiples of a power of two
(see `mass_unit`), where addition is exact: no order of summation, thread count or vector width can move the edge.

Steps 1 to 5 are numpy's on the tensors' own memory, steps 6 to 9 here and in C (`native_sampler`), which keeps the same
tokens.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.philox import UNIFORM_BITS, Stream, uniform_bits
from kernels.sampling import Block, Failure, Sampling, Watermark

Row = NDArray[np.float32]
TokenIds = NDArray[np.int64]

_HEAVY_SHARE = 1e-3
"""Of a row's mass: fewer than 1,000 tokens can hold more than this."""

_BUCKETS, _BUCKETS_PER_UNIT = 4096, 64

_NEAR_DEPTHS = (4.0, 8.0, 16.0)
"""How far below the largest score top-k looks, in turn, before it partitions the whole row."""


@dataclass(frozen=True, slots=True)
class TargetScores:
    """log target_probs of one row, up to a constant that makes the largest 0."""

    token_ids: TokenIds | None
    """The tokens that the masks left, rising; None for the whole vocabulary."""
    scores: Row
    """One for each of them."""


class TokenPenalties:
    """The penalties of one sequence, for every row of its block. Built once a block."""

    def __init__(
        self, sampling: Sampling, prompt_tokens: Set[int], output_counts: Mapping[int, int], vocabulary: int
    ) -> None:
        self._sampling = sampling
        self._output_counts = output_counts
        prompt_only = frozenset(prompt_tokens).difference(output_counts) if sampling.repetition_penalty != 1.0 else ()
        total = len(output_counts) + len(prompt_only)
        self._token_ids = np.fromiter((*output_counts, *prompt_only), dtype=np.int64, count=total)
        self._counts = np.zeros(total, dtype=np.float32)
        self._counts[: len(output_counts)] = np.fromiter(output_counts.values(), np.float32, len(output_counts))
        _refuse_unknown_tokens("the tokens so far name", self._token_ids, vocabulary)

    def apply(self, logits: Row, drafts: Sequence[int]) -> None:
        """Change `logits` [V] in place, with `drafts`, the block's tokens before this row, counted as output."""
        draft_counts: dict[int, int] = {}
        for token in drafts:
            draft_counts[token] = draft_counts.get(token, self._output_counts.get(token, 0)) + 1
        draft_ids = np.fromiter(draft_counts, np.int64, len(draft_counts))
        of_drafts = self._penalise(logits[draft_ids], np.fromiter(draft_counts.values(), np.float32, draft_ids.size))
        logits[self._token_ids] = self._penalise(logits[self._token_ids], self._counts)
        logits[draft_ids] = of_drafts

    def _penalise(self, logits: Row, counts: Row) -> Row:
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0:
            penalty = np.float32(sampling.repetition_penalty)
            logits = np.where(logits < 0, logits * penalty, logits / penalty)
        if sampling.presence_penalty != 0.0:
            logits = logits - np.float32(sampling.presence_penalty) * (counts > 0).astype(np.float32)
        if sampling.frequency_penalty != 0.0:
            logits = logits - np.float32(sampling.frequency_penalty) * counts
        return logits


class RowError(ValueError):
    """A row that no token can be chosen from."""

    def __init__(self, message: str, *, fault: bool) -> None:
        super().__init__(message)
        self.failure = Failure(message, fault)


class RowProcessors:
    """The forced prefix and steps 1 to 5 for the rows of one block. Built once a block."""

    def __init__(self, block: Block, vocabulary: int) -> None:
        sampling = block.sampling
        self._block = block
        self._penalties: TokenPenalties | None = None
        if sampling.penalised:
            self._penalties = TokenPenalties(sampling, block.prompt_tokens, block.output_counts or {}, vocabulary)
        self._output_tail = block.tail[max(0, len(block.tail) - block.position) :]
        self._always_bad = [word[0] for word in sampling.bad_words if len(word) == 1]
        self._bad_words = [word for word in sampling.bad_words if len(word) > 1]

    def changes(self, index: int) -> bool:
        """Whether `apply` can give row `index` of the block anything but what it is given."""
        sampling, block = self._block.sampling, self._block
        return bool(
            sampling.logit_bias
            or self._penalties is not None
            or sampling.bad_words
            or sampling.allowed_tokens
            or sampling.watermark is not None
            or (block.masks is not None and block.masks[index] is not None)
            or block.position + index < max(len(sampling.forced_prefix), sampling.min_tokens)
        )

    def apply(self, row: Row, index: int) -> Row:
        """Row `index` of the block [V] after step 5; `row` is not changed, and returned where nothing changes it.

        Raises:
            RowError: the masks leave no token.
            ValueError: a token that does not exist is named.
        """
        if not self.changes(index):
            return row
        block, sampling = self._block, self._block.sampling
        position = block.position + index
        if position < len(sampling.forced_prefix):
            return _one_hot(sampling.forced_prefix[position], row.size)
        drafts = block.drafts[:index]
        row = row.copy()
        if sampling.logit_bias:
            token_ids = _known("logit_bias names", [token for token, _ in sampling.logit_bias], row.size)
            np.add.at(row, token_ids, np.array([bias for _, bias in sampling.logit_bias], dtype=np.float32))
        if self._penalties is not None:
            self._penalties.apply(row, drafts)
        row = self._masked(row, index, drafts)
        if sampling.watermark is not None:
            before = (*block.tail, *drafts)
            row[green_tokens(sampling.watermark, before[-1] if before else 0, row.size)] += sampling.watermark.delta
        return row

    def _masked(self, row: Row, index: int, drafts: tuple[int, ...]) -> Row:
        block, sampling = self._block, self._block.sampling
        if sampling.allowed_tokens:
            allowed = _known("allowed_token_ids names", sampling.allowed_tokens, row.size)
            kept = np.full_like(row, -np.inf)
            kept[allowed] = row[allowed]
            row = kept
        bad = list(self._always_bad)
        if self._bad_words:
            output = (*self._output_tail, *drafts)
            bad += [word[-1] for word in self._bad_words if output[-len(word) + 1 :] == word[:-1]]
        if bad:
            row[_known("bad_words name", bad, row.size)] = -np.inf
        mask = block.masks[index] if block.masks is not None else None
        if mask is not None:
            row[unpacked(mask, row.size) == 0] = -np.inf
        if block.position + index < sampling.min_tokens and sampling.end_tokens:
            ends = _known("the end tokens name", sampling.end_tokens, row.size)
            of_ends = row[ends]
            row[ends] = -np.inf
            if row.max() == -np.inf:
                row[ends] = of_ends
        if (mask is not None or sampling.bad_words or sampling.allowed_tokens) and row.max() == -np.inf:
            raise RowError(
                f"Nothing may follow output token {block.position + index}: the grammar, allowed_token_ids and "
                "bad_words together leave no token; loosen one of them.",
                fault=False,
            )
        return row


def green_tokens(watermark: Watermark, before: int, vocabulary: int) -> NDArray[np.bool_]:
    """The green list [V] after the token `before`: each token is in it with probability gamma, independently.

    Kirchenbauer et al. 2023, "A watermark for large language models", algorithm 2, with a counter-based generator in
    place of a seeded permutation: whoever has the key can ask for one token at a time.
    """
    bits = uniform_bits(watermark.key, 0, before, np.arange(vocabulary), Stream.WATERMARK)
    green: NDArray[np.bool_] = bits < round(watermark.gamma * 2**UNIFORM_BITS)
    return green


def unpacked(mask: NDArray[np.int32], vocabulary: int) -> NDArray[np.uint8]:
    """A packed mask (`Block.masks`) as one byte for each token [V]: 1 where it may come."""
    return np.unpackbits(mask.astype("<i4", copy=False).view(np.uint8), count=vocabulary, bitorder="little")


def target_scores(logits: Row, sampling: Sampling) -> TargetScores:
    """Steps 6 to 9 on what `RowProcessors.apply` gave [V], with a temperature above 0. Raises `RowError`."""
    highest = logits.max()
    if not math.isfinite(highest):
        raise RowError(
            f"The target's logits have the maximum {highest}, which no sampling can use; check its weights.", fault=True
        )
    scores = (logits - highest) / np.float32(sampling.temperature)
    token_ids: TokenIds | None = None
    if 0 < sampling.top_k < scores.size:
        token_ids = np.flatnonzero(scores >= _kth_largest(scores, sampling.top_k))
        scores = scores[token_ids]
    if sampling.top_p < 1.0:
        kept = nucleus(scores, sampling.top_p, logits.size)
        token_ids = kept if token_ids is None else token_ids[kept]
        scores = scores[kept]
    if sampling.min_p > 0.0:
        kept = np.flatnonzero(scores >= np.float32(math.log(sampling.min_p)))
        token_ids = kept if token_ids is None else token_ids[kept]
        scores = scores[kept]
    return TargetScores(token_ids, scores)


def _kth_largest(scores: Row, k: int) -> np.float32:
    """The k-th largest of the scores [n], of which the largest is 0; k is at most n."""
    for depth in _NEAR_DEPTHS:
        near = scores[np.flatnonzero(scores >= -depth)]
        if near.size >= k:
            return np.float32(np.partition(near, -k)[-k])
    return np.float32(np.partition(scores, -k)[-k])


def mass_unit(vocabulary: int) -> float:
    """How many units of mass the most likely token counts: a power of two, `vocabulary` times which is exact."""
    return 2.0 ** (52 - (vocabulary - 1).bit_length())


def nucleus(scores: Row, top_p: float, vocabulary: int) -> TokenIds:
    """Indices, rising, of the scores [n] (their largest is 0) that top-p keeps.

    Only tokens around the edge are sorted: the heavy ones where they reach top-p by themselves, which they nearly
    always do, else one bucket of a histogram over the scores.
    """
    mass = np.rint(np.exp(scores.astype(np.float64)) * mass_unit(vocabulary))
    total = float(mass.sum())
    limit = max(top_p * total, 1.0)  # one unit, so that the first token always stays
    edge = np.flatnonzero(mass > _HEAVY_SHARE * total)
    mass_above = 0.0
    if mass[edge].sum() >= limit:
        kept = np.zeros(scores.size, dtype=np.bool_)
    else:
        buckets = np.minimum(scores * np.float32(-_BUCKETS_PER_UNIT), np.float32(_BUCKETS - 1)).astype(np.int64)
        mass_through = np.cumsum(np.bincount(buckets, weights=mass, minlength=_BUCKETS))
        crossing = int(np.searchsorted(mass_through, limit, side="left"))
        edge = np.flatnonzero(buckets == crossing)
        kept = buckets < crossing
        mass_above = float(mass_through[crossing - 1]) if crossing else 0.0
    # A stable sort of rising ids puts the lower of two equal tokens first.
    edge = edge[np.argsort(-scores[edge], kind="stable")]
    edge_mass = mass[edge]
    before = mass_above + np.cumsum(edge_mass) - edge_mass
    kept[edge[: int(np.searchsorted(before, limit, side="left"))]] = True
    return np.flatnonzero(kept)


def _one_hot(token: int, vocabulary: int) -> Row:
    row = np.full(vocabulary, -np.inf, dtype=np.float32)
    row[_known("forced_prefix names", [token], vocabulary)] = 0.0
    return row


def _known(subject: str, tokens: Sequence[int], vocabulary: int) -> TokenIds:
    token_ids = np.array(tokens, dtype=np.int64)
    _refuse_unknown_tokens(subject, token_ids, vocabulary)
    return token_ids


def _refuse_unknown_tokens(subject: str, token_ids: TokenIds, vocabulary: int) -> None:
    if token_ids.size and not (token_ids.min() >= 0 and token_ids.max() < vocabulary):
        worst = token_ids[(token_ids < 0) | (token_ids >= vocabulary)][0]
        raise ValueError(f"{subject} token {worst}, but the vocabulary has ids 0 to {vocabulary - 1}")

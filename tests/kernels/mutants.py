"""Broken verifiers, each with one mistake, made of the parts of the real ones. `None` makes none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from kernels.coupled_verify import coupled_verify
from kernels.philox import Stream
from kernels.processors import TargetScores
from kernels.residual import DraftPoint, TargetProbs, draft_point
from kernels.sampling import Block, Chosen
from kernels.target_rows import TargetRows
from tests.kernels.native import native_sampler

LATE_NOISE = "noise of t used at t+1"
ACCEPT_ALL = "everything accepted"
DRAFTERS_REPLACEMENT = "replacement taken from the drafter"
PENALTY_OFF_BY_ONE = "penalty off by one position"
NO_BONUS = "bonus skipped"
COUPLED_MISTAKES = (LATE_NOISE, ACCEPT_ALL, DRAFTERS_REPLACEMENT, PENALTY_OFF_BY_ONE, NO_BONUS)

TARGETS_REPLACEMENT = "recovered token from the target, not from what the drafter left of it"
SAMPLED_REPLACEMENT = "recovered token from the drafter's distribution"
ONE_UNIFORM = "one uniform for every draft"
TARGET_PROB_ALONE = "kept with the target's probability, not with its ratio to the drafter's"
REJECTION_MISTAKES = (
    ACCEPT_ALL,
    PENALTY_OFF_BY_ONE,
    NO_BONUS,
    TARGETS_REPLACEMENT,
    SAMPLED_REPLACEMENT,
    ONE_UNIFORM,
    TARGET_PROB_ALONE,
)

FIRST_FAILURE = "kept up to the first failure, not the longest prefix"
KEEP_IS_SHARE = "kept with share_i inside the block"
SHARE_UNBOUNDED = "shares not bounded by 1"
WHOLE_RESIDUAL = "residual of a share of 1"
BLOCK_MISTAKES = (FIRST_FAILURE, KEEP_IS_SHARE, SHARE_UNBOUNDED, WHOLE_RESIDUAL, PENALTY_OFF_BY_ONE, NO_BONUS)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A coupled verifier with the named mistake."""

    mistake: str | None

    def __call__(self, logits: torch.Tensor, blocks: Sequence[Block]) -> list[Chosen]:
        return [Chosen(self._emit(logits, block)) for block in blocks]

    def _emit(self, logits: torch.Tensor, block: Block) -> tuple[int, ...]:
        tokens: list[int] = []
        for index, draft in enumerate(block.drafts):
            token = self._choose(logits, block, index)
            if self.mistake == ACCEPT_ALL or token == draft:
                tokens.append(draft)
                continue
            return (*tokens, draft if self.mistake == DRAFTERS_REPLACEMENT else token)
        if self.mistake == NO_BONUS and block.drafts:
            return tuple(tokens)
        return (*tokens, self._choose(logits, block, len(block.drafts)))

    def _choose(self, logits: torch.Tensor, block: Block, index: int) -> int:
        position = block.position + index - (self.mistake == LATE_NOISE and index > 0)
        row = replace(single_row(block, index, self.mistake), position=position)
        return coupled_verify(logits, [row], native_sampler())[0].tokens[0]


@dataclass(frozen=True, slots=True)
class RejectionMutant:
    """Token-wise rejection with the named mistake."""

    mistake: str | None

    def __call__(self, logits: torch.Tensor, blocks: Sequence[Block]) -> list[Chosen]:
        return [Chosen(self._emit(logits, block)) for block in blocks]

    def _emit(self, logits: torch.Tensor, block: Block) -> tuple[int, ...]:
        uniforms = native_sampler().uniforms(block.sampling, block.position, max(len(block.drafts), 1))
        for index, token in enumerate(block.drafts):
            target, draft = target_probs(logits, block, index, self.mistake), point(block, index)
            ratio = target.of(token) / (1.0 if self.mistake == TARGET_PROB_ALONE else draft.prob)
            uniform = uniforms[0 if self.mistake == ONE_UNIFORM else index]
            if self.mistake == ACCEPT_ALL or uniform < ratio:
                continue
            left = target.residual(1.0, draft)
            if self.mistake == TARGETS_REPLACEMENT:
                left = target.target
            if self.mistake == SAMPLED_REPLACEMENT:
                left = TargetScores(draft.token_ids, np.log(draft.probs / draft.probs.max()).astype(np.float32))
            return (*block.drafts[:index], recovered(block, index, left))
        return with_bonus(logits, block, self.mistake)


@dataclass(frozen=True, slots=True)
class BlockMutant:
    """Block verification with the named mistake."""

    mistake: str | None

    def __call__(self, logits: torch.Tensor, blocks: Sequence[Block]) -> list[Chosen]:
        return [Chosen(self._emit(logits, block)) for block in blocks]

    def _emit(self, logits: torch.Tensor, block: Block) -> tuple[int, ...]:
        drafts, length = block.drafts, len(block.drafts)
        uniforms = native_sampler().uniforms(block.sampling, block.position, length)
        targets = [target_probs(logits, block, index, self.mistake) for index in range(length + 1)]
        shares = [1.0]
        for index, token in enumerate(drafts):
            share = shares[-1] * targets[index].of(token) / point(block, index).prob
            shares.append(share if self.mistake == SHARE_UNBOUNDED else min(share, 1.0))
        accepted = 0
        for count in range(1, length + 1):
            keep = shares[count]
            if count < length and self.mistake != KEEP_IS_SHARE:
                mass = targets[count].residual_mass(shares[count], point(block, count))
                keep = mass / (mass + max(1.0 - shares[count], 0.0)) if mass > 0.0 else float(shares[count] >= 1.0)
            if shares[count] > 0.0 and uniforms[count - 1] <= keep:
                accepted = count
            elif self.mistake == FIRST_FAILURE:
                break
        if accepted == length:
            return with_bonus(logits, block, self.mistake)
        share = 1.0 if self.mistake == WHOLE_RESIDUAL else shares[accepted]
        left = targets[accepted].residual(share, point(block, accepted))
        return (*drafts[:accepted], recovered(block, accepted, left))


def single_row(block: Block, index: int, mistake: str | None) -> Block:
    """Row `index` as a block of its own, the drafts before it in its history."""
    counted = block.drafts[: max(index - 1, 0) if mistake == PENALTY_OFF_BY_ONE else index]
    counts = dict(block.output_counts or {})
    for token in counted:
        counts[token] = counts.get(token, 0) + 1
    return replace(
        block,
        first_row=block.first_row + index,
        drafts=(),
        position=block.position + index,
        output_counts=counts,
        draft_probs=None,
    )


def target_probs(logits: torch.Tensor, block: Block, index: int, mistake: str | None) -> TargetProbs:
    row = TargetRows(logits.numpy(), single_row(block, index, mistake), native_sampler())
    return TargetProbs(row.scores(0), native_sampler())


def point(block: Block, index: int) -> DraftPoint:
    return draft_point(block.drafts, block.draft_probs, index)


def recovered(block: Block, index: int, left: TargetScores) -> int:
    position = block.position + index
    return native_sampler().race(left.scores, left.token_ids, block.sampling, position, Stream.RECOVERED)


def with_bonus(logits: torch.Tensor, block: Block, mistake: str | None) -> tuple[int, ...]:
    if mistake == NO_BONUS and block.drafts:
        return block.drafts
    last = len(block.drafts)
    return (*block.drafts, recovered(block, last, target_probs(logits, block, last, mistake).target))

"""Broken verifiers, each with one mistake, made of single rows of the real one. `None` makes none."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.coupled_verify import coupled_verify
from kernels.sampling import Block

LATE_NOISE = "noise of t used at t+1"
ACCEPT_ALL = "everything accepted"
DRAFTERS_REPLACEMENT = "replacement taken from the drafter"
PENALTY_OFF_BY_ONE = "penalty off by one position"
NO_BONUS = "bonus skipped"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A verifier with the named mistake."""

    mistake: str | None

    def __call__(self, logits: torch.Tensor, blocks: Sequence[Block]) -> list[list[int]]:
        return [self._emit(logits, block) for block in blocks]

    def _emit(self, logits: torch.Tensor, block: Block) -> list[int]:
        tokens: list[int] = []
        for index, draft in enumerate(block.drafts):
            token = self._choose(logits, block, index)
            if self.mistake == ACCEPT_ALL or token == draft:
                tokens.append(draft)
                continue
            return [*tokens, draft if self.mistake == DRAFTERS_REPLACEMENT else token]
        if self.mistake == NO_BONUS and block.drafts:
            return tokens
        return [*tokens, self._choose(logits, block, len(block.drafts))]

    def _choose(self, logits: torch.Tensor, block: Block, index: int) -> int:
        counted = index - 1 if self.mistake == PENALTY_OFF_BY_ONE else index
        position = block.position + index - (self.mistake == LATE_NOISE and index > 0)
        history = Counter(block.output_counts or {}) + Counter(block.drafts[: max(counted, 0)])
        row = replace(block, first_row=block.first_row + index, drafts=(), position=position, output_counts=history)
        return coupled_verify(logits, [row])[0][0]

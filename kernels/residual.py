"""Target and draft distributions of one position, as rejection and block verification compare them.

``target_probs`` are exp(scores) over their sum, in float64; ``draft_probs`` are the drafter's own, or all on one token.
Tokens that neither the drafter nor a mask names are never enumerated one by one.
"""

import math

import numpy as np
from numpy.typing import NDArray

from kernels.processors import TargetScores, TokenIds
from kernels.sampler import Sampler
from kernels.sampling import DraftProbs


class TargetProbs:
    """target_probs of one row."""

    def __init__(self, target: TargetScores, sampler: Sampler) -> None:
        self.target = target
        self._total = sampler.mass(target.scores)

    def of(self, token: int) -> float:
        """The probability of `token`; 0 where a mask removed it or the vocabulary does not have it."""
        return float(self.of_all(np.array([token]))[0])

    def of_all(self, token_ids: TokenIds) -> NDArray[np.float64]:
        """The probabilities of `token_ids` [n], one for each."""
        indices, known = self._find(token_ids)
        probs: NDArray[np.float64] = np.zeros(token_ids.size)
        probs[known] = np.exp(self.target.scores[indices[known]].astype(np.float64)) / self._total
        return probs

    def residual_mass(self, share: float, draft: "DraftPoint") -> float:
        """The sum over the vocabulary of max(`share` * target_probs - draft_probs, 0)."""
        target_probs = self.of_all(draft.token_ids)
        untouched = max(1.0 - float(target_probs.sum()), 0.0)
        return share * untouched + float(np.maximum(share * target_probs - draft.probs, 0.0).sum())

    def residual(self, share: float, draft: "DraftPoint") -> TargetScores:
        """log max(`share` * target_probs - draft_probs, 0) up to a constant: what is sampled after a rejection.

        The target itself where nothing is left of it, which only rounding can bring about: the two distributions are
        then equal to the last bits and a rejection has no probability.
        """
        target_probs = self.of_all(draft.token_ids)
        # One division rather than two: share * target - draft is (target - draft / share) * share.
        left = target_probs - draft.probs / share
        indices, known = self._find(draft.token_ids)
        scores = self.target.scores.copy()
        with np.errstate(divide="ignore"):
            scores[indices[known]] = np.log(np.maximum(left[known], 0.0) * self._total)
        highest = scores.max()
        if highest == -math.inf:
            return self.target
        return TargetScores(self.target.token_ids, scores if highest == 0.0 else scores - highest)

    def _find(self, token_ids: TokenIds) -> tuple[TokenIds, NDArray[np.bool_]]:
        """For each of `token_ids` its index in the scores, and whether there is one."""
        kept = self.target.token_ids
        if kept is None:
            return token_ids, (token_ids >= 0) & (token_ids < self.target.scores.size)
        indices = np.minimum(np.searchsorted(kept, token_ids), kept.size - 1)
        return indices, kept[indices] == token_ids


class DraftPoint:
    """draft_probs of one position, and the draft that was sampled from them."""

    def __init__(self, draft: int, draft_probs: DraftProbs | None) -> None:
        if draft_probs is None:
            self.token_ids: TokenIds = np.array([draft])
            self.probs: NDArray[np.float64] = np.ones(1)
            self.prob = 1.0
            return
        self.token_ids = draft_probs.token_ids
        self.probs = draft_probs.probs.astype(np.float64)
        index = int(np.searchsorted(self.token_ids, draft))
        self.prob = float(self.probs[index]) if index < self.probs.size and self.token_ids[index] == draft else 0.0
        if not self.prob > 0.0:
            raise ValueError(f"a draft has probability {self.prob} in its own draft_probs; a drafter must sample them")


def draft_point(drafts: tuple[int, ...], draft_probs: tuple[DraftProbs | None, ...] | None, index: int) -> DraftPoint:
    """The draft `index` of a block with its distribution."""
    return DraftPoint(drafts[index], draft_probs[index] if draft_probs is not None else None)

"""What verification does over a whole vocabulary for each row, and numpy's way to do it."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernels import gumbel_race, processors
from kernels.philox import Stream, acceptance_uniforms
from kernels.processors import Row, TargetScores, TokenIds
from kernels.sampling import Sampling


class Sampler(Protocol):
    """Implementations choose the same tokens."""

    def scores(self, logits: Row, sampling: Sampling) -> TargetScores:
        """See `processors.target_scores`."""
        ...

    def race(
        self,
        scores: NDArray[np.float32],
        token_ids: TokenIds | None,
        sampling: Sampling,
        position: int,
        stream: int = Stream.COUPLED,
    ) -> int:
        """See `gumbel_race.race`."""
        ...

    def token(self, logits: Row, sampling: Sampling, position: int) -> int:
        """`scores` and their `race` in one, with the coupled noise of `position`. Raises `RowError`."""
        ...

    def mass(self, scores: NDArray[np.float32]) -> float:
        """The sum of exp(scores) in float64; implementations agree within 1e-12 of it."""
        ...

    def uniforms(self, sampling: Sampling, position: int, count: int) -> NDArray[np.float64]:
        """See `philox.acceptance_uniforms`."""
        ...


class NumpySampler:
    """Runs everywhere, and is what the native one is held to."""

    def scores(self, logits: Row, sampling: Sampling) -> TargetScores:
        return processors.target_scores(logits, sampling)

    def race(
        self,
        scores: NDArray[np.float32],
        token_ids: TokenIds | None,
        sampling: Sampling,
        position: int,
        stream: int = Stream.COUPLED,
    ) -> int:
        return gumbel_race.race(scores, token_ids, sampling, position, stream)

    def token(self, logits: Row, sampling: Sampling, position: int) -> int:
        target = self.scores(logits, sampling)
        return self.race(target.scores, target.token_ids, sampling, position)

    def mass(self, scores: NDArray[np.float32]) -> float:
        return float(np.exp(scores.astype(np.float64)).sum())

    def uniforms(self, sampling: Sampling, position: int, count: int) -> NDArray[np.float64]:
        return acceptance_uniforms(sampling.seed, sampling.choice, position, count)


NUMPY = NumpySampler()

"""The two operations over a whole vocabulary that every sampled token needs, and numpy's way to do them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernels import gumbel_race, processors
from kernels.philox import Stream
from kernels.processors import Row, TargetScores, TokenIds
from kernels.sampling import Sampling


class Sampler(Protocol):
    """Implementations agree bit for bit."""

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


class NumpySampler:
    """Everywhere, and what the native one is held to."""

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


NUMPY = NumpySampler()

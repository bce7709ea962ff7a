"""A target and a drafter whose distributions never change: what any output's probability is can be read off.

Two tokens and a drafter that is wrong about both show a mistake in a verifier sooner than a real distribution does.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from kernels.philox import draft_stream
from kernels.sampling import Block, DraftProbs, Sampling
from tests.kernels.markov import Prefix, chi_square_p_value, noise_at
from tests.kernels.verify_cases import Verify

NoiseOf = Callable[[int, int], tuple[int, int]]
"""Position of the block and index of the draft to position and stream of the draft's noise."""


def own_noise(position: int, index: int) -> tuple[int, int]:
    """As rejection and block verification want it."""
    return position, draft_stream(index)


@dataclass(frozen=True, slots=True)
class ContextFree:
    """`target_probs` and `draft_probs` of every position."""

    target_probs: tuple[float, ...]
    draft_probs: tuple[float, ...]

    def block(self, sampling: Sampling, position: int, block_length: int, noise_of: NoiseOf = own_noise) -> Block:
        """The drafter's block at `position`, from row 0."""
        probs = np.array(self.draft_probs, dtype=np.float32)
        scores = np.log(probs)
        drafts = []
        for index in range(block_length):
            noise = noise_at(sampling.seed, sampling.choice, *noise_of(position, index))
            drafts.append(int((scores + noise[: probs.size]).argmax()))
        named = DraftProbs(np.arange(probs.size), probs)
        return Block(0, tuple(drafts), sampling, position, draft_probs=(named,) * block_length)

    def rows(self, block_length: int) -> torch.Tensor:
        return torch.tensor(self.target_probs).log().repeat(block_length + 1, 1)

    def text(
        self, verify: Verify, sampling: Sampling, block_length: int, length: int, noise_of: NoiseOf = own_noise
    ) -> Prefix:
        """`length` tokens."""
        output: Prefix = ()
        rows = self.rows(block_length)
        while len(output) < length:
            block = self.block(sampling, len(output), block_length, noise_of)
            output += verify(rows, [block])[0].tokens
        return output[:length]

    def p_value(
        self,
        verify: Verify,
        sampling: Callable[[int], Sampling],
        block_length: int,
        length: int,
        noise_of: NoiseOf = own_noise,
        sequences: int = 2000,
    ) -> float:
        """Of the texts of `sequences` seeds against the exact distribution."""
        texts = (self.text(verify, sampling(seed), block_length, length, noise_of) for seed in range(sequences))
        return chi_square_p_value(Counter(texts), self.distribution(length))

    def distribution(self, length: int) -> Mapping[Prefix, float]:
        """The probability of each text of `length` tokens."""
        tokens = range(len(self.target_probs))
        return {
            text: math.prod(self.target_probs[token] for token in text)
            for text in itertools.product(tokens, repeat=length)
        }

    def kept_token_wise(self, block_length: int) -> float:
        """Expected accepted drafts of token-wise rejection: the sum over i of (1 - TV)^i."""
        overlap = sum(map(min, self.target_probs, self.draft_probs))
        return sum(overlap**count for count in range(1, block_length + 1))

    def kept_by_blocks(self, block_length: int) -> float:
        """Expected accepted drafts of block verification: the sum over i of E[share_i], over every block of drafts."""
        total = 0.0
        for drafts in itertools.product(range(len(self.draft_probs)), repeat=block_length):
            share, shares = 1.0, 0.0
            for token in drafts:
                share = min(share * self.target_probs[token] / self.draft_probs[token], 1.0)
                shares += share
            total += shares * math.prod(self.draft_probs[token] for token in drafts)
        return total

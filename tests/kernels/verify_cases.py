"""Random passes for a verifier: logits with their blocks, drafts that are often what the target itself chooses."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from kernels import reference
from kernels.sampling import Block, Sampling

Verify = Callable[[torch.Tensor, Sequence[Block]], list[list[int]]]


@dataclass(frozen=True, slots=True)
class VerifyCase:
    logits: torch.Tensor
    blocks: tuple[Block, ...]


def random_logits(source: random.Random, rows: int, vocabulary: int) -> torch.Tensor:
    """[rows, vocabulary]: peaked, flat, all equal or full of ties, bfloat16 or float32."""
    generator = torch.Generator().manual_seed(source.getrandbits(60))
    logits = torch.randn(rows, vocabulary, generator=generator) * source.choice([0.0, 0.3, 1.0, 3.0, 8.0])
    logits = logits + source.choice([0.0, -30.0, 12.0])
    if source.random() < 0.3:
        logits = logits.round()
    return logits.bfloat16() if source.random() < 0.5 else logits


def random_sampling(source: random.Random, vocabulary: int) -> Sampling:
    biased = source.sample(range(vocabulary), min(vocabulary, source.choice([0, 0, 0, 3])))
    return Sampling(
        temperature=source.choice([0.0, 0.05, 0.5, 0.8, 1.0, 2.0]),
        top_k=source.choice([0, 0, 0, 1, 5, 50, vocabulary]),
        top_p=source.choice([1.0, 1.0, 0.95, 0.5, 0.1, 0.0]),
        min_p=source.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        repetition_penalty=source.choice([1.0, 1.0, 1.1, 0.7, 2.0]),
        presence_penalty=source.choice([0.0, 0.0, 0.5, -1.0]),
        frequency_penalty=source.choice([0.0, 0.0, 0.3, -0.4]),
        logit_bias=tuple((token, source.uniform(-5, 5)) for token in biased),
        seed=source.getrandbits(64),
        choice=source.randrange(3),
    )


def random_case(seed: int, vocabulary: int) -> VerifyCase:
    """One to four blocks of zero to five drafts."""
    source = random.Random(seed)
    lengths = [source.randrange(6) for _ in range(source.randint(1, 4))]
    logits = random_logits(source, sum(lengths) + len(lengths), vocabulary)
    blocks, first_row = [], 0
    for length in lengths:
        prompt = frozenset(source.choices(range(vocabulary), k=12))
        output_counts = {token: source.randint(1, 4) for token in source.choices(range(vocabulary), k=6)}
        block = Block(
            first_row,
            (),
            random_sampling(source, vocabulary),
            source.randrange(2000),
            prompt,
            output_counts,
        )
        for _ in range(length):
            chosen = reference.coupled_verify(logits, [block])[0][-1]
            draft = chosen if source.random() < 0.75 else source.randrange(vocabulary)
            block = replace(block, drafts=(*block.drafts, draft))
        blocks.append(block)
        first_row += length + 1
    return VerifyCase(logits, tuple(blocks))

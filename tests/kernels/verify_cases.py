"""Random passes for a verifier: logits with their blocks, drafts that are often what the target itself chooses."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from kernels.coupled_verify import coupled_verify
from kernels.sampling import Block, Chosen, DraftProbs, Sampling, Verifier, Watermark

Verify = Callable[[torch.Tensor, Sequence[Block]], list[Chosen]]


@dataclass(frozen=True, slots=True)
class VerifyCase:
    logits: torch.Tensor
    blocks: tuple[Block, ...]


def texts(chosen: Sequence[Chosen]) -> list[tuple[int, ...]]:
    """The tokens alone."""
    return [one.tokens for one in chosen]


def random_logits(source: random.Random, rows: int, vocabulary: int) -> torch.Tensor:
    """[rows, vocabulary]: peaked, flat, all equal or full of ties; some as coarse as bfloat16."""
    generator = torch.Generator().manual_seed(source.getrandbits(60))
    logits = torch.randn(rows, vocabulary, generator=generator) * source.choice([0.0, 0.3, 1.0, 3.0, 8.0])
    logits = logits + source.choice([0.0, -30.0, 12.0])
    if source.random() < 0.3:
        logits = logits.round()
    return logits.bfloat16().float() if source.random() < 0.5 else logits


def random_sampling(source: random.Random, vocabulary: int, verifier: Verifier) -> Sampling:
    def some(count: int) -> list[int]:
        return source.sample(range(vocabulary), min(vocabulary, count))

    return Sampling(
        temperature=source.choice([0.0, 0.05, 0.5, 0.8, 1.0, 2.0]),
        top_k=source.choice([0, 0, 0, 1, 5, 50, vocabulary]),
        top_p=source.choice([1.0, 1.0, 0.95, 0.5, 0.1, 0.0]),
        min_p=source.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        repetition_penalty=source.choice([1.0, 1.0, 1.1, 0.7, 2.0]),
        presence_penalty=source.choice([0.0, 0.0, 0.5, -1.0]),
        frequency_penalty=source.choice([0.0, 0.0, 0.3, -0.4]),
        logit_bias=tuple((token, source.uniform(-5, 5)) for token in some(source.choice([0, 0, 0, 3]))),
        seed=source.getrandbits(64),
        choice=source.randrange(3),
        verifier=verifier,
        min_tokens=source.choice([0, 0, 3]),
        end_tokens=tuple(some(2)),
        bad_words=tuple(tuple(some(length)) for length in source.choice([(), (), (1, 2, 2, 3)])),
        allowed_tokens=tuple(some(vocabulary - vocabulary // 4)) if source.random() < 0.2 else (),
        forced_prefix=tuple(some(2)) if source.random() < 0.2 else (),
        watermark=Watermark(key=source.getrandbits(64)) if source.random() < 0.2 else None,
    )


def random_draft_probs(source: random.Random, draft: int, row: torch.Tensor) -> DraftProbs | None:
    """None, or the softmax of a distorted row over a part of the vocabulary that holds the draft."""
    if source.random() < 0.3:
        return None
    count = source.randint(1, row.numel())
    token_ids = np.array(sorted({draft, *source.sample(range(row.numel()), count)}))
    scores = row[torch.from_numpy(token_ids)] * source.choice([0.0, 0.5, 1.0, 1.5])
    weights = scores.softmax(0).clamp(min=1e-3)
    return DraftProbs(token_ids, (weights / weights.sum()).numpy())


def random_mask(source: random.Random, vocabulary: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """A grammar's mask that permits about three tokens of four, and the first one always."""
    bits = np.array([token == 0 or source.random() < 0.75 for token in range(-(-vocabulary // 32) * 32)])
    return np.packbits(bits, bitorder="little").view(np.int32)


def random_case(seed: int, vocabulary: int, verifier: Verifier = Verifier.COUPLED) -> VerifyCase:
    """One to four blocks of zero to five drafts."""
    source = random.Random(seed)
    lengths = [source.randrange(6) for _ in range(source.randint(1, 4))]
    logits = random_logits(source, sum(lengths) + len(lengths), vocabulary)
    blocks, first_row = [], 0
    for length in lengths:
        sampling = random_sampling(source, vocabulary, verifier)
        if sampling.allowed_tokens:
            sampling = replace(sampling, allowed_tokens=(0, *sampling.allowed_tokens))
        masks = None
        if source.random() < 0.2:
            masks = tuple(random_mask(source, vocabulary) if source.random() < 0.8 else None for _ in range(length + 1))
        block = Block(
            first_row,
            (),
            sampling,
            source.choice([0, 1, 2, 5, source.randrange(2000)]),
            frozenset(source.choices(range(vocabulary), k=12)),
            {token: source.randint(1, 4) for token in source.choices(range(vocabulary), k=6)},
            tail=tuple(source.choices(range(vocabulary), k=sampling.tail_length + source.randrange(3))),
            masks=masks,
        )
        draft_probs: list[DraftProbs | None] = []
        for index in range(length):
            chosen = coupled_verify(logits, [block])[0].tokens
            likely = len(chosen) == index + 1 and source.random() < 0.75
            draft = chosen[-1] if likely else source.randrange(vocabulary)
            block = replace(block, drafts=(*block.drafts, draft))
            draft_probs.append(random_draft_probs(source, draft, logits[first_row + index]))
        if verifier is not Verifier.COUPLED:
            block = replace(block, draft_probs=tuple(draft_probs))
        blocks.append(block)
        first_row += length + 1
    return VerifyCase(logits, tuple(blocks))

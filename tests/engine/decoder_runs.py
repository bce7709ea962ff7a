"""Ways to put the same tokens through a decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.decoder import Decoder, Pass


def chunked(decoder: Decoder, token_ids: Sequence[int], slot: int, lengths: Sequence[int]) -> Tensor:
    """Logits of every token, put through `slot` in passes of the given lengths, the last one repeated."""
    logits, start, pending = [], 0, list(lengths)
    while start < len(token_ids):
        length = min(pending.pop(0) if len(pending) > 1 else pending[0], len(token_ids) - start)
        logits.append(decoder.forward(rows(token_ids, slot, start, length)))
        start += length
    return torch.cat(logits)


def rows(token_ids: Sequence[int], slot: int, start: int, length: int, *, logits: bool = True) -> Pass:
    """`length` tokens from `start` on, in one slot."""
    return together([(token_ids, slot, start, length)], logits=logits)


def together(parts: Sequence[tuple[Sequence[int], int, int, int]], *, logits: bool = True) -> Pass:
    """One pass over several (tokens, slot, start, length)."""
    return Pass(
        [token for token_ids, _, start, length in parts for token in token_ids[start : start + length]],
        [slot for _, slot, _, length in parts for _ in range(length)],
        [start + offset for _, _, start, length in parts for offset in range(length)],
        None if logits else [],
    )


def random_tokens(vocabulary: int, length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, vocabulary, (length,), generator=generator).tolist()
    return tokens

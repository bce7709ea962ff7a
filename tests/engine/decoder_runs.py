"""Ways to put the same tokens through a decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.rows import Rows


def chunked(
    decoder: Decoder, token_ids: Sequence[int], lengths: Sequence[int], blocks: Sequence[int] | None = None
) -> Tensor:
    """Logits of every token, put through in passes of the given lengths, the last one repeated.

    `blocks` is the sequence's block table; all blocks of the decoder, in their order, unless given.
    """
    table = range(decoder.blocks) if blocks is None else blocks
    logits, start, pending = [], 0, list(lengths)
    while start < len(token_ids):
        length = min(pending.pop(0) if len(pending) > 1 else pending[0], len(token_ids) - start)
        logits.append(decoder.forward([Rows(token_ids[start : start + length], start, table, length)]).clone())
        start += length
    return torch.cat(logits)


def random_tokens(vocabulary: int, length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, vocabulary, (length,), generator=generator).tolist()
    return tokens

"""One sequence's part of a pass through a model. Imports no tensor library."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens at rising positions: each is written into the cache at its place and sees every place up to its own."""

    token_ids: Sequence[int]
    start: int
    """Position of the first token."""
    blocks: Sequence[int]
    """The sequence's block table: its k-th entry holds the positions from k * BLOCK_TOKENS on."""
    logit_count: int
    """Logits are wanted of so many of the last rows."""

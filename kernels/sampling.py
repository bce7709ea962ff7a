"""What changes which token may come next. Plain values: importing this module imports no tensor library."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """A sequence's sampling settings. The order of application is documented in coupled_verify.py."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps every token."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output, as in transformers: positive logits divided by it, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Over the output only: subtracted once from the logit of a token that has occurred."""
    frequency_penalty: float = 0.0
    """Over the output only: subtracted once for each occurrence."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added to its logit)."""
    seed: int = 0
    """64 bits; the server draws them where the client gave none."""
    choice: int = 0
    """Index of this sequence among the `n` choices of its request; part of the noise's key."""

    @property
    def penalised(self) -> bool:
        """True when the tokens so far change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True)
class Block:
    """One sequence's rows in a target pass: the row that follows its last token, then one row for each draft."""

    first_row: int
    """Row r of the logits scores the token at output position `position + r - first_row`."""
    drafts: tuple[int, ...]
    """Verified drafts; the block has ``len(drafts) + 1`` rows."""
    sampling: Sampling
    position: int
    """Index of the block's first token in the sequence's output, from 0."""
    prompt_tokens: frozenset[int] = frozenset()
    """Tokens of the prompt; needed for the repetition penalty only."""
    output_counts: Mapping[int, int] | None = None
    """Occurrences of each output token before the block; needed for penalties only."""

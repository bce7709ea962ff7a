"""What changes which token may come next. Plain values: importing this module imports no tensor library."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


GREEDY_TEMPERATURE = 1e-5
"""A temperature below this is greedy, as in vLLM: differences of logits would overflow."""


class Verifier(StrEnum):
    """How drafts are verified. All three keep the target's distribution."""

    COUPLED = "coupled"
    """The text is a function of the target and the seed alone."""
    REJECTION = "rejection"
    """Leviathan 2023, Chen 2023. With the same seed the text also depends on the drafter and the block length."""
    BLOCK = "block"
    """Sun 2024. As rejection, and it accepts at least as much."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A green list for every token, seeded by the token before it (Kirchenbauer et al. 2023, with context width 1)."""

    gamma: float = 0.25
    """Share of the vocabulary that is green; above 0 and below 1."""
    delta: float = 2.0
    """Added to the scores of green tokens."""
    key: int = 15_485_863
    """Whoever looks for the watermark needs it; 64 bits."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """A sequence's sampling settings. The order of application is documented in processors.py."""

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
    verifier: Verifier = Verifier.COUPLED
    min_tokens: int = 0
    """Before this many output tokens, `end_tokens` are masked."""
    end_tokens: tuple[int, ...] = ()
    """Tokens that end the sequence: masked by `min_tokens`, and what a grammar that has ended leaves."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not occur in the output: the last token of one is masked after the others."""
    allowed_tokens: tuple[int, ...] = ()
    """When not empty, every other token is masked."""
    forced_prefix: tuple[int, ...] = ()
    """The output starts with these tokens, whatever else is set; sampling goes on after them."""
    watermark: Watermark | None = None

    @property
    def greedy(self) -> bool:
        """True when the most likely token is taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def penalised(self) -> bool:
        """True when the tokens so far change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def tail_length(self) -> int:
        """How many tokens before a block its rows have to know (`Block.tail`)."""
        longest = max((len(word) for word in self.bad_words), default=1) - 1
        return max(longest, 1 if self.watermark is not None else 0)


@dataclass(frozen=True, slots=True, eq=False)
class DraftProbs:
    """The distribution that a drafter sampled one token from; every token that it does not name has probability 0."""

    token_ids: "NDArray[np.int64]"
    """Rising."""
    probs: "NDArray[np.float32]"
    """One for each of them, summing to 1."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probabilities under the raw target: the log-softmax of its logits, before every processor."""

    logprob: float
    """Of the emitted token."""
    top: tuple[tuple[int, float], ...]
    """(token id, its log-probability), the most likely first, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row has no token; it ends its own sequence and no other."""

    message: str
    """One sentence for people."""
    fault: bool
    """True: the target's own, such as NaN; False: what the request asks for leaves no token."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What one block emits: the drafts that were kept, then the recovered or the bonus token.

    A row without a token ends the block before it, so that the sequence meets it again as the first row of its next
    block, with nothing drafted; there `tokens` is empty and `failure` says why.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each token where the block asked for them, else empty."""
    failure: Failure | None = None


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
    tail: tuple[int, ...] = ()
    """The last tokens of prompt and output before the block, at least `Sampling.tail_length` where there are."""
    masks: "tuple[NDArray[np.int32] | None, ...] | None" = None
    """A grammar's mask for each row, int32 [ceil(V / 32)]: bit ``t % 32`` of word ``t // 32`` is set where token `t`
    may come. None for a row, or at all, permits everything."""
    draft_probs: tuple[DraftProbs | None, ...] | None = None
    """For each draft, what it was sampled from; None stands for a one-hot. Coupled verification does not need it."""
    top_logprobs: int | None = None
    """None: no log-probabilities. 0: the emitted token's own only."""

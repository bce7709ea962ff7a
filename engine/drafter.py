"""The protocol of drafters: propose for a batch, and be told what was kept and when sequences come and go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import RunningSequence
from kernels.sampling import DraftProbs


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a drafter offers for one sequence."""

    tokens: tuple[int, ...]
    confidence: int
    """The bucket of `policies.types` confidence: 0 when `tokens` is empty, else from 1 upwards."""
    draft_probs: tuple[DraftProbs | None, ...] | None = None
    """What each token was drawn from, under rejection and block verification; None, or a None entry, where the token
    was chosen without chance (one-hot), and under coupled verification, which does not read it."""


SILENT = Proposal((), 0)


class Drafter(Protocol):
    """One drafter serves every sequence whose decision names it.

    Under rejection and block verification (`Sampling.verifier`) it draws from its own draft_probs with noise of
    another Philox domain than the target's, and never drops a drafted token after looking at its value.
    """

    name: str
    memory_bytes: int
    """The most that it will hold: weights, KV pool, indexes. Known when it is built."""
    context_limit: int | None
    """Longest context that it reads; it proposes less near it and nothing beyond. None: no limit of its own."""

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        """At most ``lengths[i] >= 1`` tokens that may follow ``sequences[i].tokens``; fewer or none are fine."""
        ...

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        """Tokens were appended to `sequence`, whoever drafted them; `sequence.tokens` ends with them."""
        ...

    def release(self, request_key: int) -> None:
        """Forget what is kept for a sequence that ended or lost its KV blocks; an unknown key is ignored."""
        ...

"""The protocol of drafters: propose for a batch, and be told what was kept and when sequences come and go."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.faults import log_fault
from engine.request import RunningSequence
from kernels.sampling import DraftProbs, Verifier


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a drafter offers for one sequence."""

    tokens: tuple[int, ...]
    confidence: int
    """The bucket of `policies.types` confidence: 0 when `tokens` is empty, else from 1 upwards."""
    draft_probs: tuple[DraftProbs | None, ...] | None = None
    """What each token was drawn from, under rejection and block verification; None, or a None entry, where the token
    was chosen without chance (one-hot), and under coupled verification, which does not read it."""
    ready: bool = True
    """False: nothing is offered because the drafter could not look at the text, such as before it has caught up with a
    long prompt. That says nothing of how good it is."""
    read: int = field(default=0, compare=False)
    """Tokens of text that it had to read for this."""


SILENT = Proposal((), 0)
NOT_READY = Proposal((), 0, ready=False)


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


def proposals_of(drafter: Drafter, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
    """What a drafter offers for each sequence, and its grammar leaves of that. One that fails has nothing to offer."""
    try:
        proposals = drafter.propose(sequences, lengths)
    except Exception as error:  # noqa: BLE001 - logged; the text needs no drafts
        log_fault(f"drafting with {drafter.name} for {len(sequences)} sequences", error)
        return [NOT_READY] * len(sequences)
    return [_permitted(sequence, proposal) for sequence, proposal in zip(sequences, proposals, strict=True)]


def _permitted(sequence: RunningSequence, proposal: Proposal) -> Proposal:
    """What the sequence's grammar leaves of a proposal.

    The rest counts as not proposed: no cap of ours has cut it. Under rejection and block verification a draft stays
    whatever its value, and its row rejects it.
    """
    if sequence.matcher is None or not proposal.tokens or sequence.sampling.verifier is not Verifier.COUPLED:
        return proposal
    kept = sequence.matcher.permitted(proposal.tokens)
    if kept == 0:
        return replace(SILENT, read=proposal.read)
    probs = proposal.draft_probs
    return replace(proposal, tokens=proposal.tokens[:kept], draft_probs=probs[:kept] if probs is not None else None)

"""Two drafters as one: the suffix drafter where it is sure, a learned one everywhere else.

Text that repeats itself is drafted from itself, at no cost and over many tokens; what is new is drafted by a model. The
choice rests on the text so far alone, so that it is sound under every verifier.
"""

from collections.abc import Sequence
from dataclasses import replace

from engine.drafter import Drafter, Proposal
from engine.request import RunningSequence

SURE = 2
"""The suffix drafter's bucket from which on its proposal is taken: 0.4 or more for the first token."""

BUCKETS = 5
"""Buckets of the suffix drafter; those of the other one are counted from there on."""


class PairedDrafter:
    """`engine.drafter.Drafter` over two; either may serve sequences of its own as well."""

    def __init__(self, name: str, suffix: Drafter, learned: Drafter, *, memory_bytes: int) -> None:
        """`memory_bytes` is what is held for this one alone."""
        self.name = name
        self.memory_bytes = memory_bytes
        self.context_limit: int | None = None
        self._suffix = suffix
        self._learned = learned

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        proposals = self._suffix.propose(sequences, lengths)
        unsure = [place for place, proposal in enumerate(proposals) if proposal.confidence < SURE]
        if unsure:
            learned = self._learned.propose(
                [sequences[place] for place in unsure], [lengths[place] for place in unsure]
            )
            for place, proposal in zip(unsure, learned, strict=True):
                if proposal.tokens:
                    proposals[place] = replace(proposal, confidence=proposal.confidence + BUCKETS)
                else:
                    proposals[place] = replace(proposals[place], ready=proposal.ready, read=proposal.read)
        return proposals

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        self._suffix.observe(sequence, emitted)
        self._learned.observe(sequence, emitted)

    def release(self, request_key: int) -> None:
        self._suffix.release(request_key)
        self._learned.release(request_key)

"""What draft models and feature heads share: catching up with the text, own limits, and what is proposed.

A learned drafter keeps keys and values of its own in blocks that have the target's block ids, so that a sequence's
block table serves both: what the target rolls back, shares or gives up is rolled back, shared or given up here. For
each sequence it keeps only how many positions of its cache are valid, and computes the missing ones when it is next
asked: after cycles that ran plain or with another drafter, after a rejection, and after a full accept, whose last
draft and bonus token it has not read yet.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan

from engine.blocks import BLOCK_TOKENS
from engine.drafter import NOT_READY, SILENT, Proposal
from engine.drafter_plan import CATCH_UP_TOKENS
from engine.faults import log_fault
from engine.request import RunningSequence
from kernels.native_draft import Drafted, DraftPart, NativeDraft

DRAFT_STOP = 0.07
"""A draft ends before the product of its confidences falls under this."""

CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.85, 0.95)
"""Confidences of the first token from which on a proposal is in bucket 2, 3 and so on."""


class NoNumbersError(ArithmeticError):
    """A drafter's logits are NaN or infinite, as those of damaged weights are."""


class _Progress:
    """How far the drafter's cache follows one sequence."""

    __slots__ = ("blocks", "broken", "drafted", "drafted_at", "valid")

    def __init__(self) -> None:
        self.valid = 0
        """Positions from 0 on whose keys and values are those of the text."""
        self.blocks: list[int] = []
        """The block table that they were written under."""
        self.drafted: tuple[int, ...] = ()
        """Drafts that the drafter itself read, from position `drafted_at` on."""
        self.drafted_at = 0
        self.broken = False
        """Its logits were no numbers: nothing is drafted for this sequence any more."""


class LearnedDrafter:
    """`engine.drafter.Drafter` over layers of its own."""

    def __init__(
        self,
        name: str,
        native_draft: NativeDraft,
        *,
        context_limit: int,
        memory_bytes: int,
        reads_features: bool,
        stop: float = DRAFT_STOP,
    ) -> None:
        """
        Args:
            name: what decisions call it.
            native_draft: its arithmetic.
            context_limit: positions that it has.
            memory_bytes: what it holds.
            reads_features: whether its cache depends on the target's features. If so, what it wrote while drafting is
                only a guess; else it stands for every draft that was accepted.
            stop: a draft ends before the product of its confidences falls under this.

        Raises:
            ValueError: `stop` is no probability, in one sentence.
        """
        if not 0.0 <= stop <= 1.0:
            raise ValueError(f"draft_stop is {stop}; give 0 to 1")
        self.name = name
        self.memory_bytes = memory_bytes
        self.context_limit: int | None = context_limit
        self._positions = context_limit
        self._native = native_draft
        self._reads_features = reads_features
        self._stop = stop
        self._progress: dict[int, _Progress] = {}
        self._told = False

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        proposals = [NOT_READY] * len(sequences)
        parts: list[DraftPart] = []
        places: list[int] = []
        budget = CATCH_UP_TOKENS
        for place, (sequence, wanted) in enumerate(zip(sequences, lengths, strict=True)):
            text = len(sequence.tokens)
            # Drafts but the last are read at the positions behind the text, which need a place and a block.
            room = min(self._positions, len(sequence.blocks) * BLOCK_TOKENS) - text + 1
            length = min(wanted, room)
            if length < 1 or budget < 1:
                continue
            progress = self._progress.setdefault(sequence.key, _Progress())
            if progress.broken:
                proposals[place] = SILENT
                continue
            start = self._valid(progress, sequence)
            count = min(text - start, budget)
            budget -= count
            caught_up = start + count == text
            covered = text + length - 1 if caught_up else start + count
            parts.append(
                DraftPart(
                    token_ids=sequence.tokens[start : start + count],
                    start=start,
                    blocks=sequence.blocks[: -(-covered // BLOCK_TOKENS)],
                    length=length if caught_up else 0,
                    sampling=sequence.sampling,
                    position=sequence.output_length,
                    stop=self._stop if sequence.knobs.draft_stop is None else sequence.knobs.draft_stop,
                    temperature=sequence.knobs.draft_temperature or 1.0,
                )
            )
            places.append(place)
        if not parts:
            return proposals
        for place, part, drafted in zip(places, parts, self._native.draft(parts), strict=True):
            progress = self._progress[sequences[place].key]
            progress.valid = part.start + len(part.token_ids)
            progress.blocks = list(part.blocks)
            progress.drafted = drafted.tokens[:-1]
            progress.drafted_at = progress.valid
            proposals[place] = replace(proposal_of(drafted) if part.length else NOT_READY, read=len(part.token_ids))
            progress.broken = isnan(drafted.confidences[0])
            if progress.broken and not self._told:
                self._told = True
                log_fault(f"drafting with {self.name}, which is silent for sequences like this one,", NoNumbersError())
        return proposals

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        """Nothing to do: `propose` catches up."""

    def release(self, request_key: int) -> None:
        self._progress.pop(request_key, None)

    def _valid(self, progress: _Progress, sequence: RunningSequence) -> int:
        """The first position to compute: at most that of the text's last token, whose output makes the first draft."""
        valid = progress.valid
        if not self._reads_features:
            for position, token in enumerate(progress.drafted, start=progress.drafted_at):
                if position >= len(sequence.tokens) or sequence.tokens[position] != token:
                    break
                valid = position + 1
        if progress.blocks != sequence.blocks[: len(progress.blocks)]:
            valid = 0
        return min(valid, len(sequence.tokens) - 1)


def proposal_of(drafted: Drafted) -> Proposal:
    """A proposal with the confidence bucket of its first token."""
    if not drafted.tokens:
        return SILENT
    confidence = 1 + sum(drafted.confidences[0] >= edge for edge in CONFIDENCE_EDGES)
    return Proposal(drafted.tokens, confidence, drafted.draft_probs)

"""What is drafted in a cycle: copied proposals before it is planned, and those of the drafters that the plan asks.

In a context that has a copier (`policies.cycle_policy.Copier`), it proposes first, and `policies.copying` says whether
its proposal takes the place of a block of the drafter that the sequence was given. That rests on the past, and on how
sure the proposal is, so that it is sound under every verifier.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.drafter import SILENT, Drafter, Proposal, proposals_of
from engine.request import RunningSequence
from policies.copying import CopyingChoice
from policies.cycle_policy import Copier, CyclePolicy, Outlook
from policies.types import MAX_BLOCK_LENGTH

UNKNOWN = Outlook((), ())
"""Of a drafter of which nothing has been learned yet."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """What was drafted for one sequence."""

    drafter: str
    """The decision's, also where nothing was asked of it, or the copier whose proposal is taken."""
    requested: int
    proposal: Proposal
    survival: tuple[float, ...] | None = None
    """Of a copied proposal: what is known of those that are as sure."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copier offers for one sequence."""

    drafter: str
    requested: int
    proposal: Proposal
    outlook: Outlook
    taken: bool
    """In place of a block of the decision's drafter."""

    @property
    def drafted(self) -> Drafted:
        return Drafted(self.drafter, self.requested, self.proposal, self.outlook.survival)


@dataclass(frozen=True, slots=True)
class Copies:
    """What copiers offer in one cycle."""

    of: Mapping[int, Copied] = field(default_factory=dict)
    """By request key, of those that were asked about."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By copier, of its call."""

    def taken(self, sequence: RunningSequence) -> Copied | None:
        """What is offered for a sequence, if it is taken."""
        copied = self.of.get(sequence.key)
        return copied if copied is not None and copied.taken else None

    def left(self, sequence: RunningSequence) -> Copied | None:
        """What is offered for a sequence, if it is not taken."""
        copied = self.of.get(sequence.key)
        return copied if copied is not None and not copied.taken else None

    def split_seconds(self) -> tuple[dict[str, float], float]:
        """(by copier, for proposals that are taken; for all the others): a call's proposals take about the same."""
        taken: dict[str, float] = {}
        left = 0.0
        for name, seconds in self.seconds.items():
            of_call = [copied.taken for copied in self.of.values() if copied.drafter == name]
            share = sum(of_call) / len(of_call)
            if share:
                taken[name] = share * seconds
            left += (1.0 - share) * seconds
        return taken, left


def outlook_of(sequence: RunningSequence, policy: CyclePolicy) -> Outlook:
    """Of the drafter that the sequence was given, in its context or else everywhere."""
    decision = sequence.decision
    context = decision.context
    outlook = policy.outlooks.get((decision.drafter, context.route, context.language))
    return outlook or policy.default_outlooks.get(decision.drafter, UNKNOWN)


def copied_proposals(
    drafters: Mapping[str, Drafter], sequences: Sequence[RunningSequence], caps: Sequence[int], policy: CyclePolicy
) -> Copies:
    """Ask each copier once, about the sequences that may have more from it; `caps` are their longest blocks."""
    wanted: dict[str, list[tuple[RunningSequence, int, Copier]]] = {}
    if policy.cost is None or not policy.copiers:
        return Copies()
    for sequence, cap in zip(sequences, caps, strict=True):
        decision = sequence.decision
        copier = policy.copiers.get((decision.context.route, decision.context.language))
        if (
            copier is not None
            and cap > 0
            and not decision.forced
            and copier.drafter != decision.drafter
            and copier.drafter in drafters
            and len(sequences) <= copier.most_load
        ):
            wanted.setdefault(copier.drafter, []).append((sequence, cap, copier))
    if not wanted:
        return Copies()
    choice = CopyingChoice(policy.cost, len(sequences), sum(len(sequence.tokens) for sequence in sequences))
    copies: dict[int, Copied] = {}
    seconds: dict[str, float] = {}
    for name, asked in wanted.items():
        started = time.perf_counter()
        proposals = proposals_of(drafters[name], [one for one, _, _ in asked], [cap for _, cap, _ in asked])
        seconds[name] = time.perf_counter() - started
        for (sequence, cap, copier), proposal in zip(asked, proposals, strict=True):
            outlook = copier.of(proposal.confidence)
            given = outlook_of(sequence, policy)
            price = policy.draft_costs.get(sequence.decision.drafter)
            taken = bool(proposal.tokens) and choice.takes(outlook, len(proposal.tokens), given, cap, price)
            copies[sequence.key] = Copied(name, cap, proposal, outlook, taken)
    return Copies(copies, seconds)


def draft(
    drafters: Mapping[str, Drafter],
    sequences: Sequence[RunningSequence],
    requested: Sequence[int],
    copies: Copies,
) -> tuple[list[Drafted], dict[str, float]]:
    """Each drafter proposes in one call for its sequences of which no copied proposal is taken; seconds by drafter."""
    drafted = []
    wanted: dict[str, list[int]] = {}
    for index, (sequence, length) in enumerate(zip(sequences, requested, strict=True)):
        copied = copies.taken(sequence)
        drafted.append(Drafted(sequence.decision.drafter, length, SILENT) if copied is None else copied.drafted)
        if copied is None and length > 0:
            wanted.setdefault(sequence.decision.drafter, []).append(index)
    seconds: dict[str, float] = {}
    for name, indices in wanted.items():
        started = time.perf_counter()
        proposals = proposals_of(drafters[name], [sequences[i] for i in indices], [requested[i] for i in indices])
        for index, proposal in zip(indices, proposals, strict=True):
            drafted[index] = Drafted(name, requested[index], proposal)
        seconds[name] = time.perf_counter() - started
    return drafted, seconds


def startup_tokens(drafted: Sequence[Drafted]) -> dict[str, int]:
    """What drafters read that is more than a cycle can have added to a text."""
    tokens: dict[str, int] = {}
    for one in drafted:
        if one.proposal.read > MAX_BLOCK_LENGTH + 1:
            tokens[one.drafter] = tokens.get(one.drafter, 0) + one.proposal.read
    return tokens

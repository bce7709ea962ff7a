"""Drafters that propose beside the requests: what they offer is compared in memory with the tokens that come.

A shadow starts where a block of its drafter would start: once the one before is decided, at the beginning of a cycle.
It is decided by the first token that differs, or by the one after the last draft that was kept, which a block emits as
its bonus. One drafter has at most one shadow of a sequence at a time.

Under coupled verification, and for every draft that was chosen without chance, that a draft equals the emitted token is
exactly whether, or the chance that, a block would have kept it. It is neither for a draft that was drawn with noise of
the drafter's own: such proposals make no shadow.
"""

import time
from collections.abc import Collection, Mapping, Sequence

from engine.blocks import BLOCK_TOKENS
from engine.drafter import Drafter, Proposal, proposals_of
from engine.request import RunningSequence, Shadow
from policies.cycle_policy import CyclePolicy
from policies.shadow_room import ShadowRoom
from policies.stats import ShadowStats
from policies.types import MAX_BLOCK_LENGTH

CHEAP_SHARE = 0.01
"""While the safety budget is spent, a drafter proposes beside requests if it takes no more than this share of a plain
cycle."""


def due_shadows(
    sequence: RunningSequence,
    asked: Collection[str],
    drafters: Mapping[str, Drafter],
    policy: CyclePolicy,
    room: ShadowRoom,
) -> dict[str, int]:
    """The drafters that are to propose beside `sequence` in this cycle, in which those in `asked` are asked anyway, and
    how many drafts.

    None in a plain window, which measures plain, nor under a kill switch; none at a cost while the policy holds, or
    where those that run have no `room` for it.
    """
    decision = sequence.decision
    # A drafter that may not speculate while the policy holds can still be learned from.
    names = dict.fromkeys((*decision.shadows, decision.drafter)) if policy.hold else decision.shadows
    if not names or policy.plain_on(decision.context.route):
        return {}
    due = [
        name
        for name in names
        if name in drafters
        and name not in sequence.shadows
        and name not in asked
        and not (policy.hold and _takes_time(name, policy))
    ]
    lengths = {name: room.length(name) for name in due}
    return {name: length for name, length in lengths.items() if length}


def start_shadows(
    drafters: Mapping[str, Drafter], sequences: Sequence[RunningSequence], due: Sequence[Mapping[str, int]]
) -> float:
    """Ask the drafters that are due of each sequence for as many drafts; returns the seconds that it took."""
    asked: dict[str, list[tuple[RunningSequence, int]]] = {}
    for sequence, lengths in zip(sequences, due, strict=True):
        # A learned drafter writes behind the text: what there is no block for is not asked.
        room = len(sequence.blocks) * BLOCK_TOKENS - len(sequence.tokens)
        for name, length in lengths.items():
            possible = min(length, sequence.remaining - 1, room)
            if possible > 0:
                asked.setdefault(name, []).append((sequence, possible))
    if not asked:
        return 0.0
    started = time.perf_counter()
    for name, wanted in asked.items():
        proposals = proposals_of(drafters[name], [one for one, _ in wanted], [length for _, length in wanted])
        for (sequence, length), proposal in zip(wanted, proposals, strict=True):
            cast_shadow(sequence, name, proposal, length)
    return time.perf_counter() - started


def cast_shadow(sequence: RunningSequence, drafter: str, proposal: Proposal, requested: int) -> None:
    """Keep a proposal that is not verified, if what comes can tell whether it would have been accepted."""
    if proposal.ready and proposal.draft_probs is None and drafter not in sequence.shadows:
        sequence.shadows[drafter] = Shadow(proposal.tokens, requested, proposal.confidence)


def advance_shadows(sequence: RunningSequence, emitted: Sequence[int], ended: bool) -> list[ShadowStats]:
    """Compare the sequence's shadows with `emitted`; those that are decided, or can be no more, are told and gone."""
    told = []
    for drafter, shadow in list(sequence.shadows.items()):
        shadow.emitted += len(emitted)
        decided = _decided(shadow, emitted)
        if not (decided or ended):
            continue
        del sequence.shadows[drafter]
        told.append(
            ShadowStats(
                request_key=sequence.key,
                context=sequence.decision.context,
                drafter=drafter,
                requested=shadow.requested,
                proposed=len(shadow.tokens),
                matched=shadow.matched,
                confidence=shadow.confidence,
                censored=not decided,
                emitted=shadow.emitted,
            )
        )
    return told


def _takes_time(drafter: str, policy: CyclePolicy) -> bool:
    price = policy.draft_costs.get(drafter)
    if price is None or policy.cost is None:
        return price is not None
    return price.seconds(1, MAX_BLOCK_LENGTH, MAX_BLOCK_LENGTH) > CHEAP_SHARE * policy.cost.seconds(1, 1, 0)


def _decided(shadow: Shadow, emitted: Sequence[int]) -> bool:
    for token in emitted:
        if shadow.matched == len(shadow.tokens) or token != shadow.tokens[shadow.matched]:
            return True
        shadow.matched += 1
    return False

"""What one cycle is to draft: asked before there is room for it in the KV cache.

The cycle policy may only lower what a request's decision allows: a kill switch or a plain window is in force in the
cycle that sees it first.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.drafter import Drafter
from engine.drafting import Copies, copied_proposals, outlook_of
from engine.request import RunningSequence
from engine.waiting import left_copies
from policies.cycle_policy import CyclePolicy
from policies.ledger import NOTHING, cycle_spare, drafting_seconds, spare_if_asked
from policies.plan import NO_PRICES, Prices, Prospect, plan


@dataclass(frozen=True, slots=True)
class CyclePlan:
    """What a cycle is to draft, and what was drafted already."""

    requested: tuple[int, ...] = ()
    """For each sequence, what to ask of its drafter, or how many copied drafts are at hand that are taken."""
    rate: float = 0.0
    """`policies.plan.Plan.rate`."""
    prices: Prices = NO_PRICES
    """For the next plan."""
    copies: Copies = field(default_factory=Copies)
    trust: float = 1.0
    """In the cost model, see `policies.ledger.CostTrust`."""
    spare_seconds: float = 0.0
    """What is expected to be left of those that everybody may still wait."""
    seconds: float = 0.0
    """What it took, the copiers included."""

    def asked(self, sequence: RunningSequence, length: int) -> tuple[str, ...]:
        """The drafters that are asked about a sequence of which `length` drafts are requested, shadows left out."""
        copied = self.copies.of.get(sequence.key)
        of_copying = () if copied is None else (copied.drafter,)
        if length == 0 or (copied is not None and copied.taken):
            return of_copying
        return (*of_copying, sequence.decision.drafter)


NO_PLAN = CyclePlan()
"""Of a cycle that is told what to request and copies nothing."""


def block_length(sequence: RunningSequence, policy: CyclePolicy) -> int:
    """The block length that may be asked for in this cycle: a block of K emits up to K + 1 tokens."""
    decision = sequence.decision
    if policy.plain_on(decision.context.route) or (policy.hold and not decision.forced):
        return 0
    return max(0, min(sequence.block_length, sequence.remaining - 1))


def plan_cycle(
    drafters: Mapping[str, Drafter],
    sequences: Sequence[RunningSequence],
    policy: CyclePolicy,
    near: Prices = NO_PRICES,
    trust: float = 1.0,
) -> CyclePlan:
    """Ask the copiers, and find the block length to ask of the other drafters: drafting that is not expected to pay is
    not even asked. `near` are the prices of the plan before."""
    started = time.perf_counter()
    for sequence in sequences:
        sequence.knobs = policy.knobs_of(sequence.decision.context.route)
    caps = tuple(block_length(sequence, policy) for sequence in sequences)
    kv_tokens = sum(len(sequence.tokens) for sequence in sequences)
    if all(cap == 0 or sequence.decision.forced for cap, sequence in zip(caps, sequences, strict=True)):
        spare = cycle_spare([(sequence.ledger, NOTHING) for sequence in sequences], policy, kv_tokens, trust)
        return CyclePlan(caps, prices=near, trust=trust, spare_seconds=spare)
    copies = copied_proposals(drafters, sequences, caps, policy)
    prospects = []
    for sequence, cap in zip(sequences, caps, strict=True):
        decision = sequence.decision
        copied = copies.taken(sequence)
        prospects.append(
            Prospect(
                drafter=decision.drafter if copied is None else copied.drafter,
                outlook=outlook_of(sequence, policy) if copied is None else copied.outlook,
                cap=cap if copied is None else len(copied.proposal.tokens),
                forced=decision.forced,
                tpot_limit=policy.tpot_limits.get(decision.context.route),
            )
        )
    untaken = drafting_seconds(left_copies(sequences, copies), policy.draft_costs)

    waiting = [
        (sequence.ledger, "" if one.forced else one.drafter) for sequence, one in zip(sequences, prospects, strict=True)
    ]
    spare_with = spare_if_asked(waiting, policy, kv_tokens, trust)

    def spare_of(asked: Sequence[int]) -> float:
        return spare_with(asked) - untaken

    planned = plan(prospects, policy.cost, policy.draft_costs, kv_tokens, policy.margin, spare_of, near)
    # What is copied is at hand: how much of it is verified, the allocation says.
    requested = tuple(
        length if copies.taken(sequence) is None else one.cap
        for sequence, one, length in zip(sequences, prospects, planned.requested, strict=True)
    )
    seconds = time.perf_counter() - started
    return CyclePlan(requested, planned.rate, planned.prices, copies, trust, planned.spare_seconds, seconds)

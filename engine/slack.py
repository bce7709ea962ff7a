"""The ledger of what cycles cost each sequence, by the cost model in force.

A sequence's slack is `max_neighbour_slowdown` times the seconds that cycles without weighed speculation would take
for what it has emitted, less the seconds that its cycles took. While a cycle is allowed only where it leaves nobody's
slack below zero, nobody's whole life becomes slower than the bound, whatever luck it had before.

It is kept in units of the model's plain cycle of one sequence: where the machine is found to be slower or faster than
before, the past counts in what it would cost today.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.drafting import Copies, Drafted
from engine.request import RunningSequence
from engine.shadowing import ShadowPass
from policies.cycle_policy import CyclePolicy, PassCost


@dataclass(frozen=True, slots=True)
class DraftPrice:
    """Seconds of the drafting in one cycle, by the cost model."""

    forced: float
    """For forced decisions alone: part of the cycle that the others are compared with, as in `policies.allocate`."""
    weighed: float
    """All the rest, shadows included."""


def draft_price(
    sequences: Sequence[RunningSequence],
    drafted: Sequence[Drafted],
    copies: Copies,
    shadows: Sequence[ShadowPass],
    policy: CyclePolicy,
) -> DraftPrice:
    """The price of what was drafted; `drafted` is in the order of `sequences`."""
    every: dict[str, list[int]] = {}
    forced: dict[str, list[int]] = {}
    for sequence, one in zip(sequences, drafted, strict=True):
        if one.requested:
            every.setdefault(one.drafter, []).append(len(one.proposal.tokens))
            if sequence.decision.forced:
                forced.setdefault(one.drafter, []).append(len(one.proposal.tokens))
        left = copies.left(sequence)
        if left is not None:
            every.setdefault(left.drafter, []).append(len(left.proposal.tokens))
    seconds = _seconds(every, policy)
    for shadow in shadows:
        price = policy.draft_costs.get(shadow.drafter)
        if price is not None:
            seconds += price.seconds(shadow.sequences, shadow.steps, shadow.rows)
    of_forced = _seconds(forced, policy)
    return DraftPrice(of_forced, seconds - of_forced)


def slack_seconds(sequence: RunningSequence, cost: PassCost | None) -> float:
    """What a sequence may still lose; negative where its cycles took more than the bound already."""
    return 0.0 if cost is None else sequence.slack * _unit_seconds(cost)


def settle(
    sequences: Sequence[RunningSequence],
    emitted: Sequence[int],
    verified: Sequence[int],
    drafting: DraftPrice,
    policy: CyclePolicy,
    kv_tokens: int,
) -> None:
    """Enter one cycle into the ledgers of `sequences`; all are in their order, `kv_tokens` is from its beginning."""
    cost = policy.cost
    if cost is None:
        return
    load = len(sequences)
    rows = load + sum(verified)
    forced_rows = load + sum(
        count for sequence, count in zip(sequences, verified, strict=True) if sequence.decision.forced
    )
    base = cost.seconds(forced_rows, load, kv_tokens) + drafting.forced
    seconds = cost.seconds(rows, load, kv_tokens) + drafting.forced + drafting.weighed
    unit = _unit_seconds(cost)
    for sequence, count in zip(sequences, emitted, strict=True):
        sequence.slack += (policy.max_neighbour_slowdown * base * count - seconds) / unit


def _unit_seconds(cost: PassCost) -> float:
    return cost.seconds(1, 1, 0)


def _seconds(offered: dict[str, list[int]], policy: CyclePolicy) -> float:
    return sum(
        policy.draft_costs[drafter].seconds(len(counts), max(counts), sum(counts))
        for drafter, counts in offered.items()
        if drafter in policy.draft_costs
    )

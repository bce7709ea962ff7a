"""How long the running sequences wait for each other: `policies.ledger`, told what an engine did."""

from collections.abc import Sequence

from engine.drafting import Copies, Drafted
from engine.request import RunningSequence
from policies.cycle_policy import CyclePolicy
from policies.ledger import Turn, drafting_seconds, settle


def left_copies(sequences: Sequence[RunningSequence], copies: Copies) -> list[tuple[str, int]]:
    """(copier, drafts) of the copied proposals that are not taken."""
    left = [copies.left(sequence) for sequence in sequences]
    return [(one.drafter, len(one.proposal.tokens)) for one in left if one is not None]


def weighed_seconds(
    sequences: Sequence[RunningSequence],
    drafted: Sequence[Drafted],
    left: Sequence[tuple[str, int]],
    policy: CyclePolicy,
) -> float:
    """What drafting took that nobody forced, shadows left out."""
    asked = [
        (one.drafter, len(one.proposal.tokens), sequence.decision.forced)
        for sequence, one in zip(sequences, drafted, strict=True)
        if one.requested
    ]
    every = [(drafter, proposed) for drafter, proposed, _ in asked]
    forced = [(drafter, proposed) for drafter, proposed, is_forced in asked if is_forced]
    return drafting_seconds([*every, *left], policy.draft_costs) - drafting_seconds(forced, policy.draft_costs)


def settle_cycle(
    sequences: Sequence[RunningSequence],
    drafted: Sequence[Drafted],
    emitted: Sequence[int],
    verified: Sequence[int],
    left: Sequence[tuple[str, int]],
    shadow_seconds: float,
    policy: CyclePolicy,
    kv_tokens: int,
) -> float:
    """Enter one cycle into the ledgers of `sequences`; all are in their order, `kv_tokens` is from its beginning.

    Returns the seconds that the cost model predicts for it; 0 without one.
    """
    if policy.cost is None:
        return 0.0
    turns = [
        Turn(
            sequence.ledger,
            tokens,
            rows,
            one.drafter if one.requested else "",
            len(one.proposal.tokens),
            sequence.decision.forced,
        )
        for sequence, one, tokens, rows in zip(sequences, drafted, emitted, verified, strict=True)
    ]
    return settle(turns, policy.cost, policy.draft_costs, kv_tokens, left, shadow_seconds)

"""How many drafts to ask of each running sequence's drafter in one cycle, before anything is drafted. Pure.

Drafting is paid for by drafter (a call, and a pass for each step of its longest proposal), verification by rows of the
target's pass. What a block of K brings is known on average only (`Outlook`): S_j tokens and O_j rows at position j.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.cycle_policy import DraftCost, Outlook, PassCost

_FREE = 0.01
"""Drafting that takes less than this share of a plain cycle is not weighed."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """One running sequence. Every one is listed, also those that may not speculate: their number is the load."""

    drafter: str
    outlook: Outlook
    cap: int
    """Largest block length that may be asked for; 0 for a sequence that stays plain."""
    forced: bool
    """The cap is asked for and not weighed."""
    slack_seconds: float = 0.0
    """See `policies.allocate.Candidate`."""
    tpot_limit: float | None = None
    """See `policies.allocate.Candidate`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask for, and what it is expected to come to."""

    requested: tuple[int, ...]
    """The block length for each sequence's drafter, in their order."""
    rate: float
    """Expected tokens per second of this cycle and those like it; 0.0 without a cost."""


def plan(
    prospects: Sequence[Prospect],
    cost: PassCost | None,
    draft_costs: Mapping[str, DraftCost],
    kv_tokens: int,
    margin: float,
    max_neighbour_slowdown: float,
) -> Plan:
    """The block lengths with about the most expected tokens per expected second over all sequences together.

    Forced caps are asked for at any price. Of the rest, what is expected to gain less than `margin` (a share) over the
    cycle with forced blocks alone is not asked for; nor is what makes any sequence wait longer than its bounds
    (`policies.allocate`) allow. A drafter that costs next to nothing is asked up to the caps all the same: its
    confidence, which the allocation weighs, says more than its average. Without a `cost` only forced caps are asked.
    """
    base = [one.cap if one.forced else 0 for one in prospects]
    if cost is None or not prospects:
        return Plan(tuple(base), 0.0)
    plain_tokens, plain_seconds = _outcome(prospects, base, cost, draft_costs, kv_tokens)
    best, best_rate = base, sum(plain_tokens) / plain_seconds * (1.0 + margin)
    for lengths in (list(base), [one.cap for one in prospects]):
        rate = 0.0
        improved = True
        while improved:
            improved = False
            for index, one in enumerate(prospects):
                for length in range(0 if not one.forced else one.cap, one.cap + 1):
                    trial = [*lengths[:index], length, *lengths[index + 1 :]]
                    emitted, seconds = _outcome(prospects, trial, cost, draft_costs, kv_tokens)
                    allowed = trial == base or all(
                        seconds <= max_neighbour_slowdown * plain_seconds * tokens + each.slack_seconds
                        and (
                            each.tpot_limit is None
                            or plain_seconds > each.tpot_limit * before
                            or seconds <= each.tpot_limit * tokens
                        )
                        for each, tokens, before in zip(prospects, emitted, plain_tokens, strict=True)
                    )
                    if allowed and sum(emitted) / seconds > rate:
                        rate, lengths, improved = sum(emitted) / seconds, trial, True
        if rate > best_rate:
            best, best_rate = lengths, rate
    rate = best_rate if best != base else sum(plain_tokens) / plain_seconds
    free = _free(prospects, cost, draft_costs, kv_tokens)
    return Plan(
        tuple(one.cap if one.drafter in free else length for one, length in zip(prospects, best, strict=True)), rate
    )


def _outcome(
    prospects: Sequence[Prospect],
    lengths: Sequence[int],
    cost: PassCost,
    draft_costs: Mapping[str, DraftCost],
    kv_tokens: int,
) -> tuple[list[float], float]:
    """Expected tokens by sequence and expected seconds of the cycle."""
    load = len(prospects)
    emitted = [1.0 + sum(one.outlook.survival[:length]) for one, length in zip(prospects, lengths, strict=True)]
    rows = [sum(one.outlook.offered[:length]) for one, length in zip(prospects, lengths, strict=True)]
    seconds = cost.seconds(load + sum(rows), load, kv_tokens)
    for drafter, drafting in draft_costs.items():
        asked = [index for index, one in enumerate(prospects) if one.drafter == drafter and lengths[index]]
        steps = 0.0
        for position in range(max((lengths[index] for index in asked), default=0)):
            silent = 1.0
            for index in asked:
                offered = prospects[index].outlook.offered
                if position < min(lengths[index], len(offered)):
                    silent *= 1.0 - offered[position]
            steps += 1.0 - silent
        seconds += drafting.seconds(len(asked), steps, sum(rows[index] for index in asked))
    return emitted, seconds


def _free(
    prospects: Sequence[Prospect], cost: PassCost, draft_costs: Mapping[str, DraftCost], kv_tokens: int
) -> set[str]:
    """Drafters whose whole caps cost less than `_FREE` of a plain cycle."""
    load = len(prospects)
    limit = _FREE * cost.seconds(load, load, kv_tokens)
    free = set()
    for drafter in {one.drafter for one in prospects}:
        caps = [one.cap for one in prospects if one.drafter == drafter and one.cap]
        drafting = draft_costs.get(drafter)
        if caps and (drafting is None or drafting.seconds(len(caps), max(caps), sum(caps)) <= limit):
            free.add(drafter)
    return free

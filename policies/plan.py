"""How many drafts to ask of each running sequence's drafter in one cycle, before anything is drafted. Pure.

Drafting is paid for by drafter: a call, and a pass for each step of its longest proposal. Verification is paid for by
rows of the target's pass. What a block of K brings is known on average only (`Outlook`): S_j tokens and O_j rows at its
position j.

The lengths with the most tokens per second are those with the most ``tokens - rate * seconds`` at the rate that they
reach (Dinkelbach 1967). At a given price of a row each group of equal sequences has its own best length, and each
drafter its own best depth, whatever the others do. So the search is for two prices: that rate, and the slope of the
target's cost where the rows that it brings come to lie. From cycle to cycle they hardly change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from policies.cycle_policy import DraftCost, PassCost
from policies.pass_segments import Envelope
from policies.plan_bounds import WaitBounds
from policies.plan_groups import Drafter, Group
from policies.plan_search import NO_PRICES, Choice, Prices, Search
from policies.prospect import Prospect

__all__ = ["NO_PRICES", "Plan", "Prices", "Prospect", "plan"]

_FREE = 0.01
"""Drafting that takes less than this share of a plain cycle is not weighed."""
_NO_COST = DraftCost(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask for, and what it is expected to come to."""

    requested: tuple[int, ...]
    """The block length for each sequence's drafter, in their order."""
    rate: float
    """Expected tokens per second of this cycle and those like it; 0.0 without a cost."""
    prices: Prices
    """For the next plan."""
    spare_seconds: float
    """What is expected to be left of those that everybody may still wait."""


def _without_end(asked: Sequence[int]) -> float:
    """Where nobody minds waiting."""
    return inf


def plan(
    prospects: Sequence[Prospect],
    cost: PassCost | None,
    draft_costs: Mapping[str, DraftCost],
    kv_tokens: int,
    margin: float,
    spare_of: Callable[[Sequence[int]], float] = _without_end,
    near: Prices = NO_PRICES,
) -> Plan:
    """The block lengths with about the most expected tokens per expected second over all sequences together.

    Forced caps are asked for at any price. Of the rest, what is expected to gain less than `margin` (a share) over the
    cycle with forced blocks alone is not asked for; nor is what makes the cycle longer than that one by more than
    `spare_of` allows (`policies.ledger`), or longer than objectives allow (`policies.allocate`). A drafter that costs
    next to nothing is asked up to the caps all the same: its confidence, which the allocation weighs, says more than
    its average. Without a `cost` only forced caps are asked.

    Args:
        spare_of: how much longer everybody who runs may wait than in the cycle with forced blocks alone, by the drafts
            that are asked for each sequence: nobody waits for others while its own are drafted.
        near: of the plan before, if there was one: the search begins there and takes less time.
    """
    load = len(prospects)
    requested = [0] * load
    drafters: dict[str, Drafter] = {}
    groups: dict[tuple[str, int, int], Group] = {}
    latest: dict[int, Group] = {}
    """By outlook: most sequences are like the one before them."""
    plain_tokens = rows = float(load)
    surely = inf
    for index, one in enumerate(prospects):
        cap = one.cap
        if one.tpot_limit is not None and one.tpot_limit < surely:
            surely = one.tpot_limit
        if cap <= 0:
            continue
        name, outlook = one.drafter, one.outlook
        if one.forced:
            requested[index] = cap
            if name not in drafters:
                drafters[name] = Drafter(draft_costs.get(name, _NO_COST))
            expected, used = drafters[name].force(outlook, cap)
            plain_tokens += expected
            rows += used
            continue
        group = latest.get(id(outlook))
        if group is None or group.asked != cap or group.drafter != name:
            key = name, id(outlook), cap
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(name, outlook, cap)
                if name not in drafters:
                    drafters[name] = Drafter(draft_costs.get(name, _NO_COST))
                drafters[name].groups.append(group)
            latest[id(outlook)] = group
        group.members.append(index)
    if cost is None or not prospects:
        return Plan(tuple(requested), 0.0, near, 0.0)
    weighed = [drafter for drafter in drafters.values() if drafter.groups]
    plain_seconds = cost.seconds(rows, load, kv_tokens)
    for drafter in drafters.values():
        if drafter.forced:
            plain_seconds += drafter.forced_seconds()
    plain = Choice([], plain_tokens, 0.0, plain_seconds)
    plain_rate = plain_tokens / plain_seconds
    if not weighed:
        return Plan(tuple(requested), plain_rate, near, spare_of([0] * load))

    most = 0.0
    for drafter in weighed:
        for group in drafter.groups:
            group.count = len(group.members)
            most += group.count * group.rows[group.cap]
    search = Search(weighed, Envelope(cost, rows, most), plain)
    choice, prices = search.best(near)
    bounds = WaitBounds(prospects, search.groups, plain, surely, spare_of)
    if choice.lengths and not bounds.allow(choice):
        choice = search.within(bounds, choice)
    rate = choice.tokens / choice.seconds
    if rate <= plain_rate * (1.0 + margin):
        choice, rate = plain, plain_rate
    lengths = iter(choice.lengths or [0] * len(search.groups))
    for drafter in weighed:
        free = drafter.is_free(_FREE * plain_seconds)
        for group in drafter.groups:
            length = next(lengths)
            for index in group.members:
                requested[index] = group.asked if free else length
    return Plan(tuple(requested), rate, prices, bounds.most(choice.lengths) - choice.seconds)

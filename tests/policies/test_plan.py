"""`policies.plan` against exhaustive search, and what it promises."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from policies.cycle_policy import DraftCost, Outlook, PassCost
from policies.plan import Prices, Prospect, plan

LINEAR = PassCost((1, 101), (0.010, 0.110), 0.0, 0.0)
"""10 ms and 1 ms for each row after the first."""
LEARNED = DraftCost(call_seconds=0.0005, sequence_seconds=0.0001, step_seconds=0.0015, row_seconds=0.00005)
NGRAM = DraftCost(0.0, 0.00002, 0.0, 0.0)
KNOTS = (1, 2, 4, 6, 9, 12, 14, 17)


def outlook(hazard: float, proposing: float = 1.0, length: int = 12) -> Outlook:
    """Proposes all or nothing, with probability `proposing`; each position is kept with probability `hazard`."""
    survival = tuple(proposing * hazard**j for j in range(1, length + 1))
    return Outlook(survival, (proposing,) * length)


def one(hazard: float, proposing: float = 1.0, drafter: str = "draft", cap: int = 12) -> Prospect:
    return Prospect(drafter, outlook(hazard, proposing), cap, forced=False)


def expected(
    chosen: Sequence[Prospect], lengths: Sequence[int], cost: PassCost, drafting: Mapping[str, DraftCost]
) -> tuple[list[float], float]:
    """Expected tokens by sequence, and expected seconds, from the definitions."""
    load = len(chosen)
    tokens = [1.0 + sum(each.outlook.survival[:length]) for each, length in zip(chosen, lengths, strict=True)]
    rows = [sum(each.outlook.offered[:length]) for each, length in zip(chosen, lengths, strict=True)]
    seconds = cost.seconds(load + sum(rows), load, 0)
    for name, draft_cost in drafting.items():
        asked = [index for index, each in enumerate(chosen) if each.drafter == name and lengths[index]]
        steps = 0.0
        for position in range(max((lengths[index] for index in asked), default=0)):
            reached = [chosen[i].outlook.offered[position] for i in asked if lengths[i] > position]
            steps += 1.0 - math.prod(1.0 - share for share in reached)
        seconds += draft_cost.seconds(len(asked), steps, sum(rows[index] for index in asked))
    return tokens, seconds


def rate(
    chosen: Sequence[Prospect], lengths: Sequence[int], cost: PassCost, drafting: Mapping[str, DraftCost]
) -> float:
    tokens, seconds = expected(chosen, lengths, cost, drafting)
    return sum(tokens) / seconds


def small_case(chance: random.Random, convex: bool) -> tuple[list[Prospect], PassCost, dict[str, DraftCost]]:
    drafting = {
        "draft": DraftCost(
            chance.choice((0, 0.001)),
            chance.choice((0, 0.0003)),
            chance.choice((0, 0.0005, 0.002)),
            chance.choice((0, 0.0001)),
        ),
        "ngram": DraftCost(0.0, 0.0002, 0.0, 0.0),
    }
    outlooks = {}
    for name, which in itertools.product(drafting, range(2)):
        hazard, goes_on, proposing = chance.uniform(0.3, 0.98), chance.uniform(0.7, 1.0), chance.uniform(0.4, 1.0)
        offered = tuple(proposing * goes_on**j for j in range(4))
        outlooks[name, which] = Outlook(tuple(share * hazard ** (j + 1) for j, share in enumerate(offered)), offered)
    chosen = []
    for _ in range(chance.randint(1, 4)):
        name = chance.choice(list(drafting))
        found = outlooks[name, chance.randint(0, 1)]
        chosen.append(Prospect(name, found, chance.choice((0, 2, 4, 4)), chance.random() < 0.15))
    rises = [chance.choice((0.0, 0.0, 0.0004, 0.001, 0.002, 0.006)) for _ in KNOTS[1:]]
    if convex:
        slopes = sorted(chance.uniform(0.0, 0.002) for _ in KNOTS[1:])
        rises = [slope * (right - left) for slope, (left, right) in zip(slopes, itertools.pairwise(KNOTS), strict=True)]
    return chosen, PassCost(KNOTS, tuple(itertools.accumulate(rises, initial=0.010)), 0.0003, 0.0), drafting


def envelope(chosen: Sequence[Prospect], cost: PassCost) -> PassCost:
    """The largest convex function below `cost`, from the rows of the cycle with forced blocks alone to the first knot
    beyond all caps' rows."""
    rows = len(chosen) + sum(sum(each.outlook.offered[: each.cap]) for each in chosen if each.forced)
    most = sum(sum(each.outlook.offered[: each.cap]) for each in chosen if not each.forced)
    corners = [(rows, cost.seconds(rows, 0, 0))]
    corners += [(knot, cost.seconds(knot, 0, 0)) for knot in cost.token_knots if rows < knot < rows + most]
    corners += [(rows + most, cost.seconds(rows + most, 0, 0))] if most else []
    lowest = [
        (at, value)
        for at, value in corners
        if all(
            value <= low + (high - low) * (at - left) / (right - left)
            for (left, low), (right, high) in itertools.combinations(corners, 2)
            if left < at < right
        )
    ]
    knots, values = zip(*lowest, strict=True)
    return replace(cost, token_knots=knots, knot_seconds=values)


@pytest.mark.parametrize("convex", [True, False])
def test_the_rate_is_within_half_a_percent_of_the_best_of_all_lengths(convex: bool) -> None:
    losses = []
    for seed in range(150):
        chosen, cost, drafting = small_case(random.Random(seed), convex)
        cost = envelope(chosen, cost)
        spans = [(each.cap,) if each.forced else range(each.cap + 1) for each in chosen]
        best = max(rate(chosen, lengths, cost, drafting) for lengths in itertools.product(*spans))
        found = plan(chosen, cost, drafting, 0, 0.0)
        losses.append(best / found.rate - 1.0)
        assert losses[-1] > -1e-9
    assert sum(loss <= 0.005 for loss in losses) >= 0.98 * len(losses)
    assert sum(losses) / len(losses) < 0.001
    assert max(losses) < 0.03


def test_a_step_of_the_cost_counts_as_far_as_expected_rows_reach_behind_it() -> None:
    # Seven rows are free and the eighth opens a tile; a block is expected to bring 7.3 at most. Who counted the mean
    # alone would pay for the whole tile: but what is verified is decided later, when the rows are known.
    cost = PassCost((1, 8, 9, 16), (0.010, 0.010, 0.014, 0.014), 0.0, 0.0)
    offered = Outlook(tuple(0.95**j for j in range(1, 9)), (*(1.0,) * 7, 0.3))
    drafting = {"draft": DraftCost(0.001, 0.0, 0.0, 0.0)}
    assert plan([Prospect("draft", offered, 8, forced=False)], cost, drafting, 0, 0.0).requested == (8,)


def test_prices_of_another_plan_change_the_rate_by_next_to_nothing() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        chosen, cost, drafting = small_case(chance, convex=True)
        found = plan(chosen, cost, drafting, 0, 0.0)
        near = Prices(found.prices.rate * chance.uniform(0.3, 3.0), chance.choice((0.0, 0.0005, 0.01)))
        other = plan(chosen, cost, drafting, 0, 0.0, near=near)
        assert other.rate == pytest.approx(found.rate, rel=0.02)


def is_allowed(
    chosen: Sequence[Prospect],
    lengths: Sequence[int],
    forced: Sequence[int],
    cost: PassCost,
    drafting: Mapping[str, DraftCost],
    spare: float,
) -> bool:
    _, plain_seconds = expected(chosen, forced, cost, drafting)
    tokens, seconds = expected(chosen, lengths, cost, drafting)
    return seconds <= plain_seconds + spare + 1e-9 and all(
        each.tpot_limit is None
        or plain_seconds > each.tpot_limit * before
        or seconds <= each.tpot_limit * one * (1.0 + 1e-6)
        for one, before, each in zip(tokens, expected(chosen, forced, cost, drafting)[0], chosen, strict=True)
    )


def everybody(spare: float, asked: Sequence[int]) -> float:
    """Whoever is asked may wait the same."""
    return spare


def test_a_cycle_is_too_long_only_for_those_whose_own_drafts_do_not_make_it_so() -> None:
    chosen, drafting = [one(0.9), one(0.9)], {"draft": LEARNED}

    def spare_of(asked: Sequence[int]) -> float:
        return min(LEARNED.seconds(1, length, length) + 0.02 if length else 0.0 for length in asked)

    assert min(plan(chosen, LINEAR, drafting, 0, 0.02, spare_of).requested) > 2
    assert plan([*chosen, replace(one(0.9), cap=0)], LINEAR, drafting, 0, 0.02, spare_of).requested == (0, 0, 0)


def test_of_what_the_bounds_allow_about_the_best_is_chosen() -> None:
    losses = []
    for seed in range(150):
        chance = random.Random(seed)
        chosen, cost, drafting = small_case(chance, convex=True)
        chosen = [replace(each, tpot_limit=chance.choice((None, None, 0.011, 0.013, 0.02))) for each in chosen]
        spare = chance.choice((math.inf, 0.01, 0.004, 0.002, 0.0, -0.001))
        cost = envelope(chosen, cost)
        # None of them is so cheap that it is asked up to the caps.
        drafting = {name: replace(each, call_seconds=0.001) for name, each in drafting.items()}
        forced = tuple(each.cap if each.forced else 0 for each in chosen)
        spans = [(each.cap,) if each.forced else range(each.cap + 1) for each in chosen]
        allowed = [
            each for each in itertools.product(*spans) if is_allowed(chosen, each, forced, cost, drafting, spare)
        ]
        best = max(rate(chosen, lengths, cost, drafting) for lengths in (forced, *allowed))
        found = plan(chosen, cost, drafting, 0, 0.0, partial(everybody, spare))
        assert found.requested in (forced, *allowed)
        losses.append(best / rate(chosen, found.requested, cost, drafting) - 1.0)
    assert sum(losses) / len(losses) < 0.01
    assert sum(loss <= 0.01 for loss in losses) >= 0.9 * len(losses)


def test_a_sequence_that_would_wait_too_long_is_drafted_for_so_that_it_need_not() -> None:
    # Its draft is kept 45 times of 100, which is not worth a row and a call; but while it is silent the other may not
    # have more than four rows.
    drafting = {"draft": DraftCost(0.001, 0.0, 0.0, 0.0), "ngram": DraftCost(0.001, 0.0, 0.0, 0.0)}
    waiting = Prospect("ngram", outlook(0.45, length=1), 1, False)
    silent = Prospect("none", outlook(0.45), 0, False)

    def asked(other: Prospect, limit: float | None) -> tuple[int, ...]:
        return plan([one(0.95), replace(other, tpot_limit=limit)], LINEAR, drafting, 0, 0.02).requested

    assert asked(waiting, None) == (12, 0)
    assert asked(silent, 0.0161) == (4, 0)
    length, lifted = asked(waiting, 0.0161)
    assert length > 4
    assert lifted == 1


def test_the_rate_is_that_of_the_lengths_where_no_drafter_is_free() -> None:
    for seed in range(100):
        chosen, cost, drafting = small_case(random.Random(seed), convex=True)
        drafting["ngram"] = DraftCost(0.001, 0.0002, 0.0, 0.0)
        drafting["draft"] = DraftCost(0.001, 0.0, 0.001, 0.0)
        found = plan(chosen, cost, drafting, 0, 0.0)
        assert found.rate == pytest.approx(rate(chosen, found.requested, cost, drafting))


def test_among_many_sequences_no_change_of_a_whole_group_is_better_by_half_a_percent() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        kinds = [(name, outlook(chance.uniform(0.3, 0.95), chance.uniform(0.5, 1.0))) for name in ("a", "a", "b", "b")]
        which = [chance.randrange(4) for _ in range(24)]
        chosen = [Prospect(kinds[i][0], kinds[i][1], 12, False) for i in which]
        drafting = {"a": LEARNED, "b": DraftCost(0.001, 0.0001, 0.0005, 0.0)}
        rises = sorted(chance.uniform(0.0002, 0.001) for _ in range(8))
        knots = (1, 24, 32, 48, 64, 96, 144, 272, 400)
        seconds = itertools.accumulate(
            (rise * (right - left) for rise, (left, right) in zip(rises, itertools.pairwise(knots), strict=True)),
            initial=0.02,
        )
        cost = PassCost(knots, tuple(seconds), 0.0, 0.0)
        found = plan(chosen, cost, drafting, 0, 0.0)
        for kind, length in itertools.product(range(4), range(13)):
            other = [length if i == kind else got for i, got in zip(which, found.requested, strict=True)]
            assert rate(chosen, other, cost, drafting) <= found.rate * 1.005


def test_a_drafter_that_cannot_pay_is_asked_for_nothing() -> None:
    # Each step takes 1.5 ms and each row 1 ms of a cycle of 10: half a token is not worth that.
    assert plan([one(0.2)], LINEAR, {"draft": LEARNED}, 0, 0.02).requested == (0,)
    assert plan([one(0.9)], LINEAR, {"draft": LEARNED}, 0, 0.02).requested[0] > 2


def test_a_drafter_that_costs_next_to_nothing_is_asked_up_to_the_cap_though_its_average_does_not_pay() -> None:
    found = plan([one(0.05, drafter="ngram")], LINEAR, {"ngram": NGRAM}, 0, 0.02)
    assert found.requested == (12,)
    assert found.rate == pytest.approx(100.0)


def test_a_drafter_without_a_cost_counts_as_free() -> None:
    assert plan([one(0.05, drafter="new")], LINEAR, {}, 0, 0.02).requested == (12,)


def test_a_pass_of_a_drafter_is_paid_for_once_for_all_its_sequences() -> None:
    # Among seven that stay plain one sequence does not pay for 3 ms a step; eight together do.
    cheap_rows = PassCost((1, 101), (0.010, 0.012), 0.0, 0.0)
    drafting = {"draft": DraftCost(0.0, 0.0, 0.003, 0.0)}
    plain = Prospect("none", Outlook((), ()), 0, False)
    drafted = outlook(0.5)
    speculating = Prospect("draft", drafted, 12, False)
    assert plan([speculating, *[plain] * 7], cheap_rows, drafting, 0, 0.02).requested == (0,) * 8
    together = plan([speculating] * 8, cheap_rows, drafting, 0, 0.02).requested
    assert together == (together[0],) * 8
    assert together[0] >= 1


def test_rows_that_are_seldom_offered_are_seldom_paid_for() -> None:
    # Half the blocks are silent and cost no row, so the others may be as long as if all spoke.
    drafting = {"draft": DraftCost(0.0, 0.0, 0.0002, 0.0)}
    spoken = plan([one(0.9)], LINEAR, drafting, 0, 0.02).requested[0]
    silent = plan([one(0.9, proposing=0.5)], LINEAR, drafting, 0, 0.02).requested[0]
    assert silent >= spoken - 1


def test_a_gain_below_the_margin_is_not_asked_for() -> None:
    # One draft that is kept 15 times of 100 costs 1 ms of 10 and some microseconds: it gains 4 %.
    drafting = {"draft": DraftCost(0.0001, 0.0, 0.0, 0.0)}
    prospect = Prospect("draft", Outlook((0.15,), (1.0,)), 1, False)
    dear = {"draft": DraftCost(0.00011, 0.0, 0.0, 0.0)}
    gain = 1.15 / 0.01111 * 0.010
    assert 1.02 < gain < 1.04
    assert plan([prospect], LINEAR, dear, 0, 0.02).requested == (1,)
    assert plan([prospect], LINEAR, dear, 0, 0.04).requested == (0,)
    assert plan([prospect], LINEAR, drafting, 0, 0.04).requested == (1,)


def test_what_everybody_may_wait_bounds_what_is_asked_for_and_what_is_left_of_it_is_told() -> None:
    chosen = [one(0.95), Prospect("none", Outlook((), ()), 0, False)]
    assert plan(chosen, LINEAR, {"draft": LEARNED}, 0, 0.02).requested[0] > 2
    plain_seconds = LINEAR.seconds(2, 2, 0)
    for spare in (-0.001, 0.0, 0.002, 0.005):
        found = plan(chosen, LINEAR, {"draft": LEARNED}, 0, 0.02, partial(everybody, spare))
        _, seconds = expected(chosen, found.requested, LINEAR, {"draft": LEARNED})
        assert found.spare_seconds == pytest.approx(plain_seconds + spare - seconds)
        assert seconds == plain_seconds or found.spare_seconds >= 0.0
        assert (found.requested[0] > 0) == (spare >= 0.005)


def test_an_objective_binds_unless_plain_breaks_it_too() -> None:
    def asked(limit: float) -> int:
        neighbour = Prospect("none", Outlook((), ()), 0, False, limit)
        return plan([one(0.95), neighbour], LINEAR, {"draft": LEARNED}, 0, 0.02).requested[0]

    assert asked(0.0105) == asked(1.0) > 2
    assert asked(0.0115) == 0
    assert 0 < asked(0.016) < asked(1.0)


def test_forced_caps_are_asked_for_at_any_price() -> None:
    forced = Prospect("draft", outlook(0.01), 9, forced=True)
    assert plan([forced, one(0.01)], LINEAR, {"draft": LEARNED}, 0, 0.02, partial(everybody, 0.0)).requested == (9, 0)
    assert plan([forced, one(0.9)], None, {}, 0, 0.02).requested == (9, 0)


def test_steps_that_a_forced_block_pays_for_are_free_to_the_others() -> None:
    forced = Prospect("draft", outlook(0.5), 8, forced=True)
    drafting = {"draft": DraftCost(0.001, 0.0, 0.004, 0.0)}
    cheap_rows = PassCost((1, 101), (0.010, 0.012), 0.0, 0.0)
    assert plan([one(0.5), one(0.0)], cheap_rows, drafting, 0, 0.02).requested == (0, 0)
    assert plan([one(0.5), forced], cheap_rows, drafting, 0, 0.02).requested[0] >= 3


def test_nobody_running_asks_for_nothing() -> None:
    assert plan([], LINEAR, {}, 0, 0.02).requested == ()

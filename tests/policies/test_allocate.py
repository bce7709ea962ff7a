"""`policies.allocate` against exhaustive search, and what it promises."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.allocate import Candidate, allocate
from policies.cycle_policy import PassCost, Survival

FLAT = PassCost((1, 16), (0.010, 0.010), 0.0, 0.0)
LINEAR = PassCost((1, 101), (0.010, 0.110), 0.0, 0.0)
"""10 ms and 1 ms for each row after the first."""
STEP = PassCost((1, 2, 3, 8), (0.010, 0.010, 0.016, 0.016), 0.0, 0.0)
"""Two rows are free, the third opens a tile that holds eight."""
SURE = tuple(0.95**j for j in range(1, 9))


def free(*survival: float) -> Candidate:
    return Candidate(len(survival), survival, forced=False)


@st.composite
def candidates(draw: st.DrawFn, most: int = 4) -> list[Candidate]:
    """A few curves, shared by some, in proposals of every length; with objectives that often bind."""
    curves = [
        tuple(itertools.accumulate(draw(st.lists(st.floats(0.01, 1.0), max_size=4)), lambda left, right: left * right))
        for _ in range(2)
    ]
    found = []
    for _ in range(draw(st.integers(1, most))):
        curve = draw(st.sampled_from(curves))
        found.append(
            Candidate(
                proposed=draw(st.integers(0, len(curve))),
                survival=curve,
                forced=draw(st.integers(0, 4)) == 0,
                tpot_limit=draw(st.sampled_from((None, None, 0.008, 0.011, 0.02))),
            )
        )
    return found


@st.composite
def costs(draw: st.DrawFn) -> PassCost:
    """Rising, flat and falling pieces, and jumps between neighbouring knots."""
    steps = st.sampled_from((0.0, 0.0, 0.0004, 0.001, 0.002, 0.006, -0.001))
    rises = draw(st.lists(steps, min_size=7, max_size=7))
    values = list(itertools.accumulate(rises, initial=0.010))
    knots = draw(st.sampled_from(((1, 2, 4, 6, 9, 12, 14, 17), (2, 3, 4, 5, 8, 9, 12, 13), (3, 4, 5, 6, 7, 8, 9, 16))))
    if values[-1] < values[-2]:
        values[-1] = values[-2]
    return PassCost(knots, tuple(values), draw(st.floats(0.0, 0.002)), draw(st.floats(0.0, 1e-6)))


def expected(chosen: list[Candidate], lengths: tuple[int, ...]) -> list[float]:
    return [1.0 + sum(one.survival[:length]) for one, length in zip(chosen, lengths, strict=True)]


def seconds_of(chosen: list[Candidate], cost: PassCost, lengths: tuple[int, ...]) -> float:
    return cost.seconds(len(chosen) + sum(lengths), len(chosen), 500)


def is_allowed(
    chosen: list[Candidate], cost: PassCost, lengths: tuple[int, ...], spare: float, draft_seconds: float
) -> bool:
    plain = tuple(one.proposed if one.forced else 0 for one in chosen)
    plain_seconds = seconds_of(chosen, cost, plain)
    seconds = seconds_of(chosen, cost, lengths) + draft_seconds
    return seconds <= (plain_seconds + spare) * (1 + 1e-9) and all(
        one.tpot_limit is None
        or plain_seconds > one.tpot_limit * before * (1 + 1e-9)
        or seconds <= one.tpot_limit * tokens * (1 + 1e-9)
        for one, tokens, before in zip(chosen, expected(chosen, lengths), expected(chosen, plain), strict=True)
    )


@settings(max_examples=400)
@given(
    candidates(),
    costs(),
    st.sampled_from((0.0, 0.02, 0.3)),
    st.sampled_from((0.0, 0.001, 0.003, 0.01, -0.0005, math.inf)),
    st.sampled_from((0.0, 0.7, 1.1, 1.5)),
    st.sampled_from((0.0, 0.001)),
)
def test_no_allowed_combination_is_better(
    chosen: list[Candidate], cost: PassCost, margin: float, spare: float, rate_over_plain: float, draft_seconds: float
) -> None:
    plain = tuple(one.proposed if one.forced else 0 for one in chosen)
    plain_tokens, plain_seconds = sum(expected(chosen, plain)), seconds_of(chosen, cost, plain)
    rate = rate_over_plain * plain_tokens / plain_seconds
    got = allocate(chosen, cost, 500, margin, spare, rate, draft_seconds)

    spans = [(one.proposed,) if one.forced else range(one.proposed + 1) for one in chosen]
    allowed = [
        lengths
        for lengths in itertools.product(*spans)
        if lengths == plain or is_allowed(chosen, cost, lengths, spare, draft_seconds)
    ]
    assert got in allowed

    def ratio(lengths: tuple[int, ...]) -> float:
        return sum(expected(chosen, lengths)) / (seconds_of(chosen, cost, lengths) + draft_seconds)

    def worth(lengths: tuple[int, ...]) -> float:
        price = max(rate, plain_tokens / plain_seconds)
        return sum(expected(chosen, lengths)) - price * seconds_of(chosen, cost, lengths)

    value = worth if rate else ratio
    best = max(map(value, allowed))
    gains = {lengths: ratio(lengths) / ratio(plain) for lengths in allowed if value(lengths) >= best - 1e-9 * abs(best)}
    if got == plain:
        assert value(plain) >= best - 1e-9 * abs(best) or min(gains.values()) <= (1 + margin) * (1 + 1e-9)
    else:
        assert value(got) >= best - 1e-9 * abs(best)
        assert ratio(got) > ratio(plain) * (1 + margin) * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), costs())
def test_among_many_sequences_the_result_keeps_its_bounds_and_no_single_row_more_or_less_is_better(
    seed: int, cost: PassCost
) -> None:
    chance = random.Random(seed)
    hazards = [chance.uniform(0.2, 0.98) for _ in range(5)]
    curves = [tuple(hazard**j for j in range(1, 13)) for hazard in hazards]
    chosen = [Candidate(chance.randrange(13), chance.choice(curves), False) for _ in range(24)]
    spare = chance.choice((0.001, 0.004, 0.1))
    got = allocate(chosen, cost, 500, 0.0, spare)
    plain = (0,) * 24
    assert got == plain or is_allowed(chosen, cost, got, spare, 0.0)
    rate = sum(expected(chosen, got)) / seconds_of(chosen, cost, got)
    for index, step in itertools.product(range(24), (-1, 1)):
        other = tuple(length + step * (at == index) for at, length in enumerate(got))
        if 0 <= other[index] <= chosen[index].proposed and is_allowed(chosen, cost, other, spare, 0.0):
            assert sum(expected(chosen, other)) / seconds_of(chosen, cost, other) <= rate * (1 + 1e-9)


def test_among_many_sequences_with_objectives_about_the_best_of_all_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = PassCost((1, 9, 16, 48, 144, 272), (0.0088, 0.0099, 0.0128, 0.0255, 0.06, 0.105), 0.00015, 7e-7)
    cases = []
    for seed in range(30):
        chance = random.Random(seed)
        curves = [tuple(hazard**j for j in range(1, 9)) for hazard in (chance.uniform(0.3, 0.98) for _ in range(8))]
        cases.append(
            [
                Candidate(chance.choice((1, 4, 8)), chance.choice(curves), False, chance.choice((None, 0.024, 0.03)))
                for _ in range(24)
            ]
        )

    def worth(chosen: list[Candidate]) -> float:
        lengths = allocate(chosen, cost, 500, 0.0, math.inf, 1500.0)
        assert lengths == (0,) * 24 or is_allowed(chosen, cost, lengths, math.inf, 0.0)
        return sum(expected(chosen, lengths)) - 1500.0 * seconds_of(chosen, cost, lengths)

    found = [worth(chosen) for chosen in cases]
    monkeypatch.setattr("policies.allocate_rows._FEW", 10**6)  # every level
    losses = [worth(chosen) - one for chosen, one in zip(cases, found, strict=True)]
    # In tokens, of 24 and more.
    assert sum(losses) / len(losses) < 0.25
    assert max(losses) < 1.0
    assert min(losses) > -1e-9


@given(candidates(), costs())
def test_a_dearer_row_never_buys_more_rows(chosen: list[Candidate], cost: PassCost) -> None:
    chosen = [Candidate(one.proposed, one.survival, one.forced) for one in chosen]
    values = tuple(itertools.accumulate(cost.knot_seconds, max))
    rising = PassCost(cost.token_knots, values, cost.sequence_seconds, cost.kv_token_seconds)
    dearer = PassCost(
        cost.token_knots,
        tuple(values[0] + 3 * (value - values[0]) for value in values),
        cost.sequence_seconds,
        cost.kv_token_seconds,
    )
    assert sum(allocate(chosen, dearer, 0, 0.0, math.inf)) <= sum(allocate(chosen, rising, 0, 0.0, math.inf))


def test_a_step_in_the_cost_is_looked_behind() -> None:
    # The second draft alone loses and the seventh wins: stopping at the first bad margin would miss it.
    survival = (0.9, 0.85, 0.8, 0.78, 0.76, 0.74, 0.72)
    rates = [(1 + sum(survival[:k])) / STEP.seconds(1 + k, 1, 0) for k in range(8)]
    assert rates[2] < rates[1] < rates[7]
    assert allocate([free(*survival)], STEP, 0, 0.02) == (7,)


def test_a_shape_that_is_cheaper_with_more_rows_is_filled() -> None:
    # 5 rows run in a bucket that takes 12 ms, 6 to 8 in one that takes 11.
    cost = PassCost((4, 5, 6, 8, 9), (0.010, 0.012, 0.011, 0.011, 0.020), 0.0, 0.0)
    assert allocate([Candidate(5, (0.5, 0.4, 0.3, 0.2, 0.1), False)], cost, 0, 0.0) == (5,)
    assert sum(allocate([free(0.3), free(0.2), free(0.1), free(0.05)], cost, 0, 0.0)) == 4


def test_plain_wins_unless_the_gain_exceeds_the_margin() -> None:
    chosen = [free(0.12)]
    assert (1.12 / LINEAR.seconds(2, 1, 0)) / (1 / LINEAR.seconds(1, 1, 0)) == pytest.approx(1.0182, abs=1e-4)
    assert allocate(chosen, LINEAR, 0, 0.01) == (1,)
    assert allocate(chosen, LINEAR, 0, 0.02) == (0,)


def test_a_lucky_cycle_verifies_more_at_the_mean_rate_than_for_its_own_ratio() -> None:
    # Alone, the ratio is best at 7 of 8. Where cycles are worth 2.5 tokens in 10 ms on average, the eighth row pays.
    chosen = [free(*(0.75**j for j in range(1, 9)))]
    own = allocate(chosen, LINEAR, 0, 0.0)
    assert allocate(chosen, LINEAR, 0, 0.0, rate=150.0) > own
    # And a poor one fewer: its own ratio counts the rows as cheap as it is slow itself.
    poor = [free(0.16)]
    assert allocate(poor, LINEAR, 0, 0.0) == (1,)
    assert allocate(poor, LINEAR, 0, 0.0, rate=200.0) == (0,)


def test_what_everybody_may_wait_bounds_what_is_verified() -> None:
    chosen = [free(*SURE), free()]
    assert allocate(chosen, LINEAR, 0, 0.02) == (8, 0)
    for spare, rows in ((0.0081, 8), (0.0051, 5), (0.0011, 1), (0.0009, 0), (0.0, 0), (-0.001, 0)):
        assert allocate(chosen, LINEAR, 0, 0.02, spare) == (rows, 0)


def test_drafts_of_a_sequence_that_would_wait_too_long_for_its_objective_are_verified_before_better_ones() -> None:
    # Its first draft makes the wait for two rows of the other allowed; by itself it would not be worth a row.
    slow = Candidate(1, (0.2,), False, tpot_limit=0.012)
    assert allocate([free(*SURE), free(0.2)], LINEAR, 0, 0.02) == (8, 0)
    assert allocate([free(*SURE), slow], LINEAR, 0, 0.02) == (2, 1)


def test_an_objective_binds_unless_plain_breaks_it_too() -> None:
    def limited(limit: float) -> tuple[int, ...]:
        return allocate([free(*SURE), Candidate(0, (), False, limit)], LINEAR, 0, 0.02)

    assert LINEAR.seconds(2, 2, 0) == 0.011
    assert limited(0.015) == (4, 0)
    assert limited(0.0112) == (0, 0)
    assert limited(0.0105) == (8, 0)


def test_drafting_that_is_spent_counts_against_the_bound_and_not_against_the_rows() -> None:
    chosen = [free(*SURE), free()]
    assert allocate(chosen, LINEAR, 0, 0.02, 0.0051) == (5, 0)
    assert allocate(chosen, LINEAR, 0, 0.02, 0.0051, draft_seconds=0.002) == (3, 0)


def test_forced_proposals_are_kept_whole_at_any_price_and_never_dropped() -> None:
    chosen = [Candidate(16, (), forced=True), free(0.01), free()]
    assert allocate(chosen, LINEAR, 0, 0.02, 0.0) == (16, 0, 0)


def test_without_a_cost_only_forced_proposals_are_verified() -> None:
    chosen = [free(1.0, 1.0), Candidate(3, (0.1,) * 3, forced=True)]
    assert allocate(chosen, None, 0, 0.02) == (0, 3)


def test_ties_go_to_the_smaller_total_and_to_the_earlier_candidate() -> None:
    assert allocate([free(0.0, 0.0)], FLAT, 0, 0.0) == (0,)
    # One more row is free and the next doubles the cycle: the first of two equals gets the free one.
    chosen = [free(0.4), free(0.4)]
    dear = PassCost((2, 3, 4), (0.010, 0.010, 0.020), 0.0, 0.0)
    assert allocate(chosen, dear, 0, 0.0) == (1, 0)


def test_a_curve_that_rises_along_the_block_is_read_as_flat() -> None:
    assert Survival(((), (0.3, 0.9, 0.2), (0.5, 0.5))).by_confidence == ((), (0.3, 0.3, 0.2), (0.5, 0.5))


def test_positions_beyond_the_curve_are_never_verified() -> None:
    assert allocate([Candidate(8, (0.9, 0.8), forced=False)], FLAT, 0, 0.0) == (2,)


def test_no_candidates_give_no_lengths() -> None:
    assert allocate([], LINEAR, 0, 0.02) == ()


def test_nothing_never_looks_better_than_itself_by_rounding() -> None:
    cost = PassCost((1, 8, 9, 16), (0.0065, 0.0065, 0.0073, 0.0073), 2e-05, 3.9e-08)
    poor = [Candidate(2, (0.01, 0.001), False), *(Candidate(1, (0.01, 0.001), False) for _ in range(7))]
    # 8 / seconds * seconds is less than 8 for these.
    assert allocate(poor, cost, 8, 0.0, math.inf, 1e4) == (0,) * 8

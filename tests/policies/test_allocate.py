"""`policies.allocate` against exhaustive search, and what it promises."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.allocate import Candidate, allocate
from policies.cycle_policy import PassCost

FLAT = PassCost((1, 16), (0.010, 0.010), 0.0, 0.0)
LINEAR = PassCost((1, 101), (0.010, 0.110), 0.0, 0.0)
"""10 ms and 1 ms for each row after the first."""
STEP = PassCost((1, 2, 3, 8), (0.010, 0.010, 0.016, 0.016), 0.0, 0.0)
"""Two rows are free, the third opens a tile that holds eight."""


def free(*survival: float) -> Candidate:
    return Candidate(len(survival), survival, forced=False)


@st.composite
def candidates(draw: st.DrawFn, most: int = 3) -> list[Candidate]:
    found = []
    for _ in range(draw(st.integers(1, most))):
        hazards = draw(st.lists(st.floats(0.01, 1.0), max_size=3))
        survival = tuple(itertools.accumulate(hazards, lambda left, right: left * right))
        forced = draw(st.booleans())
        found.append(Candidate(len(survival), survival, forced, mean_emitted=draw(st.sampled_from((1.0, 1.5, 3.0)))))
    return found


@st.composite
def costs(draw: st.DrawFn) -> PassCost:
    values = list(itertools.accumulate(draw(st.lists(st.floats(0.0, 0.01), min_size=5, max_size=5)), initial=0.01))
    return PassCost((1, 2, 4, 6, 9, 12), tuple(values), draw(st.floats(0.0, 0.002)), draw(st.floats(0.0, 1e-5)))


def expected(chosen: list[Candidate], lengths: tuple[int, ...]) -> list[float]:
    return [1.0 + sum(one.survival[:length]) for one, length in zip(chosen, lengths, strict=True)]


def rate(chosen: list[Candidate], cost: PassCost, kv_tokens: int, lengths: tuple[int, ...]) -> float:
    return sum(expected(chosen, lengths)) / cost.seconds(len(chosen) + sum(lengths), len(chosen), kv_tokens)


def is_allowed(
    chosen: list[Candidate],
    cost: PassCost,
    kv_tokens: int,
    lengths: tuple[int, ...],
    base: tuple[int, ...],
    most: float,
) -> bool:
    load = len(chosen)
    bound = most * cost.seconds(load + sum(base), load, kv_tokens)
    seconds = cost.seconds(load + sum(lengths), load, kv_tokens)
    slowest = min(max(now, one.mean_emitted) for now, one in zip(expected(chosen, lengths), chosen, strict=True))
    return seconds <= bound * slowest * (1 + 1e-9)


@given(candidates(), costs(), st.integers(0, 2000), st.sampled_from((0.0, 0.02, 0.3)), st.sampled_from((1.0, 1.1, 9.0)))
def test_the_best_allowed_total_is_taken_if_it_beats_plain_by_the_margin(
    chosen: list[Candidate], cost: PassCost, kv_tokens: int, margin: float, most: float
) -> None:
    base = tuple(one.proposed if one.forced else 0 for one in chosen)
    lengths = allocate(chosen, cost, kv_tokens, margin, most)
    plain = rate(chosen, cost, kv_tokens, base)
    assert all(got == one.proposed for one, got in zip(chosen, lengths, strict=True) if one.forced)
    assert all(0 <= got <= one.proposed for one, got in zip(chosen, lengths, strict=True))
    if lengths != base:
        assert rate(chosen, cost, kv_tokens, lengths) > plain * (1 + margin) * (1 - 1e-9)
        assert is_allowed(chosen, cost, kv_tokens, lengths, base, most)
    # Falling survivals make every prefix of the sorted marginals a set of lengths; these are all of them.
    order = sorted(
        ((gain, index) for index, one in enumerate(chosen) if not one.forced for gain in one.survival),
        key=lambda pair: -pair[0],
    )
    prefixes = [base]
    for _, index in order:
        prefixes.append(tuple(length + (at == index) for at, length in enumerate(prefixes[-1])))
    allowed = [rate(chosen, cost, kv_tokens, p) for p in prefixes if is_allowed(chosen, cost, kv_tokens, p, base, most)]
    best = max(allowed, default=0.0)
    got = rate(chosen, cost, kv_tokens, lengths)
    assert got >= best * (1 - 1e-9) or best <= plain * (1 + margin) * (1 + 1e-9)


@given(candidates(), costs(), st.integers(0, 2000))
def test_without_bounds_it_equals_a_search_over_every_combination(
    chosen: list[Candidate], cost: PassCost, kv_tokens: int
) -> None:
    spans = [(one.proposed,) if one.forced else range(one.proposed + 1) for one in chosen]
    best = max(rate(chosen, cost, kv_tokens, lengths) for lengths in itertools.product(*spans))
    got = rate(chosen, cost, kv_tokens, allocate(chosen, cost, kv_tokens, 0.0, math.inf))
    assert math.isclose(got, best, rel_tol=1e-9)


@given(candidates(), costs())
def test_a_dearer_row_never_buys_more_rows(chosen: list[Candidate], cost: PassCost) -> None:
    first = cost.knot_seconds[0]
    dearer = PassCost(
        cost.token_knots,
        tuple(first + 3 * (value - first) for value in cost.knot_seconds),
        cost.sequence_seconds,
        cost.kv_token_seconds,
    )
    assert sum(allocate(chosen, dearer, 0, 0.0, math.inf)) <= sum(allocate(chosen, cost, 0, 0.0, math.inf))


def test_a_step_in_the_cost_is_looked_behind() -> None:
    # The second draft alone loses and the seventh wins: stopping at the first bad margin would miss it.
    chosen = [free(0.9, 0.85, 0.8, 0.78, 0.76, 0.74, 0.72)]
    assert rate(chosen, STEP, 0, (2,)) < rate(chosen, STEP, 0, (1,)) < rate(chosen, STEP, 0, (7,))
    assert allocate(chosen, STEP, 0, 0.02, 1.1) == (7,)


def test_plain_wins_unless_the_gain_exceeds_the_margin() -> None:
    chosen = [free(0.12)]
    assert rate(chosen, LINEAR, 0, (1,)) / rate(chosen, LINEAR, 0, (0,)) == pytest.approx(1.0182, abs=1e-4)
    assert allocate(chosen, LINEAR, 0, 0.01, 1.1) == (1,)
    assert allocate(chosen, LINEAR, 0, 0.02, 1.1) == (0,)


def test_a_silent_neighbour_bounds_what_the_others_verify() -> None:
    chosen = [free(*(0.95**j for j in range(1, 9))), free()]
    bounded = allocate(chosen, LINEAR, 0, 0.02, 1.1)
    assert bounded == (1, 0)
    assert LINEAR.seconds(2 + sum(bounded), 2, 0) <= 1.1 * LINEAR.seconds(2, 2, 0)
    assert allocate(chosen, LINEAR, 0, 0.02, 9.0) == (8, 0)


def test_a_neighbour_that_gained_before_may_wait_in_its_silent_cycle() -> None:
    speculating = free(*(0.95**j for j in range(1, 9)))
    neighbour = Candidate(0, (), forced=False, mean_emitted=3.0)
    assert allocate([speculating, neighbour], LINEAR, 0, 0.02, 1.1) == (8, 0)


def test_forced_proposals_are_kept_whole_at_any_price_and_never_dropped() -> None:
    chosen = [Candidate(16, (), forced=True), free(0.01), free()]
    assert allocate(chosen, LINEAR, 0, 0.02, 1.0) == (16, 0, 0)


def test_without_a_cost_only_forced_proposals_are_verified() -> None:
    chosen = [free(1.0, 1.0), Candidate(3, (0.1,) * 3, forced=True)]
    assert allocate(chosen, None, 0, 0.02, 1.1) == (0, 3)


def test_ties_go_to_the_smaller_total_and_to_the_earlier_candidate() -> None:
    assert allocate([free(0.0, 0.0)], FLAT, 0, 0.0, 1.1) == (0,)
    # One more row is free and the next doubles the cycle: the first of two equals gets the free one.
    chosen = [free(0.4), free(0.4)]
    dear = PassCost((2, 3, 4), (0.010, 0.010, 0.020), 0.0, 0.0)
    assert allocate(chosen, dear, 0, 0.0, 1.1) == (1, 0)


def test_a_curve_that_rises_along_the_block_is_read_as_flat() -> None:
    assert allocate([free(0.3, 0.9)], LINEAR, 0, 0.0, 9.0) == allocate([free(0.3, 0.3)], LINEAR, 0, 0.0, 9.0)


def test_positions_beyond_the_curve_are_never_verified() -> None:
    assert allocate([Candidate(8, (0.9, 0.8), forced=False)], FLAT, 0, 0.0, 1.1) == (2,)


def test_no_candidates_give_no_lengths() -> None:
    assert allocate([], LINEAR, 0, 0.02, 1.1) == ()


@given(st.integers(1, 40), st.integers(0, 40), costs())
def test_the_walk_along_the_knots_repeats_the_cost_model(base: int, extra: int, cost: PassCost) -> None:
    # Equal gains of 1 make every total better than the one before exactly while seconds grow slower than tokens.
    chosen = [Candidate(extra, (1.0,) * extra, forced=False), *([Candidate(0, (), forced=False)] * (base - 1))]
    totals = range(extra + 1)
    best = max(totals, key=lambda total: ((base + total) / cost.seconds(base + total, base, 0), -total))
    got = sum(allocate(chosen, cost, 0, 0.0, math.inf))
    assert math.isclose(
        (base + got) / cost.seconds(base + got, base, 0), (base + best) / cost.seconds(base + best, base, 0)
    )

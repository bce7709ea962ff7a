"""The cost of drafting: its terms told apart, at the speed of today; and the solver below it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from policies.cycle_policy import DraftCost
from policies.stats import DraftTiming
from policies.types import Context
from tests.tuner.simulated_engine import cycle, sequence
from tuner.cost.draft_cost import DraftCosts, DraftFit
from tuner.cost.nonnegative import solve_nonnegative

LEARNED = DraftCost(1.0e-4, 5.0e-5, 4.5e-4, 3.0e-5)
CALLS = [(count, steps, count * steps) for count in (1, 2, 4, 8, 16) for steps in (1, 4, 8)]


def timings(cost: DraftCost, name: str = "draft") -> list[DraftTiming]:
    return [DraftTiming(name, *call, cost.seconds(*call)) for call in CALLS]


def test_timed_calls_tell_the_terms_apart() -> None:
    found = DraftFit(timings(LEARNED)).cost
    assert found is not None
    for call in ((1, 1, 1), (3, 5, 11), (16, 8, 90), (12, 12, 144)):
        assert found.seconds(*call) == pytest.approx(LEARNED.seconds(*call), rel=0.02)


def test_a_drafter_that_became_slower_is_slower_for_calls_that_are_not_made_too() -> None:
    fit = DraftFit(timings(LEARNED))
    chance = random.Random(1)
    for _ in range(300):
        call = (1, steps := chance.randint(1, 4), steps)
        fit.fold(*call, 1.5 * LEARNED.seconds(*call) * chance.lognormvariate(0.0, 0.05))
    fit.refit()
    assert fit.cost is not None
    assert fit.cost.seconds(1, 4, 4) == pytest.approx(1.5 * LEARNED.seconds(1, 4, 4), rel=0.02)
    assert fit.cost.seconds(8, 8, 64) == pytest.approx(1.5 * LEARNED.seconds(8, 8, 64), rel=0.1)


def test_calls_that_stall_move_little() -> None:
    fit = DraftFit(timings(LEARNED))
    chance = random.Random(2)
    for _ in range(1000):
        count, steps = chance.randint(1, 8), chance.randint(1, 8)
        seconds = LEARNED.seconds(count, steps, count * steps)
        fit.fold(count, steps, count * steps, seconds * (20.0 if chance.random() < 0.01 else 1.0))
    fit.refit()
    assert fit.cost is not None
    assert fit.cost.seconds(4, 4, 16) == pytest.approx(LEARNED.seconds(4, 4, 16), rel=0.03)


def test_a_drafter_that_was_never_timed_is_learned_from_cycles() -> None:
    costs = DraftCosts(())
    assert costs.costs == {}
    context = Context("m", "chat", "en")
    asked = sequence(context, proposed=4, verified=0)
    silent = sequence(context, proposed=0, verified=0, confidence=0)
    unasked = sequence(context, requested=0, proposed=0, verified=0, confidence=0)
    for _ in range(100):
        for each in ((asked,), (asked, asked), (asked, silent, unasked)):
            count = sum(one.requested > 0 for one in each)
            rows = sum(one.proposed for one in each)
            seconds = {"ngram": 2e-5 * count + 1e-6 * rows}
            costs.fold(
                cycle(load=len(each), tokens=3, kv_tokens=9, seconds=0.02, sequences=each, draft_seconds=seconds)
            )
    costs.refit()
    assert costs.costs["ngram"].seconds(2, 4, 8) == pytest.approx(4.8e-5, rel=0.05)


def test_a_drafter_that_was_loaded_again_begins_with_what_was_timed_then() -> None:
    costs = DraftCosts([*timings(LEARNED), *timings(LEARNED, "other")])
    twice = DraftCost(*(2.0 * getattr(LEARNED, name) for name in DraftCost.__slots__))
    costs.start(timings(twice))
    assert costs.costs["draft"].seconds(1, 4, 4) == pytest.approx(2.0 * LEARNED.seconds(1, 4, 4), rel=0.02)
    assert costs.costs["other"].seconds(1, 4, 4) == pytest.approx(LEARNED.seconds(1, 4, 4), rel=0.02)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 8))
def test_the_solver_agrees_with_scipy(seed: int, unknowns: int, spare: int) -> None:
    chance = random.Random(seed)
    rows = [[chance.gauss(0.0, 1.0) for _ in range(unknowns)] for _ in range(unknowns + spare)]
    values = [chance.gauss(0.0, 1.0) for _ in rows]
    matrix = [
        [sum(row[i] * row[j] for row in rows) + (1e-6 if i == j else 0.0) for j in range(unknowns)]
        for i in range(unknowns)
    ]
    vector = [sum(row[i] * value for row, value in zip(rows, values, strict=True)) for i in range(unknowns)]
    ridge = [[1e-3 if i == j else 0.0 for j in range(unknowns)] for i in range(unknowns)]
    expected, _ = nnls([*rows, *ridge], [*values, *([0.0] * unknowns)])
    assert solve_nonnegative(matrix, vector) == pytest.approx(list(expected), abs=1e-6)

"""The cost of a pass: recovered under noise, robust, positive; and the solver below it."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from policies.cycle_policy import PassCost
from policies.types import Context
from tests.tuner.simulated_engine import TRUE_COST, calibration, cycle, sequence
from tuner.cost_model import CostModel
from tuner.nonnegative import solve_nonnegative

GRID = [
    (load, rows * load, context * load)
    for load in (1, 2, 3, 6, 8, 12, 16)
    for rows in (1, 2, 4, 7, 9)
    for context in (100, 300)
    if rows * load <= 128
]


def worst_error(model: CostModel, truth: PassCost, scale: float = 1.0) -> float:
    cost = model.cost
    assert cost is not None
    return max(
        abs(cost.seconds(tokens, load, kv) / (scale * truth.seconds(tokens, load, kv)) - 1) for load, tokens, kv in GRID
    )


def live(
    model: CostModel,
    truth: PassCost,
    cycles: int,
    seed: int,
    noise: float = 0.0,
    stalls: float = 0.0,
    scale: float = 1.0,
) -> None:
    chance = random.Random(seed)
    for index in range(cycles):
        load = chance.randint(1, 16)
        tokens = load * chance.choice((1, 1, 2, 5, 9)) if load <= 14 else load
        kv_tokens = load * chance.randint(80, 400)
        seconds = truth.seconds(tokens, load, kv_tokens) * chance.lognormvariate(0.0, noise)
        if chance.random() < stalls:
            seconds *= 5.0
        model.fold(cycle(load=load, tokens=tokens, kv_tokens=kv_tokens, seconds=seconds))
        if index % 50 == 49:
            model.refit()


def test_the_calibration_alone_recovers_a_piecewise_cost() -> None:
    assert worst_error(CostModel(calibration()), TRUE_COST) < 0.02


def test_a_known_cost_is_recovered_from_noisy_cycles() -> None:
    wrong = PassCost((1, 272), (0.020, 0.100), 0.0002, 0.0)
    model = CostModel(calibration(wrong))
    assert worst_error(model, TRUE_COST) > 0.3
    live(model, TRUE_COST, cycles=6000, seed=1, noise=0.05)
    assert worst_error(model, TRUE_COST) < 0.06


def test_stalls_of_five_times_the_cost_move_little() -> None:
    model = CostModel(calibration())
    live(model, TRUE_COST, cycles=3000, seed=2, noise=0.03, stalls=0.02)
    # 2 % of cycles, clipped at 1.5x, may lift the mean by 1 %; unclipped they would lift it by 8 %.
    assert worst_error(model, TRUE_COST) < 0.04


def test_a_machine_that_slows_down_slows_down_for_shapes_not_in_use_too() -> None:
    model = CostModel(calibration())
    for index in range(3000):
        model.fold(
            cycle(load=1, tokens=1 + index % 3, kv_tokens=200, seconds=1.5 * TRUE_COST.seconds(1 + index % 3, 1, 200))
        )
        if index % 50 == 49:
            model.refit()
    assert worst_error(model, TRUE_COST, scale=1.5) < 0.06


def test_calibrated_shapes_do_not_fade_while_only_one_shape_is_served() -> None:
    model = CostModel(calibration(), half_life_cycles=500.0)
    for index in range(20_000):
        model.fold(cycle(load=1, tokens=1, kv_tokens=200, seconds=TRUE_COST.seconds(1, 1, 200)))
        if index % 500 == 499:
            model.refit()
    assert worst_error(model, TRUE_COST) < 0.03


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 16), st.integers(0, 16), st.integers(0, 4000), st.floats(1e-4, 10.0)),
        min_size=1,
        max_size=12,
    )
)
def test_predictions_are_positive_and_never_fall_with_tokens_whatever_was_measured(
    rows: list[tuple[int, int, int, float]],
) -> None:
    stats = [
        cycle(load=load, tokens=load * (1 + length), kv_tokens=kv, seconds=seconds)
        for load, length, kv, seconds in rows
    ]
    model = CostModel(stats)
    for one in stats:
        model.fold(one)
    cost = model.refit()
    assert cost is not None
    predicted = [cost.seconds(tokens, 4, 1000) for tokens in range(4, 320)]
    assert predicted[0] > 0.0
    assert all(later >= earlier for earlier, later in itertools.pairwise(predicted))


def test_the_error_is_that_of_predictions_made_before_learning() -> None:
    model = CostModel(calibration())
    assert model.error is None
    for _ in range(3):
        model.fold(cycle(load=1, tokens=1, kv_tokens=200, seconds=2.0 * TRUE_COST.seconds(1, 1, 200)))
    assert model.error == pytest.approx(1.0, abs=0.03)


def test_without_a_calibration_there_is_no_cost() -> None:
    model = CostModel(())
    live(model, TRUE_COST, cycles=100, seed=1)
    assert model.refit() is None
    assert model.error is None


def test_a_cycle_that_only_prefilled_teaches_nothing() -> None:
    model = CostModel(calibration())
    before = model.cost
    model.fold(cycle(load=0, tokens=0, kv_tokens=0, seconds=1.0))
    assert model.refit() == before
    assert model.error is None


def test_draft_seconds_are_a_mean_for_each_sequence_that_was_drafted_for() -> None:
    model = CostModel(())
    context = Context("m", "chat", "en")
    asked = sequence(context)
    unasked = sequence(context, requested=0, proposed=0, verified=0, confidence=0)
    for seconds in (0.002, 0.002, 0.0022):
        model.fold(
            cycle(
                load=3,
                tokens=19,
                kv_tokens=300,
                seconds=0.02,
                sequences=(asked, asked, unasked),
                draft_seconds={"ngram": seconds},
            )
        )
    assert model.draft_seconds["ngram"] == pytest.approx(0.001, rel=0.01)


@settings(deadline=None)
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

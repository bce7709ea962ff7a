"""From curve and cost to the schedule that people read."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cycle_policy import PassCost, Survival
from policies.types import MAX_BLOCK_LENGTH, Arm, LoadStep
from tests.tuner.simulated_engine import TRUE_COST
from tuner.acceptance import Curve
from tuner.schedule import block_lengths, merged, predicted_gain, representative_loads


def curve(*hazards: float, silent: float = 0.0) -> Curve:
    """One bucket in which position j is kept with hazard j, the last for the rest, and a share of silence."""
    padded = (*hazards, *((hazards[-1],) * (MAX_BLOCK_LENGTH - len(hazards))))
    survival = tuple(itertools.accumulate(padded, lambda left, right: left * right))
    unconditioned = tuple((1.0 - silent) * value for value in survival)
    emitted = tuple(itertools.accumulate(unconditioned, initial=1.0))
    return Curve(
        survival=Survival(((0.0,) * MAX_BLOCK_LENGTH, survival)),
        shares=(silent, 1.0 - silent),
        unconditioned=unconditioned,
        offered=(1.0 - silent,) * MAX_BLOCK_LENGTH,
        emitted=emitted,
        low=unconditioned,
        high=unconditioned,
        emitted_low=emitted,
        emitted_high=emitted,
        blocks=1000.0,
    )


def lengths_of(found: Curve, previous: Arm | None = None, cost: PassCost = TRUE_COST) -> tuple[int, ...]:
    return block_lengths(found, cost, 16, 200.0, 12, 0.02, previous)


def arm(lengths: tuple[int, ...]) -> Arm:
    return Arm("ngram", merged("ngram", lengths))


def rate(found: Curve, load: int, length: int) -> float:
    emitted = 1 + sum(found.unconditioned[:length])
    return load * emitted / TRUE_COST.seconds(load * (1 + length), load, 200 * load)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.02, 0.98), min_size=1, max_size=6))
def test_each_block_length_is_within_two_percent_of_the_best(hazards: list[float]) -> None:
    found = curve(*hazards)
    for load, length in enumerate(lengths_of(found), start=1):
        rates = [rate(found, load, k) for k in range(13)]
        if length:
            assert rates[length] >= 0.98 * max(rates)
            assert rates[length] > 1.02 * rates[0]
        else:
            assert max(rates) <= 1.02 * rates[0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.02, 0.98), min_size=1, max_size=6))
def test_a_schedule_that_was_just_made_stays(hazards: list[float]) -> None:
    found = curve(*hazards)
    lengths = lengths_of(found)
    assert lengths_of(found, arm(lengths)) == lengths


def test_silence_costs_no_rows() -> None:
    # Half the cycles are silent; the others keep 8 of 8. The rows of a block are paid for only when it is offered.
    assert lengths_of(curve(0.97, silent=0.5))[0] >= lengths_of(curve(0.6))[0]


def test_a_gain_between_half_the_margin_and_the_margin_leaves_things_as_they_are() -> None:
    # A row costs 3.6 % of a plain cycle at load 1.
    gains = {hazard: rate(curve(hazard), 1, 1) / rate(curve(hazard), 1, 0) for hazard in (0.045, 0.051, 0.065)}
    assert gains[0.045] < 1.01 < gains[0.051] < 1.02 < gains[0.065]
    off, on = arm((0,) * 16), arm((1, *((0,) * 15)))
    assert lengths_of(curve(0.051, 0.0), off)[0] == 0
    assert lengths_of(curve(0.051, 0.0), on)[0] == 1
    assert lengths_of(curve(0.045, 0.0), on)[0] == 0
    assert lengths_of(curve(0.065, 0.0), off)[0] == 1


def test_a_schedule_far_from_the_best_is_replaced_as_a_whole() -> None:
    found = curve(0.9)
    assert lengths_of(found, arm((1,) * 16)) == lengths_of(found)


def test_schedules_are_merged_into_steps_that_arms_read_back() -> None:
    lengths = (8, 8, 4, 4, 4, 0)
    steps = (LoadStep(1, 2, 8, "ngram"), LoadStep(3, 5, 4, "ngram"), LoadStep(6, 6, 0, "ngram"))
    assert merged("ngram", lengths) == steps
    assert tuple(arm(lengths).block_length(load) for load in range(1, 8)) == (*lengths, 0)


def test_the_predicted_gain_of_one_sure_bucket_is_that_of_its_best_length() -> None:
    found = curve(0.9)
    for load in (1, 4, 16):
        best = max(rate(found, load, k) for k in range(13)) / rate(found, load, 0)
        assert predicted_gain(found, TRUE_COST, load, 200.0, 12, 0.02) == pytest.approx(best, rel=0.02)


def test_the_predicted_gain_counts_silent_cycles_in_their_share() -> None:
    found = curve(0.95, silent=0.5)
    plain = TRUE_COST.seconds(1, 1, 200)
    emitted = 1 + sum(found.survival.of(1)[:12])
    expected = (1 + emitted) / (plain + TRUE_COST.seconds(13, 1, 200)) * plain
    assert predicted_gain(found, TRUE_COST, 1, 200.0, 12, 0.02) == pytest.approx(expected)


def test_what_does_not_pay_is_predicted_to_gain_nothing() -> None:
    assert predicted_gain(curve(0.01), TRUE_COST, 1, 200.0, 12, 0.02) == pytest.approx(1.0)


@pytest.mark.parametrize(("slots", "loads"), [(1, (1,)), (2, (1, 2)), (12, (1, 2, 4, 8, 12)), (16, (1, 2, 4, 8, 16))])
def test_predictions_are_made_for_doubling_loads(slots: int, loads: tuple[int, ...]) -> None:
    assert representative_loads(slots) == loads

"""Paired ratios against scipy's Student, percentiles against numpy."""

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tuner.paired import T_975, paired_ratio, percentile

NUMBERS = st.floats(0.001, 1000.0)


def test_the_table_is_students_t_to_three_digits() -> None:
    assert [round(float(stats.t.ppf(0.975, freedom)), 3) for freedom in range(1, len(T_975) + 1)] == list(T_975)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=len(T_975) + 1))
def test_the_interval_is_students_on_the_logarithms(pairs: list[tuple[float, float]]) -> None:
    above, below = zip(*pairs, strict=True)
    logarithms = numpy.log(numpy.array(above) / numpy.array(below))
    error = float(stats.sem(logarithms))
    half = float(stats.t.ppf(0.975, len(pairs) - 1)) * error
    interval = paired_ratio(above, below)
    assert math.log(interval.estimate) == pytest.approx(logarithms.mean(), abs=1e-9)
    assert math.log(interval.low) == pytest.approx(logarithms.mean() - half, abs=1e-3 * error + 1e-9)
    assert math.log(interval.high) == pytest.approx(logarithms.mean() + half, abs=1e-3 * error + 1e-9)


def test_beyond_the_table_the_interval_is_a_little_wide_and_never_narrow() -> None:
    above = [1.0 + 0.01 * index for index in range(60)]
    below = [1.0] * 60
    logarithms = numpy.log(numpy.array(above))
    half = float(stats.t.ppf(0.975, 59)) * float(stats.sem(logarithms))
    interval = paired_ratio(above, below)
    drawn = math.log(interval.high) - math.log(interval.estimate)
    assert half < drawn < 1.1 * half


def test_what_slows_a_whole_round_cancels() -> None:
    below = [10.0, 3.0, 70.0]
    interval = paired_ratio([1.5 * rate for rate in below], below)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((1.5, 1.5, 1.5))


def test_one_pair_gives_no_interval() -> None:
    interval = paired_ratio([3.0], [2.0])
    assert interval.estimate == pytest.approx(1.5)
    assert (interval.low, interval.high) == (0.0, math.inf)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(numpy.quantile(values, share)), rel=1e-9, abs=1e-6)

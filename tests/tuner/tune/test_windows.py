"""Windows of a candidate: how much time they take, and what they say."""

import random

import pytest

from policies.cycle_policy import Window
from policies.stats import CycleStats
from policies.types import Context
from tests.tuner.simulated_engine import TRUE_COST, cycle, sequence
from tuner.tune.windows import Comparison, Windows

CONTEXT = Context("m", "chat", "en")


def served(seconds: float, *, trial: int = 0, load: int = 1, emitted: int = 1, plain: bool = False) -> CycleStats:
    rows = [sequence(CONTEXT, key=key, accepted=emitted - 1, emitted=emitted) for key in range(load)]
    window = Window(1, plain=plain, trial=trial)
    return cycle(load=load, tokens=load, kv_tokens=100 * load, seconds=seconds, window=window, sequences=rows)


def plain_seconds(load: int) -> float:
    return TRUE_COST.seconds(load, load, 100 * load)


def test_a_candidate_serves_its_share_of_time_and_one_window_a_stretch() -> None:
    windows = Windows(2.0, 0.1, seed=1)
    now, trying, opened, before = 0.0, 0, 0, False
    windows.begin(now)
    starts = []
    for step in range(200_000):
        now = step * 0.01
        if windows.over(now):
            windows.begin(now)
            starts.append(now)
        serves = windows.trying(now)
        opened += serves and not before
        trying += serves
        before = serves
    assert trying / 200_000 == pytest.approx(0.1, rel=0.02)
    assert opened == pytest.approx(len(starts) + 1, abs=1)


def test_work_is_weighed_at_equal_load_so_that_other_traffic_in_the_window_is_no_gain() -> None:
    """The candidate's windows meet load 8 and production load 1; both emit two tokens a cycle at 1.5 times plain."""
    comparison = Comparison()
    for _ in range(6):
        windows = Windows(1.0, 0.5, seed=0)
        windows.begin(0.0)
        for _ in range(10):
            windows.fold(served(1.5 * plain_seconds(8), trial=3, load=8, emitted=2), 3, TRUE_COST)
            windows.fold(served(1.5 * plain_seconds(1), load=1, emitted=2), 3, TRUE_COST)
        assert windows.close(comparison)
    interval = comparison.interval()
    assert interval is not None
    assert interval.estimate == pytest.approx(1.0)


def test_a_stretch_of_an_idle_engine_says_nothing() -> None:
    windows, comparison = Windows(1.0, 0.5, seed=0), Comparison()
    windows.begin(0.0)
    for _ in range(50):
        windows.fold(served(0.01), 3, TRUE_COST)
    windows.fold(served(0.01, trial=3), 3, TRUE_COST)
    assert not windows.close(comparison)
    assert (comparison.windows, comparison.interval()) == (0, None)


def test_plain_cycles_first_ones_and_another_trials_count_for_neither_side() -> None:
    windows, comparison = Windows(1.0, 0.5, seed=0), Comparison()
    windows.begin(0.0)
    for _ in range(50):
        windows.fold(served(0.01, plain=True), 3, TRUE_COST)
        windows.fold(served(0.01, trial=2), 3, TRUE_COST)
    assert not windows.close(comparison)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """2,000 comparisons of 12 stretches; a stretch is fast or slow as a whole, and traffic differs between them."""
    source = random.Random(5)
    truth, covered = 1.06, 0
    for _ in range(2000):
        comparison = Comparison()
        for _ in range(12):
            windows = Windows(1.0, 0.5, seed=0)
            windows.begin(0.0)
            machine, load = source.lognormvariate(0.0, 0.2), source.choice((1, 2, 4))
            for trial, speed in ((1, truth), (0, 1.0)):
                slow = machine * source.lognormvariate(0.0, 0.05)  # what one window has for itself
                for _ in range(source.randrange(4, 12)):
                    seconds = plain_seconds(load) * slow / speed * source.lognormvariate(0.0, 0.05)
                    windows.fold(served(seconds, trial=trial, load=load), 1, TRUE_COST)
            windows.close(comparison)
        interval = comparison.interval()
        assert interval is not None
        covered += interval.low <= truth <= interval.high
    assert 0.93 <= covered / 2000 <= 0.975

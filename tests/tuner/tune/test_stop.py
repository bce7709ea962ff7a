"""The stop rule: it ends in bounds, goes on while it pays, and does not take noise for an improvement."""

import math
import random

import pytest

from tuner.tune.stop import LEAST, noise_of, should_stop, spread_of


def stops_after(draw: list[float], noise: float, patience: int) -> int:
    """Candidates until the rule stops; the length of `draw` if it never does."""
    return next((n for n in range(len(draw)) if should_stop(draw[:n], noise, patience)), len(draw))


def test_without_a_candidate_it_goes_on() -> None:
    assert not should_stop([], 0.01, 1)


@pytest.mark.parametrize("patience", [1, 5, 12])
def test_it_stops_when_nothing_beats_production_for_as_long_as_its_patience(patience: int) -> None:
    assert stops_after([0.97] * 100, 0.01, patience) == patience


def test_it_does_not_stop_while_the_best_improves_by_more_than_the_noise() -> None:
    rising = [1.0 + 0.03 * step for step in range(1, 60)]
    assert stops_after(rising, 0.02, 3) == len(rising)


def test_a_slow_climb_counts_once_it_adds_up() -> None:
    """Steps of a third of the noise: every fourth candidate is an improvement that counts."""
    rising = [1.0 + 0.01 * step for step in range(1, 60)]
    assert stops_after(rising, 0.03, 5) == len(rising)
    assert stops_after(rising, 0.03, 3) == 3


def test_an_improvement_gives_the_whole_patience_again() -> None:
    assert stops_after([0.9] * 8 + [1.2] + [1.1] * 50, 0.01, 10) == 8 + 1 + 10


def test_without_noise_the_least_improvement_still_holds() -> None:
    crumbs = [1.0 + 0.4 * LEAST] * 30
    assert stops_after(crumbs, 0.0, 6) == 6


def test_noise_alone_seldom_postpones_the_end_and_never_for_long() -> None:
    """Candidates that are all as good as production, with the noise that it is told."""
    source = random.Random(7)
    lengths = [stops_after([1.0 + source.gauss(0.0, 0.02) for _ in range(400)], 0.02, 10) for _ in range(1000)]
    assert max(lengths) < 80
    assert sum(lengths) / len(lengths) < 25


def test_the_noise_is_the_standard_error_of_a_trial() -> None:
    source = random.Random(3)
    ratios = [source.lognormvariate(0.0, 0.06) for _ in range(4000)]
    assert noise_of(ratios, 1) == pytest.approx(0.06, rel=0.05)
    assert noise_of(ratios, 4) == pytest.approx(0.03, rel=0.05)
    assert noise_of([], 3) == 0.0


def test_the_spread_of_the_rounds_is_the_standard_error_of_a_trial_whatever_the_trials_are_worth() -> None:
    source = random.Random(4)
    worth = [source.uniform(0.7, 1.4) for _ in range(1500)]
    trials = [[each * source.lognormvariate(0.0, 0.06) for _ in range(3)] for each in worth]
    assert spread_of(trials) == pytest.approx(0.06 / math.sqrt(3), rel=0.05)
    assert spread_of([]) == 0.0
    assert spread_of([[1.3]]) == 0.0

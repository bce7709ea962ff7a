"""Seconds per token: pooled over what is alike, by what was seen of each cell, and forgotten when things change."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from policies.types import PLAIN
from tests.tuner.fleet.pools.simulated_fleet import LOADS, NGRAM_RATES, table_seconds
from tuner.fleet.pools.change import changed_at
from tuner.fleet.pools.counts import Counts, Part, Sample
from tuner.fleet.pools.mixed_model import Term, fit, rising, within_noise
from tuner.fleet.pools.rows import ContextKey, Kind, rows_of
from tuner.fleet.pools.speeds import Speeds, speeds_of
from tuner.fleet.types import Lane

LANES = (Lane("p", "p", PLAIN, 0), Lane("n", "n", "ngram", 5))
BEGIN = 1_000_000.0


def sample(lane: str, route: str, load: float, seconds: float, at: float = BEGIN, language: str = "en") -> Sample:
    return Sample(lane, "m", route, language, Part.LEARNED, at, load, 100, 100 * seconds)


def read(counts: Counts, now: float, lanes: tuple[Lane, ...] = LANES) -> Speeds:
    return speeds_of(rows_of(counts, lanes, {lane.name: lane.name for lane in lanes}, now))


def gain_at(speeds: Speeds, route: str, place: int, language: str = "en") -> float:
    """Of ngram over plain, predicted, at ``2 ** place``."""
    context = speeds.rows.contexts.index(ContextKey("m", route, language))
    plain, ngram = (speeds.rows.kinds.index(kind) for kind in (Kind(PLAIN, 0), Kind("ngram", 5)))
    return math.exp(speeds.values[plain, context, place] - speeds.values[ngram, context, place])


def counts_of_table(requests: int, seed: int) -> Counts:
    draws = random.Random(seed)
    counts = Counts("r")
    for number in range(requests):
        route, lane, load = draws.choice(list(NGRAM_RATES)), draws.choice("pn"), draws.choice(LOADS)
        seconds = table_seconds(route, PLAIN if lane == "p" else "ngram", load) * draws.lognormvariate(0.0, 0.2)
        counts.add(sample(lane, route, load, seconds, BEGIN + number * 0.2))
    return counts


def test_the_table_of_the_design_is_found_again() -> None:
    speeds = read(counts_of_table(3200, 1), BEGIN + 640)
    for route in NGRAM_RATES:
        for load in LOADS:
            truth = table_seconds(route, PLAIN, load) / table_seconds(route, "ngram", load)
            assert gain_at(speeds, route, load.bit_length() - 1) == pytest.approx(truth, rel=0.1)
    assert speeds.noise == pytest.approx(0.2, rel=0.1)
    assert speeds.moved == ()


def test_seconds_per_token_are_a_ratio_of_sums_and_no_mean_of_ratios() -> None:
    counts = Counts("r")
    for _ in range(200):
        # 30 tokens in 0.1 s a token, 300 in 0.02: 9 s for 330, not 0.06 for each.
        counts.add(Sample("p", "m", "chat", "en", Part.LEARNED, BEGIN, 1.0, 30, 3.0))
        counts.add(Sample("p", "m", "chat", "en", Part.LEARNED, BEGIN, 1.0, 300, 6.0))
    assert math.exp(read(counts, BEGIN).values[0, 0, 0]) == pytest.approx(9.0 / 330, rel=0.01)


def test_a_new_language_of_a_route_starts_from_its_relatives() -> None:
    counts = Counts("r")
    for number in range(300):
        for lane, route, seconds in (
            ("p", "edit", 0.02),
            ("n", "edit", 0.007),
            ("p", "chat", 0.02),
            ("n", "chat", 0.03),
        ):
            counts.add(sample(lane, route, 1.0, seconds * (1.05 if number % 2 else 0.95)))
    counts.add(sample("p", "edit", 1.0, 0.02, language="da"))
    counts.add(sample("p", "chat", 1.0, 0.02, language="da"))
    speeds = read(counts, BEGIN)
    assert gain_at(speeds, "edit", 0, "da") > 1.5
    assert gain_at(speeds, "chat", 0, "da") < 1.0


def test_what_is_seen_once_is_drawn_to_what_is_alike_and_what_is_seen_often_is_not() -> None:
    def edit_gain(times: int) -> float:
        counts = Counts("r")
        for number in range(200):
            for route in ("a", "b", "c"):
                for lane in "pn":
                    counts.add(sample(lane, route, 1.0, 0.02 * (1.6 if number % 2 else 0.6)))
        for _ in range(times):
            counts.add(sample("p", "edit", 1.0, 0.02))
            counts.add(sample("n", "edit", 1.0, 0.005))
        return gain_at(read(counts, BEGIN), "edit", 0)

    once, often = edit_gain(1), edit_gain(100)
    assert 1.0 < once < 0.85 * often
    assert often == pytest.approx(4.0, rel=0.15)


def test_errors_fall_with_what_was_seen() -> None:
    few, many = read(counts_of_table(100, 2), BEGIN + 20), read(counts_of_table(3000, 2), BEGIN + 600)
    assert many.errors[:, :, 0].max() < 0.5 * few.errors[:, :, 0].min()
    assert max(few.new_errors) > few.errors[:, :, 0].max()


def test_nothing_counted_is_nothing_known_and_no_error() -> None:
    speeds = read(Counts("r"), BEGIN)
    assert speeds.values.shape[1] == 0
    assert np.all(np.diff(speeds.curves, axis=1) >= 0.0)


def test_beyond_the_loads_that_were_served_it_gets_slower() -> None:
    counts = Counts("r")
    for _ in range(50):
        counts.add(sample("p", "chat", 1.0, 0.02))
        counts.add(sample("p", "chat", 2.0, 0.021))
    curve = read(counts, BEGIN).curves[0]
    assert np.exp(curve[4] - curve[1]) > 2.0


def slowed(factor: Callable[[str, float], float], lanes: str = "pqn") -> Speeds:
    """Three lanes over an hour, `factor` of whose seconds is by lane and share of the time."""
    draws = random.Random(5)
    counts = Counts("r")
    replicas = (*LANES, Lane("q", "q", PLAIN, 0))
    for number in range(1800):
        lane, when = draws.choice(lanes), number / 1800
        seconds = 0.02 * factor(lane, when) * draws.lognormvariate(0.0, 0.1)
        counts.add(sample(lane, draws.choice(("chat", "edit")), draws.choice((1, 4)), seconds, BEGIN + 3600 * when))
    return read(counts, BEGIN + 3600, replicas)


def test_a_replica_that_gets_slow_is_told_from_its_kind() -> None:
    speeds = slowed(lambda lane, when: 1.6 if lane == "q" and when > 0.8 else 1.0)
    assert [moved.lane for moved in speeds.moved] == ["q"]
    assert speeds.moved[0].at == pytest.approx(BEGIN + 0.8 * 3600, abs=200)
    effects = dict(zip((lane.name for lane in speeds.rows.lanes), speeds.lane_effects, strict=True))
    assert effects["q"] - effects["p"] == pytest.approx(math.log(1.6), abs=0.1)


def test_noise_is_no_change() -> None:
    assert slowed(lambda lane, when: 1.0).moved == ()


def test_a_context_whose_drafts_are_kept_no_more_is_learned_again() -> None:
    draws = random.Random(6)
    counts = Counts("r")
    for number in range(2400):
        lane, route = draws.choice("pn"), draws.choice(("chat", "edit", "write"))
        slow = 3.0 if (lane, route) == ("n", "edit") and number > 2000 else 1.0
        counts.add(sample(lane, route, 1.0, 0.02 * slow * draws.lognormvariate(0.0, 0.1), BEGIN + number))
    speeds = read(counts, BEGIN + 2400)
    assert [(moved.lane, moved.context and moved.context.route) for moved in speeds.moved] == [("", "edit")]
    assert gain_at(speeds, "edit", 0) == pytest.approx(1 / 3, rel=0.15)
    assert gain_at(speeds, "write", 0) == pytest.approx(1.0, rel=0.1)


def test_a_series_without_a_step_did_not_change() -> None:
    draws = np.random.default_rng(3)
    alarms = 0
    for _ in range(300):
        weights = draws.integers(1, 30, 60).astype(float)
        alarms += changed_at(draws.normal(0.0, 0.2 / np.sqrt(weights)), weights, 0.04) is not None
    assert alarms <= 3


def test_the_last_of_several_steps_is_found() -> None:
    draws = np.random.default_rng(4)
    means = np.concatenate([np.full(20, 0.0), np.full(20, 0.5), np.full(20, -0.3)]) + draws.normal(0.0, 0.03, 60)
    assert changed_at(means, np.full(60, 20.0), 0.04) == 40


def test_rising_is_the_nearest_that_never_falls() -> None:
    assert rising(np.array([1.0, 3.0, 2.0, 4.0]), np.array([1.0, 1.0, 3.0, 1.0])).tolist() == [1.0, 2.25, 2.25, 4.0]


def test_effects_are_residual_means_drawn_to_nothing() -> None:
    values, weights = np.array([1.0, -1.0]), np.array([9.0, 9.0])
    found = fit(values, weights, [Term(np.array([0, 1]), 3, 1.0)], 1.0)
    assert found.effects[0][2] == 0.0
    assert found.effects[0][0] == pytest.approx(9.0 / (9.0 + found.kappas[0]), rel=1e-6)


def test_noise_is_what_requests_of_one_cell_vary_by() -> None:
    logs = np.array([2.0, 5.0])
    squares = np.array([2.0 + 2 * 0.01, 25.0])
    assert within_noise(np.array([2.0, 1.0]), logs, squares) == pytest.approx(0.02)
    assert within_noise(np.array([1.0]), np.array([1.0]), np.array([1.0])) == 0.0

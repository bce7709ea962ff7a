"""Gains over plain: at equal load, with intervals that hold what they say, and unknown where nobody can know."""

import math
import random
from dataclasses import dataclass

import pytest

from policies.types import PLAIN, Interval
from tests.tuner.fleet.pools.simulated_fleet import table_seconds
from tuner.fleet.pools.counts import Counts, Part, Sample
from tuner.fleet.pools.gain import Gains
from tuner.fleet.pools.rows import HALF_LIFE_SECONDS, rows_of
from tuner.fleet.pools.speeds import speeds_of
from tuner.fleet.types import Lane

BEGIN = 1_000_000.0
LANES = (Lane("p", "p", PLAIN, 0), Lane("n", "n", "ngram", 5))
SERVED = (Part.LEARNED,)


@dataclass(frozen=True)
class Experiment:
    """Traffic of one route whose load swings, on machines that are slow and fast together by the minute."""

    requests: int
    seconds: float
    share: float
    """Held plain."""
    route: str = "edit"
    wandering: float = 0.05

    def run(self, seed: int) -> tuple[Interval | None, float]:
        """(the gain as measured, as it truly was)."""
        draws = random.Random(seed)
        counts = Counts("r")
        slow, minute = 0.0, -1
        plain_loads: dict[int, float] = {}
        served: list[tuple[int, float, float]] = []
        for number in range(self.requests):
            at = BEGIN + self.seconds * number / self.requests
            while minute < int((at - BEGIN) / 3):
                slow, minute = 0.8 * slow + draws.gauss(0.0, self.wandering), minute + 1
            held = draws.random() < self.share
            # The plain pool, which few use, is less loaded.
            load = max(1.0, (3 + 2.5 * math.sin(at / 60)) * (0.8 if held else 1.2) * draws.lognormvariate(0.0, 0.3))
            tokens = max(1, round(draws.expovariate(1 / 120)))
            drafter = PLAIN if held else "ngram"
            seconds = tokens * table_seconds(self.route, drafter, load)
            seconds *= math.exp(slow) * draws.lognormvariate(-0.02, 0.2)
            part, chance = (Part.HELD, self.share) if held else (Part.LEARNED, 1.0 - self.share)
            lane = "p" if held else "n"
            counts.add(Sample(lane, "m", self.route, "en", part, at, load, tokens, seconds, chance))
            place = round(math.log2(load))
            if held:
                age = BEGIN + self.seconds - at
                plain_loads[place] = plain_loads.get(place, 0.0) + 0.5 ** (age / HALF_LIFE_SECONDS)
            else:
                plain = table_seconds(self.route, PLAIN, load)
                served.append((place, tokens * plain, tokens * table_seconds(self.route, drafter, load)))
        # At the loads that are compared. A request's own luck is no part of the truth.
        compared = [one for one in served if plain_loads.get(one[0], 0.0) >= 8.0]
        truth = sum(plain for _, plain, _ in compared) / sum(seconds for _, _, seconds in compared)
        return gain_of(counts, BEGIN + self.seconds), truth


def gain_of(counts: Counts, now: float, lanes: tuple[Lane, ...] = LANES) -> Interval | None:
    rows = rows_of(counts, lanes, {lane.name: lane.name for lane in lanes}, now)
    gains = Gains(speeds_of(rows))
    return gains.of(range(len(rows.contexts)), SERVED)


def coverage(experiments: list[Experiment], count: int) -> tuple[float, float]:
    """(share of intervals that hold the truth, mean of ln(estimate / truth))."""
    held, off, known = 0, 0.0, 0
    for seed in range(count):
        found, truth = experiments[seed % len(experiments)].run(seed)
        if found is not None:
            known += 1
            held += found.low <= truth <= found.high
            off += math.log(found.estimate / truth)
    assert known == count
    return held / known, off / known


EXPERIMENTS = [Experiment(500, 240.0, 0.2), Experiment(900, 600.0, 0.1), Experiment(300, 120.0, 0.2, "chat")]


def test_intervals_hold_the_truth_in_sixty_experiments() -> None:
    held, off = coverage(EXPERIMENTS, 60)
    assert held >= 0.87  # of 60 with a chance of 0.95 fewer are held once in a hundred times
    assert abs(off) < 0.02


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_intervals_hold_the_truth_in_93_to_98_of_100_over_a_thousand_experiments() -> None:
    held, off = coverage(EXPERIMENTS, 1000)
    assert 0.93 <= held <= 0.98  # with few requests at a load the jackknife errs to the wide side
    assert abs(off) < 0.01


def steady(counts: Counts, lane: str, part: Part, seconds: float, requests: int, load: float = 1.0) -> None:
    draws = random.Random(f"{lane}{part}{load}")
    for number in range(requests):
        took = 100 * seconds * draws.lognormvariate(0.0, 0.05)
        counts.add(Sample(lane, "m", "chat", "en", part, BEGIN + number, load, 100, took))


def test_without_a_plain_lane_a_gain_is_unknown() -> None:
    counts = Counts("r")
    steady(counts, "n", Part.LEARNED, 0.01, 300)
    assert gain_of(counts, BEGIN + 300, LANES[1:]) is None


def test_without_plain_requests_a_gain_is_unknown() -> None:
    counts = Counts("r")
    steady(counts, "n", Part.LEARNED, 0.01, 300)
    assert gain_of(counts, BEGIN + 300) is None


def test_a_few_requests_say_nothing_yet() -> None:
    counts = Counts("r")
    steady(counts, "n", Part.LEARNED, 0.01, 300)
    steady(counts, "p", Part.HELD, 0.02, 5)
    assert gain_of(counts, BEGIN + 300) is None


def test_no_traffic_is_unknown_and_no_failure() -> None:
    assert gain_of(Counts("r"), BEGIN) is None


def test_a_gain_is_compared_at_equal_load() -> None:
    counts = Counts("r")
    for load, plain, served in ((1.0, 0.01, 0.01), (8.0, 0.02, 0.02)):
        # Plain is met at low load only now and then; in the mean it is much faster than what is served.
        steady(counts, "p", Part.HELD, plain, 200 if load == 1.0 else 20, load)
        steady(counts, "n", Part.LEARNED, served, 20 if load == 1.0 else 200, load)
    found = gain_of(counts, BEGIN + 200)
    assert found is not None
    assert found.low < 1.0 < found.high
    assert found.estimate == pytest.approx(1.0, abs=0.03)


def test_loads_at_which_there_was_no_plain_are_left_out() -> None:
    counts = Counts("r")
    steady(counts, "p", Part.HELD, 0.02, 100)
    steady(counts, "n", Part.LEARNED, 0.01, 100)
    steady(counts, "n", Part.LEARNED, 0.05, 20, 16.0)
    found = gain_of(counts, BEGIN + 100)
    assert found is not None
    assert found.estimate == pytest.approx(2.0, rel=0.05)
    # When most is at such loads, the rest does not speak for it.
    steady(counts, "n", Part.LEARNED, 0.05, 400, 16.0)
    assert gain_of(counts, BEGIN + 400) is None


def test_what_is_plain_by_its_nature_is_no_baseline() -> None:
    counts = Counts("r")
    steady(counts, "n", Part.LEARNED, 0.01, 100)
    steady(counts, "p", Part.OTHER, 0.05, 100)
    assert gain_of(counts, BEGIN + 100) is None


def test_draws_of_different_chances_are_weighed_by_them() -> None:
    counts = Counts("r")
    for number in range(600):
        # Both get twice as slow in the middle, when the share that is held falls from a half to a tenth.
        late = number >= 300
        slow = 0.02 if late else 0.01
        chance = 0.1 if late else 0.5
        held = number % 10 == 0 if late else number % 2 == 0
        part = Part.HELD if held else Part.LEARNED
        counts.add(
            Sample(
                "p" if held else "n",
                "m",
                "chat",
                "en",
                part,
                BEGIN + number,
                1.0,
                100,
                100 * slow * (1.05 if number % 4 < 2 else 0.95),
                chance if held else 1.0 - chance,
            )
        )
    found = gain_of(counts, BEGIN + 600)
    assert found is not None
    # Unweighed, plain would be 0.0117 where what is served is 0.0164, a gain of 0.71. What is served is not weighed.
    assert 0.88 < found.estimate < 1.05

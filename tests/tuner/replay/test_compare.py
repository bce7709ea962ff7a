"""Regret, recovery, intervals and bars, on runs whose answers are known."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from policies.types import Interval
from tests.tuner.replay.small_traces import small_trace
from tuner.replay.compare import (
    Run,
    arrival_regret,
    make_run,
    mean_interval,
    requests_until_recovered,
    share_interval,
)
from tuner.replay.fixed_play import FixedRuns
from tuner.replay.played import account
from tuner.replay.plot import OTHER_COLOUR, OURS_COLOUR, plot
from tuner.replay.reblock import Reblocked
from tuner.replay.run import COPYING_ORACLE, GOODPUT, GOODPUT_TABLE, ORACLE, OURS, STATIC_TABLE, UNBOUND, Done, Job
from tuner.replay.scenarios import shipped_scenarios
from tuner.replay.summary import Comparison, bars, minutes_bar

BOOK = shipped_scenarios()


def run_of(
    scenario: str,
    controller: str,
    seed: int,
    regret: float,
    window: float = -5.0,
    neighbour: float = 1.0,
    request_seconds: Sequence[float] = (),
) -> Run:
    return Run(
        scenario=scenario,
        controller=controller,
        seed=seed,
        regret_percent=regret,
        whole_regret_percent=regret,
        worst_window_percent=window,
        worst_neighbour=neighbour,
        seconds=100.0 + regret,
        plain_seconds=200.0,
        counted_seconds=100.0 + regret,
        shadow_seconds=0.0,
        cycles=10,
        played_seconds=0.0,
        request_seconds=np.array(request_seconds, dtype=float),
    )


def done(scenario: str, seed: int, runs: Sequence[Run], changes: tuple[int, ...] = (), requests: int = 1200) -> Done:
    return Done(Job(scenario, seed, None, (), True), tuple(runs), (), changes, requests)


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {bar.name: bar.verdict for bar in bars(comparison, BOOK)}


def test_regret_is_time_over_the_oracles_after_the_first_tenth_of_the_requests() -> None:
    trace = small_trace(1)
    runs = FixedRuns(Reblocked(trace))
    oracle, other = account(trace, runs.play("learned", 4)), account(trace, runs.play("none", 0))
    run = make_run("s", "plain", 1, other, oracle, 0.0, learns=True)
    assert run.regret_percent == pytest.approx(
        100.0 * (other.request_seconds[6:].sum() / oracle.request_seconds[6:].sum() - 1.0)
    )
    assert run.whole_regret_percent == pytest.approx(100.0 * (other.seconds / oracle.seconds - 1.0))
    assert run.regret_percent != pytest.approx(run.whole_regret_percent)
    assert make_run("s", "oracle", 1, oracle, oracle, 0.0, learns=True).regret_percent == 0.0


def test_intervals_are_students_and_wilsons() -> None:
    interval = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((2.5, 0.446, 4.554), abs=0.02)
    assert mean_interval([1.0]) == Interval(1.0, -np.inf, np.inf)
    share = share_interval(20, 20)
    assert (share.estimate, share.low, share.high) == pytest.approx((1.0, 0.839, 1.0), abs=0.001)


@pytest.mark.parametrize(("lost_for", "expected"), [(0, 25), (40, 64), (120, 144)])
def test_recovery_counts_requests_until_the_window_of_25_is_within_2_percent(lost_for: int, expected: int) -> None:
    oracle = np.ones(400)
    run = oracle.copy()
    run[100 : 100 + lost_for] *= 1.5
    assert requests_until_recovered([run], [oracle], 100, 400) == pytest.approx(expected, abs=1)


def test_what_never_recovers_took_all_the_requests_there_were() -> None:
    oracle = np.ones(400)
    assert requests_until_recovered([oracle * 1.1], [oracle], 100, 400) == 300


def test_a_lucky_window_is_no_recovery() -> None:
    oracle = np.ones(400)
    run = oracle * 1.1
    run[150:180] = 1.0
    assert requests_until_recovered([run], [oracle], 100, 400) == 300


def test_regret_of_a_new_context_counts_its_own_requests_only() -> None:
    oracle, run = np.ones(100), np.ones(100)
    run[[10, 20]] = 2.0
    run[[30, 40, 50]] = 1.1
    run[60:] = 9.0
    assert arrival_regret(run, oracle, [10, 20, 30, 40, 50], 2, 3) == pytest.approx(10.0)


def test_every_scenario_has_its_bar_and_a_missed_one_is_told() -> None:
    comparison = Comparison(
        [
            done(scenario, seed, [run_of(scenario, ORACLE, seed, 0.0), run_of(scenario, OURS, seed, regret)])
            for scenario, regret in (("stationary-cpu", 1.5), ("load-sine", 1.5), ("bursty", 2.5))
            for seed in range(5)
        ]
    )
    found = verdicts(comparison)
    assert found["stationary-cpu: regret in percent"] == "fails"
    assert found["load-sine: regret in percent"] == "holds"
    assert found["bursty: regret in percent"] == "fails"


def test_the_table_and_goodput_are_compared_on_mixed_traffic() -> None:
    runs = [
        [
            run_of("mixed", ORACLE, seed, 0.0),
            run_of("mixed", OURS, seed, 1.0),
            run_of("mixed", STATIC_TABLE, seed, 5.0),
            run_of("mixed", GOODPUT, seed, 5.0),
            run_of("mixed", GOODPUT_TABLE, seed, 9.0),
        ]
        for seed in range(4)
    ]
    found = verdicts(Comparison([done("mixed", seed, rows) for seed, rows in enumerate(runs)]))
    assert found[f"mixed: percent faster than {STATIC_TABLE}"] == "holds"
    assert found[f"mixed: percent faster than {GOODPUT}"] == "fails"
    assert found[f"mixed: percent faster than {GOODPUT_TABLE}"] == "holds"


def test_the_closest_baseline_is_the_bar_on_the_mean_and_the_worst_one_on_each_scenario() -> None:
    known = {ORACLE: 0.0, COPYING_ORACLE: -1.0}
    table = {
        "bursty": {OURS: 1.0, UNBOUND: -3.0, "a": 3.0, "b": 9.0} | known,
        "load-sine": {OURS: 2.0, UNBOUND: -2.0, "a": 0.5, "b": 9.0} | known,
    }
    comparison = Comparison(
        [
            done(scenario, seed, [run_of(scenario, name, seed, regret) for name, regret in regrets.items()])
            for scenario, regrets in table.items()
            for seed in range(3)
        ]
    )
    found = {bar.name: bar for bar in bars(comparison, BOOK)}
    closest = found["mean over scenarios: points of regret below the best baseline, a"]
    assert closest.measured is not None
    assert closest.measured.estimate == pytest.approx(0.25)
    assert closest.verdict == "holds"
    assert found["points of regret above a baseline, at the worst: a on load-sine"].verdict == "fails"


def test_time_over_the_copying_oracle_is_told_next_to_the_regret() -> None:
    table = {ORACLE: 0.0, COPYING_ORACLE: -5.0, "a": 4.5}
    runs = {
        name: [
            done(name, seed, [run_of(name, controller, seed, regret + seed) for controller, regret in table.items()])
            for seed in range(2)
        ]
        for name in ("bursty", "mixed")
    }
    comparison = Comparison([each for by_seed in runs.values() for each in by_seed])
    for cell in (comparison.cell("bursty", "a"), comparison.overall("a")):
        assert cell is not None
        assert cell.over_copying is not None
        assert cell.over_copying.estimate == pytest.approx(100.0 * (104.5 / 95.0 + 105.5 / 96.0 - 2.0) / 2.0)
        assert cell.regret.estimate == pytest.approx(5.0)
    alone = Comparison([done("bursty", 0, [run_of("bursty", ORACLE, 0, 0.0), run_of("bursty", "a", 0, 1.0)])])
    cell = alone.cell("bursty", "a")
    assert cell is not None
    assert cell.over_copying is None


def test_shares_of_runs_that_broke_a_bound_are_told_of_everybody() -> None:
    rows = [
        [
            run_of("bursty", OURS, seed, 1.0, window=3.0 if seed == 0 else 0.0, neighbour=1.2 if seed < 3 else 1.0),
            run_of("bursty", "a", seed, 5.0, window=8.0),
        ]
        for seed in range(20)
    ]
    comparison = Comparison([done("bursty", seed, runs) for seed, runs in enumerate(rows)])
    ours, other = comparison.cell("bursty", OURS), comparison.cell("bursty", "a")
    assert ours is not None
    assert other is not None
    assert (ours.window_share, ours.neighbour_share, ours.worst_window_percent) == (0.05, 0.15, 3.0)
    assert (other.window_share, other.neighbour_share) == (1.0, 0.0)
    found = verdicts(comparison)
    slower = "share of runs without a window of 500 requests more than 2 % slower than plain"
    assert found[slower] == "misses, within its interval"
    assert found["share of runs in which no sequence was slowed by its neighbours beyond 1.10"] == "fails"


def test_recovery_from_each_change_has_a_bar() -> None:
    oracle = np.ones(1200)
    slow = oracle.copy()
    slow[600:800] *= 1.3
    quick = oracle.copy()
    quick[600:610] *= 1.3
    for mine, verdict in ((slow, "fails"), (quick, "holds")):
        comparison = Comparison(
            [
                done(
                    "drafter-regression",
                    seed,
                    [
                        run_of("drafter-regression", ORACLE, seed, 0.0, request_seconds=oracle.tolist()),
                        run_of("drafter-regression", OURS, seed, 1.0, request_seconds=mine.tolist()),
                    ],
                    changes=(600,),
                )
                for seed in range(3)
            ]
        )
        name = "drafter-regression: requests from 600 on until within 2 % of the oracle"
        assert verdicts(comparison)[name] == verdict


def test_a_single_seed_breaks_no_bar_of_recovery_since_its_spread_is_unknown() -> None:
    slow = np.ones(1200)
    slow[480:800] *= 1.3
    runs = {ORACLE: np.ones(1200), OURS: slow}
    rows = [run_of("new-language", name, 0, 0.0, request_seconds=runs[name].tolist()) for name in runs]
    comparison = Comparison([done("new-language", 0, rows, changes=(480,))])
    (bar,) = [bar for bar in bars(comparison, BOOK) if "from 480 on" in bar.name]
    assert bar.measured is not None
    assert bar.measured.estimate > bar.bar
    assert bar.verdict != "fails"
    assert f": {bar.measured.estimate:.2f}, bar at most 50" in str(bar)


def test_no_mean_over_scenarios_is_judged_where_there_is_one() -> None:
    rows = [run_of("bursty", name, 0, regret) for name, regret in {ORACLE: 0.0, OURS: 1.0, "a": 3.0}.items()]
    names = verdicts(Comparison([done("bursty", 0, rows)]))
    assert [name for name in names if "mean over scenarios" in name] == []
    assert "points of regret above a baseline, at the worst: a on bursty" in names


def test_an_arrival_is_a_change_as_well() -> None:
    seconds = np.ones(1200).tolist()
    jobs = [
        done(
            "new-language",
            seed,
            [run_of("new-language", name, seed, 0.0, request_seconds=seconds) for name in (ORACLE, OURS)],
            changes=(480,),
        )
        for seed in range(2)
    ]
    found = verdicts(Comparison(jobs))
    assert found["new-language: requests from 480 on until within 2 % of the oracle"] == "holds"
    assert "new-language: regret in percent of the new context after 10 requests" in found


def test_all_of_it_has_a_quarter_of_an_hour() -> None:
    assert [minutes_bar(seconds).verdict for seconds in (899.0, 901.0)] == ["holds", "fails"]


def test_bars_in_the_picture_are_as_long_as_the_regret(tmp_path: Path) -> None:
    runs = [run_of("bursty", ORACLE, 1, 0.0), run_of("bursty", OURS, 1, 5.0), run_of("bursty", "a", 1, 20.0)]
    plot(Comparison([done("bursty", 1, runs)]), tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    ours, other = ((pixels == ImageColor.getrgb(colour)).all(axis=2).sum() for colour in (OURS_COLOUR, OTHER_COLOUR))
    assert other / ours == pytest.approx(4.0, rel=0.03)


def test_without_ours_there_are_no_bars() -> None:
    assert bars(Comparison([done("bursty", 1, [run_of("bursty", ORACLE, 1, 0.0)])]), BOOK) == []

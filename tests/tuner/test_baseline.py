"""The measured baseline and the gains over it."""

import math
import random

import pytest

from policies.cycle_policy import Window
from policies.types import Context, Decision, Reason
from tests.tuner.simulated_engine import SERVED, cycle, finished_request, sequence
from tuner.baseline import Baseline, ratio_interval

CHAT = Context("m", "chat", "en")
ERA = ("chat", "en", "ngram", False)


def decision(drafter: str = "ngram", forced: bool = False) -> Decision:
    return Decision("id", CHAT, drafter, 8, forced, Reason.LEARNED, 1)


def plain_window(
    baseline: Baseline, window_id: int, load: int, seconds: list[float], kv_each: int = 100, tokens: int | None = None
) -> None:
    for one in seconds:
        baseline.fold_cycle(
            cycle(
                load=load,
                tokens=load if tokens is None else tokens,
                kv_tokens=load * kv_each,
                seconds=one,
                window=Window(window_id, plain=True),
            )
        )


def serve(
    baseline: Baseline,
    key: int,
    cycles: list[tuple[int, float]],
    load: int = 1,
    kv_each: int = 100,
    looped: bool = False,
    decided: Decision | None = None,
    window: Window = SERVED,
    first_after_switch: bool = False,
    killed: bool = False,
) -> None:
    """One request with `cycles` of (emitted, seconds), alone among neighbours that are not counted, and its end."""
    for emitted, seconds in cycles:
        one = sequence(CHAT, key=key, accepted=emitted - 1, emitted=emitted)
        baseline.fold_cycle(
            cycle(
                load=load,
                tokens=load if window.plain else 9 * load,
                kv_tokens=load * kv_each,
                seconds=seconds,
                window=window,
                first_after_switch=first_after_switch,
                killed=killed,
                sequences=(one,),
            )
        )
    baseline.fold_request(finished_request(key, decided or decision(), 1, 1, looped))


def speedup(baseline: Baseline, era: tuple[str, str, str, bool] = ERA) -> float | None:
    interval = baseline.gain(era, baseline.plain_seconds()).speedup
    return None if interval is None else interval.estimate


def measured(load: int = 1, seconds: float = 0.010) -> Baseline:
    baseline = Baseline()
    for window_id in range(2, 12, 2):
        plain_window(baseline, window_id, load, [seconds] * 10)
    return baseline


def test_the_gain_is_a_ratio_of_sums_and_never_a_mean_of_ratios() -> None:
    # Steady: always 3 tokens in 10 ms. Mixed: half 2 tokens in 4 ms, half 4 tokens in 26 ms. The mean of
    # tokens / seconds says that mixed is faster (327 > 300 a second); in truth it makes 200 a second.
    gains = {}
    for name, pattern in {"steady": [(3, 0.010)] * 2, "mixed": [(2, 0.004), (4, 0.026)]}.items():
        baseline = measured(seconds=0.005)
        for key in range(20):
            serve(baseline, key, pattern * 5)
        gains[name] = speedup(baseline)
    assert gains["steady"] == pytest.approx(300 * 0.005)
    assert gains["mixed"] == pytest.approx(200 * 0.005)


def test_intervals_cover_the_truth_in_about_95_of_100_runs() -> None:
    chance = random.Random(11)
    runs, covered = 400, 0
    for _ in range(runs):
        baseline = Baseline()
        for window_id in range(2, 26, 2):
            level = 0.010 * chance.lognormvariate(0.0, 0.05)
            plain_window(baseline, window_id, 1, [level * chance.uniform(0.9, 1.1) for _ in range(15)])
        for key in range(25):
            accepts = chance.uniform(0.2, 0.9)
            slow = chance.lognormvariate(0.0, 0.05)
            serve(
                baseline,
                key,
                [(1 + (chance.random() < accepts), 0.011 * slow * chance.uniform(0.9, 1.1)) for _ in range(20)],
            )
        interval = baseline.gain(ERA, baseline.plain_seconds()).speedup
        assert interval is not None
        drift = math.exp(0.05**2 / 2)
        truth = (1 + 0.55) * 0.010 * drift / (0.011 * drift)
        covered += interval.low <= truth <= interval.high
    assert 0.91 <= covered / runs <= 0.985


def test_few_requests_widen_the_interval_as_students_t_does() -> None:
    wide = ratio_interval([(1.0, 1.0), (2.0, 1.0), (1.5, 1.0), (1.5, 1.0)])
    error = math.log(wide.high / wide.estimate)
    spread = math.sqrt(4 / 3 * 0.5) / 6
    assert error / spread == pytest.approx(3.182, rel=0.02)
    assert wide.low * wide.high == pytest.approx(wide.estimate**2)


def test_the_baselines_own_error_is_in_the_interval() -> None:
    pairs = [(2.0, 1.0)] * 50
    assert ratio_interval(pairs).high == pytest.approx(2.0)
    assert math.log(ratio_interval(pairs, 0.05**2).high / 2.0) == pytest.approx(0.05 * 2.01, rel=0.01)


def test_loops_are_counted_and_left_out_of_gains_and_totals() -> None:
    baseline = measured()
    for key in range(10):
        serve(baseline, key, [(2, 0.010)] * 5)
    for key in range(10, 20):
        serve(baseline, key, [(9, 0.010)] * 50, looped=True)
    gain = baseline.gain(ERA, baseline.plain_seconds())
    assert gain.speedup is not None
    assert gain.speedup.estimate == pytest.approx(2.0)
    assert (gain.requests, gain.looped, baseline.looped) == (10, 10, 10)
    assert baseline.throughput.tuned_tokens == 100


def test_first_cycles_killed_cycles_and_speculation_in_plain_windows_belong_to_neither_side() -> None:
    baseline = measured()
    before = baseline.plain_seconds()
    plain_window(baseline, 20, 1, [9.0] * 20, tokens=5)
    for key in range(10):
        serve(baseline, key, [(9, 0.010)] * 5, first_after_switch=True)
        serve(baseline, 100 + key, [(1, 9.0)] * 5, killed=True)
        serve(baseline, 200 + key, [(2, 0.010)] * 5)
    assert baseline.plain_seconds() == before
    assert speedup(baseline) == pytest.approx(2.0)


def test_the_gain_is_unknown_while_too_little_was_measured() -> None:
    nothing_plain = Baseline()
    other_load = measured(load=2)
    few_requests = measured()
    one_window = Baseline()
    plain_window(one_window, 2, 1, [0.010] * 50)
    for baseline in (nothing_plain, other_load, one_window):
        for key in range(20):
            serve(baseline, key, [(2, 0.010)] * 5)
        assert speedup(baseline) is None
    for key in range(3):
        serve(few_requests, key, [(2, 0.010)] * 5)
    assert speedup(few_requests) is None
    serve(few_requests, 3, [(2, 0.010)] * 5)
    assert speedup(few_requests) == pytest.approx(2.0)


def test_gains_are_at_equal_load() -> None:
    baseline = measured(load=1, seconds=0.010)
    for window_id in range(20, 30, 2):
        plain_window(baseline, window_id, 8, [0.040] * 10)
    for key in range(10):
        serve(baseline, key, [(2, 0.010)] * 5, load=1)
        serve(baseline, 100 + key, [(2, 0.080)] * 5, load=8)
    # Load 1: 2x. Load 8: 1x, with eight times the seconds.
    assert speedup(baseline) == pytest.approx((2 * 0.010 + 2 * 0.040) / (0.010 + 0.080))


def test_longer_contexts_are_not_mistaken_for_slower_serving() -> None:
    baseline = Baseline()
    for window_id in range(2, 22, 2):
        kv_each = 100 * window_id // 2
        plain_window(baseline, window_id, 1, [0.010 + 1e-5 * kv_each] * 10, kv_each=kv_each)
    for key in range(10):
        serve(baseline, key, [(2, 0.010 + 1e-5 * 2000)] * 5, kv_each=2000)
    plain = baseline.plain_seconds()
    assert plain.kv_token_seconds == pytest.approx(1e-5)
    assert speedup(baseline) == pytest.approx(2.0)


def test_gains_of_another_drafter_or_of_a_pin_are_not_mixed_in() -> None:
    baseline = measured()
    for key in range(10):
        serve(baseline, key, [(2, 0.010)] * 5)
        serve(baseline, 100 + key, [(5, 0.010)] * 5, decided=decision(forced=True))
        serve(baseline, 200 + key, [(1, 0.010)] * 5, decided=decision("none"))
    assert speedup(baseline) == pytest.approx(2.0)
    assert speedup(baseline, ("chat", "en", "ngram", True)) == pytest.approx(5.0)
    assert speedup(baseline, ("chat", "en", "none", False)) == pytest.approx(1.0)


def test_throughput_divides_a_cycle_among_its_sequences_and_keeps_plain_apart() -> None:
    baseline = measured(load=2)
    for key in range(4):
        serve(baseline, key, [(3, 0.020)] * 5, load=2)
        serve(baseline, 100 + key, [(1, 0.012)] * 5, load=2, window=Window(40, plain=True))
    total = baseline.throughput
    assert (total.tuned_tokens, total.plain_tokens) == (60, 20)
    assert total.tuned_seconds == pytest.approx(4 * 5 * 0.010)
    assert total.plain_seconds == pytest.approx(4 * 5 * 0.006)


def test_the_baselines_error_says_when_a_load_that_is_served_was_not_measured() -> None:
    baseline = measured()
    assert baseline.relative_error(baseline.plain_seconds()) is None
    for key in range(10):
        serve(baseline, key, [(2, 0.010)] * 5)
    settled = baseline.relative_error(baseline.plain_seconds())
    assert settled == pytest.approx(0.0, abs=1e-6)
    for key in range(10):
        serve(baseline, key, [(2, 0.040)] * 5, load=8)
    unsettled = baseline.relative_error(baseline.plain_seconds())
    assert unsettled is not None
    assert unsettled > 0.1


def test_requests_whose_ends_were_lost_do_not_pile_up() -> None:
    baseline = Baseline()
    for key in range(10_000):
        baseline.fold_cycle(
            cycle(load=1, tokens=9, kv_tokens=100, seconds=0.01, sequences=(sequence(CHAT, key=key, accepted=1),))
        )
    assert len(baseline._in_flight) <= 4096

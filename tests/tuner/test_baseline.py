"""The measured baseline and the gains over it."""

import math
from dataclasses import replace

import pytest

from policies.cycle_policy import Window
from policies.types import Context, Decision, Reason
from tests.tuner.simulated_engine import cycle, finished_request, sequence
from tuner.baseline import LEARNED, Baseline
from tuner.jackknife import freedom, ratio_interval, student_t, welch

CHAT = Context("m", "chat", "en")
ERA = ("chat", "en", LEARNED, False)


def decision(drafter: str = "ngram", forced: bool = False) -> Decision:
    return Decision("id", CHAT, drafter, 8, forced, Reason.PINNED if forced else Reason.LEARNED, 1)


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
    window: Window | None = None,
    first_after_switch: bool = False,
    killed: bool = False,
) -> None:
    """One request with `cycles` of (emitted, seconds), alone among neighbours that are not counted, and its end.

    Unless `window` says when it was, it has a stretch of time of its own, after a plain window without plain cycles.
    """
    if window is None:
        opens = Window(1_000_000 + 2 * key, plain=True)
        baseline.fold_cycle(cycle(load=1, tokens=2, kv_tokens=1, seconds=1.0, window=opens))
        window = Window(opens.window_id + 1, plain=False)
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


def test_few_clusters_widen_the_interval_as_students_t_does() -> None:
    wide = ratio_interval(1.5, [1.4, 1.6, 1.5, 1.5], 3.0)
    assert wide is not None
    spread = math.sqrt(3 / 4 * (math.log(1.4 / 1.5) ** 2 + math.log(1.6 / 1.5) ** 2))
    assert math.log(wide.high / wide.estimate) / spread == pytest.approx(3.182, rel=0.02)
    assert wide.low * wide.high == pytest.approx(wide.estimate**2)


def test_students_t_is_right_from_the_least_freedom_on() -> None:
    for degrees, quantile in ((2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert student_t(degrees) == pytest.approx(quantile, rel=0.04)
    assert student_t(math.inf) == pytest.approx(1.960, abs=0.001)


def test_one_cluster_that_weighs_most_leaves_little_freedom_and_so_no_interval() -> None:
    assert freedom([1.0] * 10) == pytest.approx(9.0)
    assert freedom([50.0, *[1.0] * 9]) < 1.0
    assert ratio_interval(1.5, [1.4, 1.6, 1.5, 1.5], 1.9) is None


def test_the_freedom_of_a_sum_is_that_of_the_variance_that_dominates() -> None:
    assert welch((1.0, 0.0), (3.0, 50.0)) == pytest.approx(3.0)
    assert welch((1.0, 1.0), (10.0, 10.0)) == pytest.approx(20.0)


def test_a_machine_that_is_slow_for_a_plain_window_and_what_follows_does_not_widen_the_interval() -> None:
    paired, unpaired = Baseline(), Baseline()
    slow = [1.0, 1.3, 0.8, 1.2, 0.9, 1.1]
    for pair, factor in enumerate(slow, start=1):
        for baseline, shift in ((paired, 0), (unpaired, 1)):
            plain_window(baseline, 2 * pair, 1, [0.010 * factor] * 10)
            then = slow[(pair - 1 + shift) % len(slow)]
            for key in range(4):
                window = Window(2 * pair + 1, plain=False)
                serve(baseline, 10 * pair + key, [(2, 0.010 * then)] * 10, window=window)
    intervals = [baseline.gain(ERA, baseline.plain_seconds()).speedup for baseline in (paired, unpaired)]
    narrow, wide = (math.log(interval.high / interval.low) for interval in intervals if interval is not None)
    assert narrow == pytest.approx(0.0, abs=1e-9)
    assert wide > 0.2


def test_a_request_that_reaches_over_many_windows_counts_in_one() -> None:
    baseline = Baseline()
    for pair in range(1, 8):
        plain_window(baseline, 2 * pair, 1, [0.010] * 10)
        for key in range(8):
            one = sequence(CHAT, key=key, accepted=1)
            window = Window(2 * pair + 1, plain=False)
            baseline.fold_cycle(cycle(load=1, tokens=9, kv_tokens=100, seconds=0.010, window=window, sequences=(one,)))
    for key in range(8):
        baseline.fold_request(finished_request(key, decision(), 1, 1, looped=False))
    # All of them mostly, since equally, were in the first: that is one cluster, and nothing can be said.
    assert speedup(baseline) is None


def test_what_is_long_ago_is_forgotten_and_memory_does_not_grow_with_time() -> None:
    baseline = Baseline()
    for pair in range(1, 4001):
        faster = pair > 2000
        plain_window(baseline, 2 * pair, 1, [0.010] * 3)
        serve(baseline, pair, [(4 if faster else 2, 0.010)] * 3, window=Window(2 * pair + 1, plain=False))
    assert speedup(baseline) == pytest.approx(4.0)
    assert len(baseline._clusters) <= 56
    assert baseline.plain_seconds().cells[1].cycles <= 3 * 8 * 127


def test_stretches_end_after_500_cycles_where_plain_windows_are_rare() -> None:
    baseline = measured()
    serve(baseline, 0, [(2, 0.010)] * 10)
    for key in range(1, 9):
        serve(baseline, key, [(2, 0.010)] * 400, window=Window(1_000_001, plain=False))
    assert speedup(baseline) == pytest.approx(2.0)


def test_the_gain_of_everything_takes_every_arm_and_context_in() -> None:
    baseline = measured()
    assert baseline.engine_gain(baseline.plain_seconds()) is None
    for key in range(10):
        serve(baseline, key, [(3, 0.010)] * 5)
        serve(baseline, 100 + key, [(1, 0.010)] * 5, decided=decision("none"))
    gain = baseline.engine_gain(baseline.plain_seconds())
    assert gain is not None
    assert gain.estimate == pytest.approx(2.0)


def test_thousands_of_names_of_routes_do_not_grow_the_baseline() -> None:
    baseline = measured()
    for key in range(10_000):
        context = Context("m", f"route-{key}", "en")
        decided = Decision("id", context, "ngram", 8, False, Reason.LEARNED, 1)
        serve(baseline, key, [(2, 0.010)], decided=decided, window=Window(11, plain=False))
    assert len(baseline._requests) <= 512
    assert all(len(cluster.eras) <= 512 for cluster in baseline._clusters)
    gain = baseline.engine_gain(baseline.plain_seconds())
    assert gain is not None
    assert gain.estimate == pytest.approx(2.0)


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
    after = baseline.plain_seconds().cells[1]
    assert after.cycles == before.cells[1].cycles
    assert after.seconds == pytest.approx(before.cells[1].seconds)
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


def test_gains_of_a_pin_or_of_clients_who_opt_out_are_not_mixed_into_what_was_learned() -> None:
    baseline = measured()
    for key in range(10):
        serve(baseline, key, [(2, 0.010)] * 5)
        serve(baseline, 100 + key, [(4, 0.010)] * 5, decided=decision("suffix"))
        serve(baseline, 200 + key, [(5, 0.010)] * 5, decided=decision(forced=True))
        serve(baseline, 300 + key, [(1, 0.010)] * 5, decided=replace(decision("none"), reason=Reason.CLIENT_OPT_OUT))
    # What was learned may be one drafter for one request and another for the next.
    assert speedup(baseline) == pytest.approx(3.0)
    assert speedup(baseline, ("chat", "en", "ngram", True)) == pytest.approx(5.0)
    assert speedup(baseline, ("chat", "en", "none", False)) == pytest.approx(1.0)


def test_the_gain_of_a_context_that_changed_is_measured_anew() -> None:
    baseline = measured()
    for key in range(10):
        serve(baseline, key, [(4, 0.010)] * 5)
    baseline.forget("chat", "en")
    assert speedup(baseline) is None
    for key in range(10, 20):
        serve(baseline, key, [(2, 0.010)] * 5)
    assert speedup(baseline) == pytest.approx(2.0)


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

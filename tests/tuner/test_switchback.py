"""When plain windows open."""

import itertools

import pytest

from tuner.switchback import Switchback, SwitchbackOptions

OPTIONS = SwitchbackOptions(window_seconds=2.0, share_start=0.2)


def plain_share(switchback: Switchback, start: float, seconds: float, error: float | None) -> float:
    ticks = int(seconds / 0.1)
    return sum(switchback.advance(start + 0.1 * tick, error, suspended=False).plain for tick in range(ticks)) / ticks


def test_plain_time_falls_from_the_first_share_to_the_least_as_the_baseline_becomes_known() -> None:
    switchback = Switchback(OPTIONS, seed=1, now=0.0)
    assert plain_share(switchback, 0.0, 1000.0, None) == pytest.approx(0.20, abs=0.01)
    assert plain_share(switchback, 1000.0, 1000.0, 0.02) == pytest.approx(0.20, abs=0.01)
    assert plain_share(switchback, 2000.0, 4000.0, 0.01) == pytest.approx(0.05, abs=0.005)
    assert plain_share(switchback, 6000.0, 20_000.0, 0.0001) == pytest.approx(0.01, abs=0.002)
    assert switchback.share == 0.01


def test_every_stretch_has_one_whole_plain_window_at_a_random_moment() -> None:
    switchback = Switchback(OPTIONS, seed=2, now=0.0)
    starts, lengths, before = [], [], False
    for tick in range(10_000):
        window = switchback.advance(0.1 * tick, None, suspended=False)
        if window.plain and not before:
            starts.append(0.1 * tick)
            lengths.append(0)
        if window.plain:
            lengths[-1] += 1
        before = window.plain
    assert 90 <= len(starts) <= 100
    assert min(lengths) >= 19
    assert max(lengths) <= 41, "two windows that touch at most"
    assert len({round(start % 10.0) for start in starts}) > 6


def test_window_ids_rise_with_each_switch_and_only_then() -> None:
    switchback = Switchback(OPTIONS, seed=3, now=0.0)
    windows = [switchback.window, *(switchback.advance(0.1 * tick, None, suspended=False) for tick in range(2000))]
    for before, after in itertools.pairwise(windows):
        assert after.window_id == before.window_id + (after.plain != before.plain)


def test_the_same_seed_gives_the_same_windows() -> None:
    def run(seed: int) -> list[bool]:
        switchback = Switchback(OPTIONS, seed, now=0.0)
        return [switchback.advance(0.1 * tick, None, suspended=False).plain for tick in range(1000)]

    assert run(4) == run(4)
    assert run(4) != run(5)


def test_an_exempt_pin_closes_the_plain_window_and_lets_none_open() -> None:
    switchback = Switchback(OPTIONS, seed=6, now=0.0)
    now = 0.0
    while not switchback.advance(now, None, suspended=False).plain:
        now += 0.1
    assert not switchback.advance(now, None, suspended=True).plain
    assert not any(switchback.advance(now + 0.1 * tick, None, suspended=True).plain for tick in range(1000))


def test_a_baseline_that_becomes_uncertain_is_measured_without_waiting_for_the_stretch_to_end() -> None:
    switchback = Switchback(OPTIONS, seed=7, now=0.0)
    plain_share(switchback, 0.0, 300.0, 0.0001)
    assert plain_share(switchback, 300.0, 20.0, None) >= 0.1


def test_a_share_of_nothing_means_no_plain_window_ever() -> None:
    switchback = Switchback(SwitchbackOptions(share_start=0.0), seed=8, now=0.0)
    assert plain_share(switchback, 0.0, 1000.0, None) == 0.0
    assert switchback.share == 0.0

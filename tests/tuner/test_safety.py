"""The budget that keeps an engine from being slower than plain by more than a stated share."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.safety import WINDOW_REQUESTS, Budget, Gate

SHARE = 0.02
PLAIN = 0.01
"""Seconds of a plain cycle of one sequence."""
TOKENS = 20
"""Of every request."""
TICK = 10
"""Cycles between two looks at the budget."""
SLOWEST = 1.5
"""What the dearest cycle takes, in plain ones."""


def requests_of(budget: Budget, acceptance: list[float], seed: int, proven: bool) -> list[tuple[float, float]]:
    """(seconds, plain seconds) of each request, one after the other, of which an adversary sets the acceptance."""
    generator = random.Random(seed)
    worst = TICK * PLAIN * (SLOWEST - 1.0)
    gate, cycle, done = Gate.OPEN, 0, []
    for index in range(1500):
        kept = acceptance[index * len(acceptance) // 1500]
        left, seconds = TOKENS, 0.0
        while left > 0:
            if cycle % TICK == 0:
                gate = budget.judge(worst)
            cycle += 1
            if gate is Gate.OPEN or (gate is Gate.PROVEN and proven):
                emitted = min(left, 1 + 2 * (generator.random() < kept))
                budget.fold(emitted, PLAIN, SLOWEST * PLAIN, SLOWEST * PLAIN)
                seconds += SLOWEST * PLAIN
            else:
                emitted = 1
                budget.fold_plain(PLAIN)
                seconds += PLAIN
            left -= emitted
        budget.finish(TOKENS * PLAIN)
        done.append((seconds, TOKENS * PLAIN))
    return done


@given(
    acceptance=st.lists(st.sampled_from([0.0, 0.1, 0.24, 0.5, 1.0]), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    proven=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_no_window_of_500_requests_loses_more_than_the_share_whatever_is_accepted(
    acceptance: list[float], seed: int, proven: bool
) -> None:
    done = requests_of(Budget(SHARE, PLAIN), acceptance, seed, proven)
    for first in range(0, len(done) - WINDOW_REQUESTS + 1, 25):
        window = done[first : first + WINDOW_REQUESTS]
        assert sum(seconds for seconds, _ in window) <= (1.0 + SHARE) * sum(plain for _, plain in window)


def test_a_budget_that_was_spent_opens_again_as_plain_cycles_refill_it() -> None:
    budget = Budget(SHARE, PLAIN)
    while budget.judge(0.0) is not Gate.HELD:
        budget.fold(1, PLAIN, 1.5 * PLAIN, 1.5 * PLAIN)
    assert budget.state.held == 1
    for _ in range(WINDOW_REQUESTS * 32):
        budget.fold_plain(PLAIN)
        if budget.judge(0.0) is Gate.OPEN:
            break
    assert budget.judge(0.0) is Gate.OPEN
    assert budget.left <= budget.cap


def test_arms_that_are_proven_go_on_for_longer_than_others() -> None:
    budget = Budget(SHARE, PLAIN)
    seen = []
    while Gate.HELD not in seen:
        budget.fold(1, PLAIN, 1.1 * PLAIN, 1.1 * PLAIN)
        gate = budget.judge(0.0)
        if gate not in seen:
            seen.append(gate)
    assert seen == [Gate.OPEN, Gate.PROVEN, Gate.HELD]


def test_a_stall_of_the_system_is_not_speculations_doing() -> None:
    stalled, smooth = Budget(SHARE, PLAIN), Budget(SHARE, PLAIN)
    stalled.fold(1, PLAIN, 50 * PLAIN, PLAIN)
    smooth.fold(1, PLAIN, 1.5 * PLAIN, PLAIN)
    assert stalled.left == pytest.approx(smooth.left)


def test_the_cap_follows_the_requests_that_are_served() -> None:
    budget = Budget(SHARE, PLAIN)
    for _ in range(3 * WINDOW_REQUESTS):
        budget.finish(2.0)
    assert budget.cap == pytest.approx(SHARE / 2 * WINDOW_REQUESTS * 2.0)


def test_before_a_request_has_ended_the_cap_is_that_of_the_load_that_is_served() -> None:
    alone, together = Budget(SHARE, PLAIN), Budget(SHARE, PLAIN)
    together.expect(PLAIN / 32)
    assert together.cap == pytest.approx(alone.cap / 32)
    for budget in (alone, together):
        budget.finish(2.0)
        budget.expect(PLAIN / 64)
    assert together.cap == alone.cap


def test_a_machine_that_slows_down_while_something_is_drafted_does_not_hold_it_for_thousands_of_requests() -> None:
    budget = Budget(SHARE, PLAIN)
    for _ in range(2_000):
        # Four tokens in the time of four plain ones, as before, on a machine that takes 1.4 times as long for all.
        budget.fold(4, PLAIN, 1.4 * 4 * PLAIN, 4 * PLAIN)
        budget.judge(0.0)
    assert budget.state.gate is Gate.HELD
    plain_seconds = 0.0
    while budget.judge(0.0) is Gate.HELD:
        budget.fold_plain(PLAIN)
        plain_seconds += PLAIN
    work_of_a_request = budget.cap / (SHARE / 2 * WINDOW_REQUESTS)
    assert plain_seconds < 0.5 * WINDOW_REQUESTS * work_of_a_request

"""Settings in hindsight against runs of what they say."""

import dataclasses
import itertools

import pytest

from policies.cycle_policy import PassCost
from policies.types import PLAIN
from tests.tuner.replay.small_traces import STEPPED_COSTS, small_trace
from tuner.replay.fixed_play import Arm, FixedRuns
from tuner.replay.hindsight import (
    Hindsight,
    StaticPlayer,
    best_fixed,
    best_per_context,
    best_per_context_and_load,
    best_per_load,
)
from tuner.replay.oracle import Truth
from tuner.replay.played import account
from tuner.replay.reblock import Reblocked
from tuner.replay.simulate import simulate
from tuner.replay.trace import TracedRequest

LENGTHS = range(17)


def test_the_account_of_a_fixed_arm_is_what_a_run_of_it_takes() -> None:
    trace = small_trace(1, requests=400, loads=(1, 2, 4, 8), hold=40)
    accounted = Hindsight(Truth(trace)).fixed_seconds()
    runs = FixedRuns(Reblocked(trace))
    for drafter, length in itertools.product(trace.drafters, LENGTHS):
        arm = (drafter, length) if length else (PLAIN, 0)
        assert accounted[arm] == pytest.approx(account(trace, runs.play(drafter, length)).seconds, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_fixed_arm_is_the_best_of_all_that_can_be_run(seed: int) -> None:
    trace = small_trace(seed, requests=300, loads=(1, 4), hold=30)
    hindsight = Hindsight(Truth(trace))
    runs = FixedRuns(Reblocked(trace))
    seconds = {
        (drafter, length): account(trace, runs.play(drafter, length)).seconds
        for drafter, length in itertools.product(trace.drafters, LENGTHS)
    }
    assert (hindsight.single.drafter, hindsight.single.block_length) == min(seconds, key=seconds.__getitem__)
    assert simulate(trace, best_fixed(hindsight), 0).seconds == pytest.approx(min(seconds.values()))


def test_plain_is_the_best_fixed_arm_where_no_draft_pays() -> None:
    dear = dataclasses.replace(STEPPED_COSTS, target=PassCost((1, 2, 40), (0.01, 0.03, 0.9), 0.0, 0.0))
    trace = dataclasses.replace(small_trace(4), costs=dear)
    hindsight = Hindsight(Truth(trace))
    assert not hindsight.speculates
    assert set(hindsight.by_load().values()) == {(PLAIN, 0)}
    plain = account(trace, FixedRuns(Reblocked(trace)).play("copy", 0)).seconds
    assert simulate(trace, best_fixed(hindsight), 0).seconds == pytest.approx(plain)


def test_what_knows_more_takes_less() -> None:
    trace = small_trace(5, requests=600, loads=(1, 2, 4, 8), hold=30)
    hindsight = Hindsight(Truth(trace))
    took = [
        simulate(trace, make(hindsight), 0).seconds
        for make in (best_fixed, best_per_load, best_per_context, best_per_context_and_load)
    ]
    fixed, per_load, per_context, per_both = took
    assert per_load < fixed
    assert per_context < fixed
    assert per_both < per_load
    assert per_both < per_context


def test_no_other_table_for_one_load_takes_less() -> None:
    trace = small_trace(6, requests=400, loads=(1, 6), hold=40)
    arms = Hindsight(Truth(trace)).by_load()
    assert set(arms) == {1, 6}
    best = simulate(trace, best_per_load(Hindsight(Truth(trace))), 0).seconds
    for load, drafter, length in itertools.product(arms, trace.drafters, range(1, 17, 3)):
        other = {**arms, load: (drafter, length)}

        def tried(running: int, request: TracedRequest, other: dict[int, Arm] = other) -> Arm:
            return other[1 if running < 4 else 6]

        assert simulate(trace, StaticPlayer("tried", tried), 0).seconds >= best * 0.995


def test_a_drafter_that_cannot_be_chosen_is_told_by_what_it_does_on_the_whole() -> None:
    trace = small_trace(7, requests=200)
    single = Hindsight(Truth(trace)).single
    assert list(single.survival) == sorted(single.survival, reverse=True)
    assert single.proposed[0] == 0.0
    assert list(single.proposed) == sorted(single.proposed)
    each = [one.prompt_tokens + 1 + one.output_tokens / 2 for one in trace.requests]
    assert single.kv_tokens == pytest.approx(sum(each) / len(each))


def test_settings_that_know_no_load_take_the_same_with_and_without_the_loop() -> None:
    trace = small_trace(14, requests=200, loads=(1, 3), hold=20)
    truth = Truth(trace)
    for make in (best_fixed, best_per_context):
        player = make(Hindsight(truth))
        assert not player.by_load
        fixed = account(trace, FixedRuns(truth.blocks).play_arms([player.arm(one) for one in trace.requests]))
        assert fixed.seconds == simulate(trace, player, 0).seconds
    for make in (best_per_load, best_per_context_and_load):
        assert make(Hindsight(truth)).by_load

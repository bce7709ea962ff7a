"""One schedule for all routes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.types import ANY_LOAD, PLAIN, UNKNOWN_LENGTH, Arm, LoadStep, Reason
from tests.tuner.fleet.render.learned import EDIT, STORY, emitted, geometric, known
from tuner.fleet.render import Known, NothingLearnedError, merge
from tuner.fleet.render.account import account
from tuner.fleet.types import UNKNOWN_DRAFTER


def test_a_single_route_gets_its_own_schedule_and_plain_beyond_the_loads_that_were_seen() -> None:
    merged = merge([EDIT])
    assert merged.ranges == [(1, 3, 8), (4, 7, 4), (8, ANY_LOAD, 0)]
    assert merged.drafter == "ngram"
    assert merged.longest == 8
    assert not any("loses" in sentence or "not known" in sentence for sentence in account(merged))


def test_the_mix_weighs_seconds_so_that_a_heavy_plain_route_turns_a_small_gain_off() -> None:
    few = merge([EDIT, replace(STORY, requests=30)])
    many = merge([EDIT, replace(STORY, requests=3000)])
    assert few.steps[0].block_length == 8
    assert many.steps[0].block_length == 0
    assert many.longest == 0


def test_the_gain_of_a_mix_is_the_harmonic_mean_of_its_routes_by_their_traffic() -> None:
    # With a block of 8 a cycle costs emitted / gain of a plain one, so the other route's gain follows.
    merged = merge([EDIT, STORY])
    cost = emitted(0.9, 8) / 2.9
    story = emitted(0.1, 8) / cost
    assert merged.steps[0].gain(8) == pytest.approx(1.0 / (0.75 / 2.9 + 0.25 / story))
    assert merged.steps[0].gain(0) == 1.0
    assert merged.steps[0].shares[1].gain(8) == pytest.approx(story)
    assert story < 1.0


def test_who_loses_by_the_table_is_told_with_figures() -> None:
    merged = merge([EDIT, STORY])
    story = emitted(0.1, 8) / (emitted(0.9, 8) / 2.9)
    told = " ".join(account(merged))
    assert f"story/en loses at load 1-3: plain alone is 1.00x plain, K=8 for all is {story:.2f}x" in told
    assert f"slower than plain by {1.0 / story - 1.0:.0%}" in told
    assert "edit/code (300 requests, 75% of the traffic): measured 2.40x plain (2.20 to 2.60)" in told
    assert "story/en (100 requests, 25% of the traffic): its gain is not measured" in told


def test_a_plain_route_of_which_no_survival_is_known_is_taken_at_its_worst() -> None:
    unseen = known("poem/da", [], requests=100)
    merged = merge([EDIT, unseen])
    cost = emitted(0.9, 8) / 2.9
    assert merged.steps[0].shares[1].gain(8) == pytest.approx(1.0 / cost)
    assert any("if nothing is accepted there" in sentence for sentence in account(merged))


def test_between_two_block_lengths_the_cost_is_interpolated() -> None:
    long = known("a/en", [(1, 4, 8)], survival=geometric(0.9), predicted=((1, emitted(0.9, 8) / 2.0),))
    short = known("b/en", [(1, 4, 2)], survival=geometric(0.5), predicted=((1, emitted(0.5, 2) / 1.2),))
    middle = known("c/en", [(1, 4, 5)], survival=geometric(0.7))
    merged = merge([long, short, middle])
    share = merged.steps[0].shares[2]
    assert share.gain(5) == pytest.approx(emitted(0.7, 5) / (1.2 + (2.0 - 1.2) * 3 / 6))
    assert share.gain(2) == pytest.approx(emitted(0.7, 2) / 1.2)


def test_without_predictions_the_mix_gets_what_more_than_half_of_the_traffic_asks_for() -> None:
    routes = [
        known("a/en", [(1, 8, 8)], requests=40),
        known("b/en", [(1, 8, 4)], requests=20),
        known("c/en", [(1, 8, 0)], requests=40),
    ]
    merged = merge(routes)
    assert merged.ranges == [(1, 8, 4), (9, ANY_LOAD, 0)]
    assert any("a/en asks for K=8 at load 1-8 and gets K=4; what it loses is not known" in s for s in account(merged))
    half = merge([known("a/en", [(1, 8, 8)]), known("c/en", [(1, 8, 0)])])
    assert half.longest == 0, "half is not more than half"


def test_the_drafter_is_the_one_of_most_traffic_and_others_are_left_out_by_name() -> None:
    suffix = known(
        "tool/en", [(1, 8, 6)], drafter="suffix", requests=500, survival=geometric(0.8), predicted=((1, 1.5),)
    )
    merged = merge([EDIT, suffix])
    assert merged.drafter == "suffix"
    told = " ".join(account(merged))
    assert "edit/code is not counted: its drafter is ngram, and how suffix would do there is not known." in told
    assert merge([EDIT, replace(suffix, requests=200)]).drafter == "ngram"


def test_a_route_that_is_plain_counts_whatever_drafter_it_would_have() -> None:
    policy = replace(STORY.policy, arm=Arm("suffix", (LoadStep(1, 16, 0, "suffix"),)))
    merged = merge([EDIT, replace(STORY, policy=policy)])
    assert [one.name for one in merged.counted] == ["edit/code", "story/en"]
    told = " ".join(account(merged))
    worst = 2.9 / emitted(0.9, 8)
    assert f"plain alone is 1.00x plain, K=8 for all is {worst:.2f}x if nothing is accepted there" in told
    assert "has suffix" not in told


def test_where_a_route_has_another_drafter_at_some_loads_it_counts_as_plain_there() -> None:
    steps = (LoadStep(1, 3, 8, "ngram"), LoadStep(4, 16, 6, "suffix"))
    both = replace(EDIT, policy=replace(EDIT.policy, arm=Arm("ngram", steps)))
    merged = merge([both])
    assert merged.ranges == [(1, 3, 8), (4, ANY_LOAD, 0)]
    told = " ".join(account(merged))
    assert "edit/code has suffix at load 4-16, and a launch has one drafter: it counts as plain there." in told


@pytest.mark.parametrize("reason", [Reason.EXPLORE, Reason.PINNED, Reason.KILL_SWITCH, Reason.ROUTE_DEFAULT])
def test_only_what_was_learned_counts(reason: Reason) -> None:
    other = known("chat/en", [(1, 8, 2)], requests=9000, reason=reason)
    merged = merge([EDIT, other])
    assert merged.counted == (EDIT,)
    assert [one.name for one, _ in merged.left_out] == ["chat/en"]
    with pytest.raises(NothingLearnedError, match="none of 1 context has a verdict"):
        merge([other])


def test_nothing_seen_and_nothing_decided_are_told_apart_with_the_remedy() -> None:
    with pytest.raises(NothingLearnedError, match=r"^no context has been seen yet: serve traffic first$"):
        merge([])
    learning = [known(f"r{number}/en", [(1, 8, 2)], reason=Reason.EXPLORE) for number in range(3)]
    with pytest.raises(NothingLearnedError, match=r"none of 3 contexts has a verdict, 3 still learning: serve more"):
        merge(learning)
    observed = known("chat/en", [], reason=Reason.ROUTE_DEFAULT)
    with pytest.raises(NothingLearnedError, match=r"1 on routes whose mode steers nothing: set it to canary or auto$"):
        merge([observed])


@pytest.mark.parametrize(("drafter", "length"), [(UNKNOWN_DRAFTER, 4), ("ngram", UNKNOWN_LENGTH)])
def test_a_drafter_that_nobody_knows_is_no_launch_setting(drafter: str, length: int) -> None:
    untold = known("chat/en", [(1, 4, length)], drafter=drafter)
    with pytest.raises(NothingLearnedError, match=r"does not tell .*set fleet\.upstreams\.NAME\.drafter and"):
        merge([untold])
    merged = merge([EDIT, untold])
    assert [one.name for one in merged.counted] == ["edit/code"]
    assert [(one.name, why) for one, why in merged.left_out] == [
        ("chat/en", "its server does not tell what drafts there, or how far")
    ]


def test_a_pool_that_is_plain_at_the_loads_of_today_still_has_the_drafter_of_its_other_loads() -> None:
    steps = (LoadStep(1, 2, 5, "ngram"), LoadStep(3, 16, 0, PLAIN))
    evidence = replace(EDIT.policy.evidence, predicted_speedup=((1, 1.8), (2, 1.5), (3, 1.0)), survival=())
    pooled = replace(EDIT, policy=replace(EDIT.policy, arm=Arm(PLAIN, steps), evidence=evidence))
    merged = merge([pooled])
    assert merged.drafter == "ngram"
    assert merged.ranges == [(1, 2, 5), (3, ANY_LOAD, 0)]
    assert merged.left_out == ()


def test_survivals_of_another_drafter_are_not_taken_for_those_of_the_one_that_is_exported() -> None:
    steps = (LoadStep(1, 2, 5, "ngram"), LoadStep(3, 16, 0, "suffix"))
    policy = replace(EDIT.policy, arm=Arm("suffix", steps))
    merged = merge([replace(EDIT, policy=policy)])
    assert merged.drafter == "ngram"
    assert merged.counted[0].policy.evidence.survival == ()


def test_one_block_length_for_all_loads_is_the_one_that_gains_most_over_them() -> None:
    assert merge([EDIT]).single().ranges == [(1, ANY_LOAD, 4)]
    # At loads 1-3 a block of 8 gains 2.9, and at 4-7 and 8-16 it is not known what 8 costs: a median.
    even = known("a/en", [(1, 4, 6), (5, 16, 0)], survival=geometric(0.9), predicted=((1, 3.0), (5, 1.0)))
    assert merge([even]).single().longest in (0, 6)


@st.composite
def routes(draw: st.DrawFn) -> Known:
    cuts = [1, *sorted(draw(st.sets(st.integers(2, 39), max_size=4))), 40]
    steps = [(low, after - 1, draw(st.integers(0, 16))) for low, after in pairwise(cuts)]
    hazard = draw(st.none() | st.floats(0.0, 1.0))
    gains = draw(st.lists(st.floats(0.3, 9.0), max_size=len(steps)))
    return known(
        f"r{draw(st.integers(0, 9))}/en",
        steps,
        requests=draw(st.integers(0, 1000)),
        survival=() if hazard is None else geometric(hazard),
        predicted=tuple(zip(cuts, gains, strict=False)),
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(routes(), min_size=1, max_size=5, unique_by=lambda one: one.name))
def test_whatever_was_learned_the_schedule_covers_every_load_once_and_never_asks_for_what_no_route_asks(
    known_routes: list[Known],
) -> None:
    merged = merge(known_routes)
    covered = 0
    for low, high, length in merged.ranges:
        assert low == covered + 1
        assert high >= low
        covered = high
        asked = {one.policy.arm.block_length(low) for one in merged.counted}
        assert length in asked | {0}
    assert covered == ANY_LOAD
    for step in merged.steps:
        gain = step.gain(step.block_length)
        assert gain is None or gain >= 0.995, "where the mix is known it is not slower than plain"
    assert set(merged.counted) | {one for one, _ in merged.left_out} == set(known_routes)
    assert all(sentence.endswith(".") for sentence in account(merged))
    assert len({length for _, _, length in merged.single().ranges}) == 1


def test_of_many_routes_that_lose_those_with_the_most_traffic_are_told_and_the_rest_is_counted() -> None:
    many = [known(f"r{number}/en", [], requests=number + 1, survival=geometric(0.1)) for number in range(40)]
    told = account(merge([replace(EDIT, requests=100_000), *many]))
    losing = [sentence for sentence in told if " loses at " in sentence]
    assert len(losing) == 20
    assert losing[0].startswith("r39/en loses at load 1-3: ")
    assert any(sentence.startswith("So do routes of less traffic: ") for sentence in told)

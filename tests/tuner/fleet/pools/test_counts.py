"""Counts are a function of the set of exchanges, merge without conflict, and stay bounded."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.fleet.pools.counts import (
    KEPT,
    LEVELS,
    MOST_PLACES,
    TICK_SECONDS,
    Counts,
    Epoch,
    Part,
    Sample,
    Sums,
    bin_of,
    epoch_of,
)

SAMPLES = st.builds(
    Sample,
    lane=st.sampled_from(["a", "b"]),
    model=st.just("m"),
    route=st.sampled_from(["chat", "code"]),
    language=st.sampled_from(["en", "da"]),
    part=st.sampled_from(list(Part)),
    at=st.floats(1e6, 1e6 + 20_000),
    load=st.floats(1.0, 100.0),
    tokens=st.integers(1, 1000),
    seconds=st.floats(1e-3, 100.0),
    propensity=st.floats(0.005, 1.0),
    fresh=st.none() | st.integers(0, 5000),
    wait_seconds=st.floats(0.0, 10.0),
)


def counted(samples: list[Sample], replica: str = "r") -> Counts:
    counts = Counts(replica)
    for sample in samples:
        counts.add(sample)
    return counts


def merged(*parts: Counts) -> Counts:
    into = Counts("reader")
    for part in parts:
        into.merge(part)
    return into


@settings(max_examples=60, deadline=None)
@given(st.lists(SAMPLES, max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_exchanges_changes_nothing(samples: list[Sample], shuffling: random.Random) -> None:
    before = counted(samples)
    shuffling.shuffle(samples)
    assert counted(samples) == before


@settings(max_examples=60, deadline=None)
@given(st.lists(SAMPLES, max_size=30), st.lists(SAMPLES, max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_merging_is_commutative_associative_and_idempotent(
    mine: list[Sample], theirs: list[Sample], early: int, late: int
) -> None:
    # Three snapshots: two moments of one replica, and another replica.
    first, second = sorted((early, late))
    old, new, other = counted(mine[:first], "r"), counted(mine[:second], "r"), counted(theirs, "s")
    every = merged(old, new, other)
    assert merged(other, old, new) == every
    assert merged(new, merged(old, other)) == every == merged(merged(new, old), other)
    assert merged(every, every, old) == every
    assert merged(new, other) == every  # the newer moment holds all of the older one


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_stretch_only_gets_longer_and_never_splits(tick: int, more: int, still_more: int) -> None:
    soon, later = epoch_of(tick, tick + more), epoch_of(tick, tick + more + still_more)
    if soon is None:
        assert later is None
    elif later is not None:
        assert later.level >= soon.level
        # All that shares a stretch shares the one that it becomes.
        first = soon.number << 3 * soon.level
        assert epoch_of(first, tick + more + still_more) == later


def test_time_is_forgotten_in_the_end_and_stretches_are_bounded() -> None:
    sample = Sample("a", "m", "chat", "en", Part.LEARNED, 1e6, 1.0, 10, 1.0)
    counts = Counts("r")
    for step in range(30_000):
        counts.add(replace(sample, at=1e6 + step * TICK_SECONDS))
    epochs = {epoch for epoch, _, _ in counts}
    assert len(epochs) <= LEVELS * (KEPT + 1)
    assert {epoch.level for epoch in epochs} == set(range(LEVELS))
    counts.add(replace(sample, at=1e6))
    assert min(epoch.started_at for epoch, _, _ in counts) > 1e6


def test_an_epoch_tells_its_time() -> None:
    epoch = Epoch(1, 3)
    assert (epoch.started_at, epoch.ended_at) == (3 * 8 * TICK_SECONDS, 4 * 8 * TICK_SECONDS)


def test_places_of_one_stretch_are_bounded() -> None:
    counts = Counts("r")
    for number in range(MOST_PLACES + 500):
        counts.add(Sample("a", "m", f"route-{number}", "en", Part.LEARNED, 1e6, 1.0, 10, 1.0))
    assert sum(1 for _ in counts) == MOST_PLACES


def test_sums_are_of_what_was_counted() -> None:
    sample = Sample("a", "m", "chat", "en", Part.HELD, 1e6, 2.0, 10, 0.5, 0.25, fresh=30, wait_seconds=0.1)
    ((_, place, sums),) = list(counted([sample, sample]))
    assert (place.lane, place.bin, place.part) == ("a", 1, Part.HELD)
    assert (sums.requests, sums.tokens, sums.micros, sums.loads) == (2, 20, 1_000_000, 40_000)
    assert (sums.weighted_tokens, sums.weighted_micros) == (4_000 * 20, 4_000 * 1_000_000)
    assert (sums.prompts, sums.fresh, sums.waits, sums.fresh_squares) == (2, 60, 200_000, 1_800)


def test_a_rare_draw_counts_a_hundred_times_at_most() -> None:
    sample = Sample("a", "m", "chat", "en", Part.HELD, 1e6, 2.0, 10, 0.5, 1e-6)
    ((_, _, sums),) = list(counted([sample]))
    assert sums.weighted_tokens == 100 * 1_000 * 10


@pytest.mark.parametrize(("load", "found"), [(0.5, 0), (1.0, 0), (1.4, 0), (1.5, 1), (3, 2), (5, 2), (6, 3), (1e9, 16)])
def test_a_bin_is_the_nearest_power_of_two(load: float, found: int) -> None:
    assert bin_of(load) == found


@settings(max_examples=30, deadline=None)
@given(st.lists(SAMPLES, max_size=30))
def test_a_state_goes_through_json(samples: list[Sample]) -> None:
    counts = counted(samples)
    assert Counts.of_state("r", json.loads(json.dumps(counts.state()))) == counts


@pytest.mark.parametrize("state", [{}, {"newest": "x", "records": []}, {"newest": 1, "records": [["r", 0, 1, [[1]]]]}])
def test_what_is_no_state_is_said_to_be_none(state: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Counts.of_state("r", state)


def test_the_sums_have_names_of_their_own() -> None:
    assert len(set(Sums._fields)) == len(Sums._fields) == 13

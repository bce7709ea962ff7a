"""Counters over restarts, with several engines behind one page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.fleet.engines.recordings import page
from tuner.fleet.engines.counters import Count, Counter, began_again, created_name, increase, increases_by, read_counter
from tuner.fleet.engines.exposition import read_exposition

DRAFTS = "vllm:spec_decode_num_drafts_total"


def counter(*values: float, created: float | None = None) -> Counter:
    return {(("engine", str(engine)),): Count(value, created) for engine, value in enumerate(values)}


def test_several_engines_are_summed() -> None:
    text = page("vllm_two_engines")
    after = read_counter(read_exposition(text, {DRAFTS, created_name(DRAFTS)}), DRAFTS)
    assert sorted(one.value for one in after.values()) == [14.0, 15.0]
    assert increase({labels: Count(0.0, one.created) for labels, one in after.items()}, after, restarted=False) == 29.0


def test_report_51_a_counter_that_fell_counts_from_zero_and_no_delta_is_negative() -> None:
    assert increase(counter(100.0), counter(7.0), restarted=False) == 7.0


def test_each_engine_starts_again_by_itself() -> None:
    assert increase(counter(100.0, 50.0), counter(130.0, 20.0), restarted=False) == 30.0 + 20.0


def test_a_restart_is_seen_though_the_counter_has_overtaken_the_old_value() -> None:
    before, after = counter(100.0, created=1000.0), counter(140.0, created=2000.0)
    assert increase(before, after, restarted=False) == 140.0
    assert increase(counter(100.0), counter(140.0), restarted=True) == 140.0
    assert increase(counter(100.0), counter(140.0), restarted=False) == 40.0


def test_a_series_that_is_new_counts_from_zero_and_one_that_left_counts_nothing() -> None:
    assert increase(counter(5.0), counter(6.0, 9.0), restarted=False) == 1.0 + 9.0
    assert increase(counter(5.0, 8.0), counter(6.0), restarted=False) == 1.0


def test_an_absent_counter_is_no_data() -> None:
    assert increase({}, {}, restarted=False) is None
    assert increase(counter(5.0), {}, restarted=False) is None
    assert increase(counter(5.0), counter(5.0), restarted=False) == 0.0


def test_began_again_says_so_of_any_counter() -> None:
    assert began_again([counter(3.0), counter(9.0)], [counter(3.0), counter(1.0)])
    assert not began_again([counter(3.0), counter(9.0)], [counter(4.0), counter(9.0)])


@pytest.mark.parametrize(
    ("name", "created"),
    [("a_total", "a_created"), ("a_bucket", "a_created"), ("a_sum", "a_created"), ("a_count", "a_created")],
)
def test_the_parts_of_a_metric_have_one_moment_of_creation(name: str, created: str) -> None:
    assert created_name(name) == created


def test_a_bucket_is_dated_by_the_created_of_its_histogram() -> None:
    name = "vllm:time_to_first_token_seconds"
    found = read_exposition(page("vllm_ngram"), {f"{name}_bucket", f"{name}_created"})
    (born,) = found.of(f"{name}_created").values()
    buckets = read_counter(found, f"{name}_bucket")
    assert len(buckets) > 5
    assert {one.created for one in buckets.values()} == {born}


def test_labels_that_are_not_asked_for_are_summed_over() -> None:
    before: Counter = {(("engine", e), ("position", p)): Count(1.0) for e in "01" for p in "012"}
    after: Counter = {labels: Count(1.0 + int(dict(labels)["position"])) for labels in before}
    assert increases_by("position", before, after, restarted=False) == {"0": 0.0, "1": 2.0, "2": 4.0}


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=2), min_size=1, max_size=30))
def test_readings_add_up_to_all_that_was_counted_over_any_restarts(steps: list[list[tuple[int, bool]]]) -> None:
    """Two engines; where one restarts between readings, what it counted before that in the same step is lost."""
    values, born = [0, 0], [1.0, 1.0]
    before: Counter = {(("engine", str(engine)),): Count(0.0, born[engine]) for engine in (0, 1)}
    told = expected = 0.0
    for step, pair in enumerate(steps, start=2):
        for engine, (gained, restarts) in enumerate(pair):
            if restarts:
                values[engine], born[engine] = 0, float(step)
            values[engine] += gained
            expected += gained
        after: Counter = {(("engine", str(engine)),): Count(float(values[engine]), born[engine]) for engine in (0, 1)}
        gained_in_all = increase(before, after, restarted=False)
        assert gained_in_all is not None
        assert gained_in_all >= 0
        told += gained_in_all
        before = after
    assert told == expected

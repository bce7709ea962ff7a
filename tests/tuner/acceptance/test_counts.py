"""Counts by replica and epoch: what merges, what is saved, what is forgotten, and how much is kept."""

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.stats import CycleStats, SequenceStats
from policies.types import MAX_BLOCK_LENGTH, Context
from tests.tuner.acceptance.text import Text, cycles_of
from tuner.acceptance import Acceptance, Curve

CONTEXTS = [("chat", "en"), ("chat", "da"), ("edit", "en")]

entries = st.lists(
    st.tuples(st.sampled_from(CONTEXTS), st.integers(0, 4), st.integers(1, MAX_BLOCK_LENGTH), st.integers(0, 16)),
    max_size=25,
)


def counting(replica: str, observed: list[Any]) -> Acceptance:
    """A replica with small epochs, so that a few blocks fill several."""
    acceptance = Acceptance(half_life_blocks=20.0, replica=replica)
    for (route, language), bucket, length, kept in observed:
        acceptance.add_block("ngram", route, language, bucket, length, min(kept, length) if bucket else 0)
    return acceptance


def copy_of(acceptance: Acceptance) -> Acceptance:
    copied = Acceptance(half_life_blocks=20.0)
    copied.restore(json.loads(json.dumps(acceptance.state())))
    return copied


def everything_of(acceptance: Acceptance) -> tuple[Any, tuple[Curve, dict[tuple[str, str], Curve]]]:
    state = acceptance.state()
    return (state["cells"], state["margins"]), acceptance.curves("ngram", CONTEXTS)


def merged(*parts: Acceptance) -> Acceptance:
    result = Acceptance(half_life_blocks=20.0, replica="reader")
    for part in parts:
        result.merge(part)
    return result


@settings(deadline=None, max_examples=25)
@given(st.tuples(entries, entries, entries), entries)
def test_merging_is_commutative_associative_and_idempotent(
    observed: tuple[list[Any], list[Any], list[Any]], later: list[Any]
) -> None:
    a, b, c = (counting(name, part) for name, part in zip("abc", observed, strict=True))
    older = copy_of(a)
    for (route, language), bucket, length, kept in later:
        a.add_block("ngram", route, language, bucket, length, min(kept, length) if bucket else 0)
    expected = everything_of(merged(a, b, c))
    for order in itertools.permutations((a, b, c)):
        assert everything_of(merged(older, *order, a)) == everything_of(merged(*order, older)) == expected
    assert everything_of(merged(merged(a, b), c)) == everything_of(merged(a, merged(b, c))) == expected


def test_merging_equals_counting_together() -> None:
    chance = random.Random(9)
    parts, together = [Acceptance(replica="a"), Acceptance(replica="b")], Acceptance()
    for index in range(60):
        block = ("ngram", "chat", chance.choice(("en", "da")), chance.randint(1, 3), 8, chance.randint(0, 8))
        parts[index % 2].add_block(*block)
        together.add_block(*block)
    parts[0].merge(parts[1])
    assert parts[0].curves("ngram", CONTEXTS) == together.curves("ngram", CONTEXTS)


def test_a_replica_goes_on_counting_after_a_merge_and_nothing_is_counted_twice() -> None:
    a, b = Acceptance(replica="a"), Acceptance(replica="b")
    for _ in range(5):
        a.add_block("ngram", "chat", "en", 1, 4, 4)
        b.add_block("ngram", "chat", "en", 1, 4, 0)
        a.merge(b)
        b.merge(a)
    a.merge(b)
    blocks = [one.curves("ngram", [("chat", "en")])[1]["chat", "en"].blocks for one in (a, b)]
    assert blocks == [pytest.approx(10.0, rel=0.01)] * 2


def test_counts_of_another_version_of_the_drafter_do_not_merge() -> None:
    a, b = counting("a", []), counting("b", [])
    a.add_block("ngram", "chat", "en", 1, 4, 4)
    b.reset("ngram", "v2")
    b.add_block("ngram", "chat", "en", 1, 4, 0)
    b.merge(a)
    assert b.curves("ngram", [])[0].blocks == pytest.approx(1, rel=0.1)
    a.reset("ngram", "v2")
    assert a.contexts("ngram") == ()
    a.merge(b)
    assert a.curves("ngram", [])[0].blocks == pytest.approx(1, rel=0.1)


@settings(deadline=None, max_examples=25)
@given(st.randoms(use_true_random=False))
def test_the_order_of_telemetry_does_not_change_the_curves(chance: random.Random) -> None:
    cycles = cycles_of([Text(key=key, seed=key, tokens=30) for key in range(6)])
    shuffled = list(cycles)
    chance.shuffle(shuffled)

    def curves(order: list[CycleStats]) -> object:
        acceptance = Acceptance()
        for stats in order:
            acceptance.fold(stats)
        for key in chance.sample(range(6), 6):
            acceptance.finish(key)
        return acceptance.curves("ngram", [("chat", "en")])

    assert curves(cycles) == curves(shuffled)


def test_a_restored_state_gives_the_same_curves_and_counts_on() -> None:
    acceptance = Acceptance()
    for stats in cycles_of([Text(key=key, seed=key, tokens=40) for key in range(20)]):
        acceptance.fold(stats)
    for key in range(20):
        acceptance.finish(key)
    restored = Acceptance()
    restored.restore(json.loads(json.dumps(acceptance.state())))
    assert restored.curves("ngram", CONTEXTS) == acceptance.curves("ngram", CONTEXTS)
    before = restored.curves("ngram", [("chat", "en")])[1]["chat", "en"].blocks
    for _ in range(100):
        restored.add_block("ngram", "chat", "en", 1, 4, 4)
    assert before < restored.curves("ngram", [("chat", "en")])[1]["chat", "en"].blocks <= before + 100


def damaged(change: str) -> Any:
    acceptance = Acceptance()
    acceptance.add_block("ngram", "chat", "en", 1, 4, 2)
    acceptance.fold(cycles_of([Text(key=1, seed=1, tokens=20)])[0])
    acceptance.finish(1)
    state = json.loads(json.dumps(acceptance.state()))
    cell = state["cells"][0][3]
    match change:
        case "format":
            state["format"] = 1
        case "no cells":
            del state["cells"]
        case "old form":
            return [{"drafter": "ngram", "route": "chat", "language": "en", "confidence": 1, "blocks": [[4, 2, 1.0]]}]
        case "place":
            cell["records"][0][2].append([100_000, 1])
        case "count":
            cell["records"][0][2][0][1] = float("nan")
        case "negative":
            cell["records"][0][2][0][1] = -1
        case "moments":
            cell["moments"][0][1][0] = [1.0] * 1000
        case "sums":
            cell["moments"][0][2] = [[1.0]]
        case "floor":
            cell["floor"] = None
    return state


@pytest.mark.parametrize(
    "change", ["format", "no cells", "old form", "place", "count", "negative", "moments", "sums", "floor"]
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: str) -> None:
    acceptance = Acceptance()
    acceptance.add_block("ngram", "chat", "en", 1, 4, 2)
    before = acceptance.state()
    with pytest.raises((KeyError, TypeError, ValueError)):
        acceptance.restore(damaged(change))
    assert acceptance.state() == before


def test_a_flood_of_routes_leaves_memory_bounded_and_the_margins_whole() -> None:
    acceptance = Acceptance(limit=32)
    for index in range(10_000):
        acceptance.add_block("ngram", f"route-{index}", "en", 1, 4, 4 * (index % 4 > 0))
        acceptance.fold(flooding(index))
    assert len(acceptance.contexts("ngram")) == 32
    state = json.dumps(acceptance.state())
    assert len(state) < 300_000
    pooled, curves = acceptance.curves("ngram", [("new", "en")])
    assert pooled.blocks > 3500
    assert curves["new", "en"].survival.of(1)[0] == pytest.approx(0.75, abs=0.03)


def flooding(index: int) -> CycleStats:
    """A cycle of a request that never finishes, in which nothing is drafted."""
    (stats,) = cycles_of([Text(key=index, seed=index, tokens=1)])
    silent: tuple[SequenceStats, ...] = stats.sequences
    assert silent[0].context == Context("m", "chat", "en")
    return stats

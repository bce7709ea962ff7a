"""Which drafter serves at each load, which are tried, and which run as shadows."""

import random

import pytest

from policies.types import Arm, LoadStep
from tuner.choice import Menu, Option, charted_loads, choose, place_of
from tuner.known_contexts import MOST_CONTEXTS, REST, KnownContexts
from tuner.shadowing import Allowance, Known, chances, drawn
from tuner.trials import trials

LOADS = (1, 2, 4)


def menu(worth: dict[str, tuple[float, ...]], bounds: dict[str, tuple[float, float]] | None = None) -> Menu:
    """Drafters whose best block length is 4 at each load, or none where they are worth no more than plain."""
    options = {
        name: tuple(Option(100.0 * value, (100.0, 100.0, 100.0, 100.0, 100.0 * value)) for value in values)
        for name, values in worth.items()
    }
    bounds = bounds or {name: (0.9 * v[0], 1.1 * v[0]) for name, v in worth.items()}
    return Menu(LOADS, options, worth, {name: (ends,) * len(LOADS) for name, ends in bounds.items()})


def test_the_best_drafter_of_each_load_serves_there_and_the_arm_is_named_for_the_load_at_hand() -> None:
    found = choose(menu({"head": (1.8, 1.4, 1.0), "ngram": (1.3, 1.3, 1.2)}), None, 2, 0.02)
    assert found == Arm("head", (LoadStep(1, 3, 4, "head"), LoadStep(4, 4, 4, "ngram")))
    assert (found.drafter_at(3), found.drafter_at(9)) == ("head", "ngram")


def test_a_challenger_that_is_hardly_better_changes_nothing() -> None:
    serving = choose(menu({"head": (1.5, 1.5, 1.5), "ngram": (1.4, 1.4, 1.4)}), None, 1, 0.02)
    hardly = menu({"head": (1.5, 1.5, 1.5), "ngram": (1.51, 1.51, 1.51)})
    assert choose(hardly, serving, 1, 0.02) == serving
    clearly = menu({"head": (1.5, 1.5, 1.5), "ngram": (1.6, 1.6, 1.6)})
    assert choose(clearly, serving, 1, 0.02).drafters == ("ngram",)


def test_where_no_length_beats_plain_a_drafter_is_named_all_the_same() -> None:
    found = choose(menu({"ngram": (1.01, 1.0, 0.9)}), None, 1, 0.02)
    assert found.cap == 0
    assert found.drafter_at(4) == "ngram"


def test_drafters_that_may_be_the_best_are_tried_as_often_as_they_may_and_known_ones_never() -> None:
    unsure = menu(
        {"a": (1.5, 1, 1), "b": (1.5, 1, 1), "c": (1.0, 1, 1)}, {"a": (1.2, 1.8), "b": (1.2, 1.8), "c": (1, 1.1)}
    )
    found = dict(trials(unsure, 0, "a", random.Random(3)))
    assert set(found) == {"a", "b"}
    assert sum(found.values()) == pytest.approx(1.0)
    assert 0.2 < found["a"] < 0.8
    sure = menu(
        {"a": (1.5, 1, 1), "b": (1.5, 1, 1), "c": (1.0, 1, 1)}, {"a": (1.49, 1.51), "b": (1.2, 1.4), "c": (1, 1.1)}
    )
    assert trials(sure, 0, "a", random.Random(3)) == ()


def test_shadows_are_certain_for_a_drafter_that_may_be_better_and_rare_but_never_gone_for_others() -> None:
    found = menu(
        {"a": (1.5, 1, 1), "b": (1.4, 1, 1), "c": (1.0, 1, 1)}, {"a": (1.4, 1.6), "b": (1.2, 1.7), "c": (0.9, 1.1)}
    )
    new = dict(chances(Known(found, 0, "a", {}), 30))
    assert new["b"] == 1.0
    assert 0.0 < new["c"] < 0.1
    assert "a" not in new
    known = dict(chances(Known(found, 0, "a", {"b": 3000.0}), 30))
    assert 0.0 < known["b"] < 0.1
    assert drawn(tuple(new.items()), "a", 0.5) == ("b",)


def test_a_drafter_that_costs_nothing_is_looked_at_in_every_new_context_whatever_relatives_say_of_it() -> None:
    found = menu({"a": (1.5, 1, 1), "copy": (1.0, 1, 1)}, {"a": (1.4, 1.6), "copy": (1.0, 1.05)})
    assert dict(chances(Known(found, 0, "a", {}, frozenset({"copy"})), 30))["copy"] == 1.0
    assert dict(chances(Known(found, 0, "a", {"copy": 3000.0}, frozenset({"copy"})), 30))["copy"] < 0.1


def test_shadows_live_on_an_allowance_that_never_exceeds_its_share_in_the_long_run() -> None:
    allowance = Allowance(0.01)
    spent = 0.0
    for _ in range(100_000):
        cost = 0.004 if allowance.seconds > 0.0 else 0.0
        spent += cost
        allowance.fold(0.01, cost)
    assert spent < 0.005 * 100_000 * 0.01


def test_ten_thousand_routes_are_counted_in_a_bounded_number_of_contexts() -> None:
    known = KnownContexts()
    keys = {known.key(f"route-{index}", "en") for index in range(10_000)}
    assert len(keys) <= MOST_CONTEXTS
    assert known.key("route-9999", "en") == REST
    assert known.key("route-0", "en") == ("route-0", "en")
    assert len(known.keys) <= MOST_CONTEXTS


def test_loads_on_the_chart_reach_from_one_to_the_slots() -> None:
    assert charted_loads(16) == (1, 2, 3, 4, 6, 8, 12, 16)
    assert charted_loads(5) == (1, 2, 3, 4, 5)
    assert [place_of(load, LOADS) for load in (1, 2, 3, 4, 9)] == [0, 1, 1, 2, 2]

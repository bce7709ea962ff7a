"""Which drafters with steps are used together: their steps are paid by everybody in the cycle."""

import pytest

from policies.cycle_policy import DraftCost, PassCost
from tuner.choice import Menu, Option, Worth
from tuner.known_contexts import Key
from tuner.together import Together, less

COST = PassCost((1, 64), (0.0070, 0.0077), 0.0, 0.0)
DEAR = DraftCost(0.00015, 0.0, 0.00078, 0.0)
CHEAP = DraftCost(0.00001, 0.0, 0.00002, 0.0)
EN: Key = ("chat", "en")
CODE: Key = ("write", "code")
LOADS = (1, 8)
TRAFFIC = {EN: 60.0, CODE: 40.0}


def worth(price: DraftCost) -> Worth:
    return Worth(4, LOADS, COST, {"general": price, "special": price}, 100.0)


def menu(general: float, special: float, ngram: float) -> Menu:
    """Worth at every load, blocks of 2 being the best."""
    found = {"general": general, "special": special, "ngram": ngram}
    options = {name: tuple(Option(v, (1.0, 1.0, v, 1.0, 1.0)) for _ in LOADS) for name, v in found.items()}
    return Menu(
        LOADS,
        options,
        {name: (v, v) for name, v in found.items()},
        {name: ((v - 0.1, v + 0.1), (v - 0.1, v + 0.1)) for name, v in found.items()},
    )


def menus(code_special: float) -> dict[Key, Menu]:
    return {EN: menu(1.5, 1.2, 1.0), CODE: menu(1.3, code_special, 1.05)}


def best(found: Menu, place: int) -> str:
    return max(found.worth, key=lambda name: found.worth[name][place])


def test_where_steps_are_dear_one_drafter_serves_all_and_where_they_are_cheap_each_its_own() -> None:
    for price, chosen in ((DEAR, "general"), (CHEAP, "special")):
        given = menus(1.5)
        penalties = Together(1.1).penalties(given, TRAFFIC, worth(price), ["general", "special"])
        served = {key: less(one, penalties) for key, one in given.items()}
        assert best(served[EN], 1) == "general"
        assert best(served[CODE], 1) == chosen


def test_a_drafter_outside_the_set_is_worth_less_by_what_its_steps_cost_the_others() -> None:
    given = menus(1.5)
    penalties = Together(1.1).penalties(given, TRAFFIC, worth(DEAR), ["general", "special"])
    # Usual are blocks of 2 in both contexts.
    spent = DEAR.seconds(1, 2, 2) / COST.seconds(8, 8, 800)
    assert penalties["special"][1] == pytest.approx(7 * spent, abs=0.01)
    assert "general" not in penalties
    found = less(given[CODE], penalties)
    assert found.worth["special"][1] == pytest.approx(1.5 - penalties["special"][1])
    assert found.bounds["special"][1] == pytest.approx((1.4 - penalties["special"][1], 1.6 - penalties["special"][1]))
    assert found.options == given[CODE].options


def test_a_second_drafter_that_gains_enough_is_worth_its_steps_where_waiting_is_allowed() -> None:
    stepping = ["general", "special"]
    given = {EN: menu(1.5, 1.0, 1.0), CODE: menu(1.2, 2.4, 1.0)}
    for slowdown, barred in ((100.0, False), (1.02, True)):
        penalties = Together(slowdown).penalties(given, {EN: 80.0, CODE: 20.0}, worth(DEAR), stepping)
        assert (penalties["special"][1] > 0.0 if "special" in penalties else False) is barred


def test_a_set_stays_until_another_one_is_clearly_better() -> None:
    together, stepping = Together(1.1), ["general", "special"]
    first = together.penalties({EN: menu(1.50, 1.45, 1.0)}, {EN: 1.0}, worth(DEAR), stepping)
    assert first["special"][1] > 0.0
    hardly = together.penalties({EN: menu(1.50, 1.505, 1.0)}, {EN: 1.0}, worth(DEAR), stepping)
    assert hardly is first
    clearly = together.penalties({EN: menu(1.50, 1.60, 1.0)}, {EN: 1.0}, worth(DEAR), stepping)
    assert clearly["general"][1] > 0.0
    assert clearly.get("special", (0.0, 0.0))[1] == 0.0


def test_what_would_do_with_copying_joins_a_set_that_is_in_use_and_no_empty_one() -> None:
    given = {EN: menu(1.5, 1.2, 1.0), CODE: menu(1.40, 1.2, 1.44)}
    joined = Together(1.1).penalties(given, TRAFFIC, worth(DEAR), ["general", "special"])
    assert best(less(given[CODE], joined), 1) == "general"
    nobody = {key: menu(0.9, 0.8, 1.0 if key == EN else 1.44) for key in given}
    alone = Together(1.1).penalties(nobody, TRAFFIC, worth(DEAR), ["general", "special"])
    assert best(less(nobody[CODE], alone), 1) == "ngram"


def test_without_traffic_nothing_is_taken_from_anybody() -> None:
    assert Together(1.1).penalties(menus(1.5), {}, worth(DEAR), ["general", "special"]) == {}

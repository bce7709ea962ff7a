"""What the controller knows, apart from how it decides: which counts belong to which version of a drafter."""

from dataclasses import replace

import pytest

from policies.stats import EngineInfo
from policies.types import PLAIN
from tests.tuner.simulated_engine import SimulatedEngine
from tuner.learning import ChangeKind, Learning

EDIT = ("edit", "en")


def versioned(**versions: str) -> EngineInfo:
    """An engine with the drafters that have a version."""
    ours = {"target": "1", "tokenizer": "1", "engine": "1"}
    return replace(SimulatedEngine({}).info, drafters=(PLAIN, *versions), versions=ours | versions)


def taught(info: EngineInfo) -> Learning:
    """Some blocks of every drafter."""
    learning = Learning(info, 12, 1.1)
    for drafter in learning.drafters:
        for _ in range(40):
            learning.acceptance.add_block(drafter, *EDIT, 1, 4, 3)
    learning.learn((EDIT,))
    return learning


@pytest.mark.parametrize("between", [versioned(suffix="1"), versioned(suffix="1", draft="1")])
def test_another_version_of_a_drafter_is_learned_from_nothing_also_if_it_was_away_for_a_while(
    between: EngineInfo,
) -> None:
    learning = taught(versioned(suffix="1", draft="1"))
    learning.set_engine(between)
    (found,) = learning.set_engine(versioned(suffix="1", draft="2"))
    assert (found.kind, found.drafter) == (ChangeKind.VERSION, "draft")
    assert learning.acceptance.contexts("draft") == ()
    assert learning.acceptance.contexts("suffix") == (EDIT,)


def test_a_drafter_that_comes_back_as_it_was_is_known_still_and_a_new_one_is_no_change() -> None:
    learning = taught(versioned(suffix="1", draft="1"))
    learning.set_engine(versioned(suffix="1"))
    assert learning.set_engine(versioned(suffix="1", draft="1", other="1")) == []
    assert learning.acceptance.contexts("draft") == (EDIT,)
    assert learning.acceptance.version("other") == "1"


def test_counts_merge_after_a_restart_with_those_of_the_version_that_runs() -> None:
    """A replica that was restarted with a new version and one that had it from the beginning count the same drafter."""
    old, new = versioned(suffix="1", draft="1"), versioned(suffix="1", draft="2")
    restarted = Learning(new, 12, 1.1)
    assert restarted.restore(taught(old).state()) == ("suffix",)
    assert restarted.acceptance.contexts("draft") == ()
    restarted.acceptance.merge(taught(new).acceptance)
    assert restarted.acceptance.contexts("draft") == (EDIT,)


def test_no_menu_offers_a_drafter_that_was_unloaded() -> None:
    learning = taught(versioned(suffix="1", draft="1"))
    assert {"suffix", "draft"} <= set(learning.menus[EDIT].options)
    learning.set_engine(versioned(suffix="1"))
    learning.learn((EDIT,))
    assert {name for menu in learning.menus.values() for name in menu.options} == {"suffix"}

"""Who is tried and whose shadows run, on a machine where a learned drafter is dear and copying nearly free."""

import pytest

from policies.cycle_policy import DraftCost, PassCost
from policies.types import Context
from tests.tuner.simulated_engine import cycle, sequence
from tuner.guides import Guides
from tuner.learning import Learning
from tuner.replay.ours import engine_info
from tuner.replay.player import World
from tuner.replay.trace import Costs

COPYING = DraftCost(2e-5, 3e-5, 0.0, 3e-6)
LEARNED = DraftCost(1.5e-4, 0.0, 7.8e-4, 2e-6)
COSTS = Costs(
    PassCost((1, 8, 32, 64, 128, 544), (0.0065, 0.0065, 0.0070, 0.0077, 0.0098, 0.0280), 2e-5, 0.0),
    {"suffix": COPYING, "general": LEARNED, "special": LEARNED},
)
NEEDED = 30.0


def learning_at(load: int) -> Learning:
    """Nothing is known but costs; one plain cycle was served at `load`."""
    names = tuple(COSTS.drafters)
    info = engine_info(World(names, 32, COSTS, dict.fromkeys(names, 3), seed=0))
    found = Learning(info, 12, 1.1)
    found.fold(cycle(load=load, tokens=load, kv_tokens=256 * load, seconds=0.008, sequences=[]))
    found.learn(())
    return found


def serve(learning: Learning, drafter: str, blocks: int) -> None:
    """Blocks of `drafter`, one a request, of which half are kept whole."""
    for key in range(blocks):
        one = sequence(
            Context("m", "chat", "en"), key=key, drafter=drafter, verified=4, accepted=4 * (key % 2), confidence=2
        )
        learning.fold(cycle(load=1, tokens=5, kv_tokens=256, seconds=0.009, sequences=[one]))
    learning.learn([("chat", "en")])


def test_drafters_that_must_serve_to_become_known_do_so_one_after_the_other() -> None:
    learning = learning_at(8)
    guides = Guides(None, NEEDED, learning, seed=1)
    _, new = guides.of((), {}, spare=True)
    assert dict(new.trials) == {"general": 0.5, "suffix": 0.5}
    serve(learning, "general", 60)
    _, new = guides.of((), {}, spare=True)
    assert dict(new.trials).keys() == {"special", new.explored}


def test_nothing_is_tried_or_shadowed_while_the_budget_has_no_time_to_spare() -> None:
    guides = Guides(None, NEEDED, learning_at(8), seed=1)
    _, new = guides.of((), {}, spare=False)
    assert new.shadows == new.trials == ()


def test_a_drafter_that_can_be_looked_at_for_nothing_is_never_given_a_request_to_try_it() -> None:
    learning = learning_at(8)
    guides = Guides(None, NEEDED, learning, seed=1)
    for drafter in ("general", "special"):
        serve(learning, drafter, 60)
    of_keys, _ = guides.of([("chat", "en")], {}, spare=True)
    guide = of_keys["chat", "en"]
    assert learning.menus["chat", "en"].bounds["suffix"][0][1] > 1.0
    assert "suffix" not in dict(guide.trials) or guide.explored == "suffix"
    assert dict(guide.shadows)["suffix"] == pytest.approx(1.0)


@pytest.mark.parametrize("load", [1, 8, 32])
def test_the_shadows_of_a_cheap_drafter_take_a_twentieth_of_a_plain_cycle_at_most_whatever_the_load(load: int) -> None:
    learning = learning_at(load)
    guides = Guides(None, NEEDED, learning, seed=1)
    serve(learning, "general", 60)
    learning.fold(cycle(load=load, tokens=load, kv_tokens=256 * load, seconds=0.008, sequences=[]))
    _, new = guides.of((), {}, spare=True)
    share = dict(new.shadows)["suffix"]
    spent = COPYING.seconds(share * load, 4, 4 * share * load)
    plain = COSTS.target.seconds(load, load, 256 * load)
    assert 0.0 < spent <= 0.05 * plain

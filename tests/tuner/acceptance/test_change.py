"""Changes of acceptance: how soon they are found, how seldom there are false ones, and what is kept."""

import json

import numpy as np
import pytest

from tests.tuner.acceptance.text import CHAT, cycle, sequence
from tuner.acceptance import Acceptance, Alarm
from tuner.acceptance.change import ChangeTest

KEY = ("chat", "en")
BLOCKS_OF_A_REQUEST = 30


def serve(
    acceptance: Acceptance,
    generator: np.random.Generator,
    first: int,
    requests: int,
    mean: float,
    alarms: list[Alarm],
) -> int:
    """Requests one after the other, of an ease of their own around `mean`; returns after how many there was an alarm,
    0 if there was none. Adds it to `alarms`."""
    for request in range(first, first + requests):
        ease = float(np.clip(generator.normal(mean, 0.1), 0.02, 0.98))
        for number, kept in enumerate(generator.random(BLOCKS_OF_A_REQUEST) < ease):
            one = sequence(CHAT, key=request, requested=1, proposed=1, verified=1, accepted=int(kept))
            acceptance.fold(cycle(number, [one]))
        acceptance.finish(request)
        if (request - first) % 10 == 9:
            acceptance.curves("ngram", [KEY])
        alarms.extend(acceptance.alarms())
        if alarms:
            return request - first + 1
    return 0


def test_a_fall_from_60_to_30_percent_is_found_within_30_requests_and_what_came_since_is_kept() -> None:
    generator = np.random.default_rng(1)
    acceptance = Acceptance()
    alarms: list[Alarm] = []
    assert serve(acceptance, generator, 0, 150, 0.6, alarms) == 0
    found = serve(acceptance, generator, 150, 40, 0.3, alarms)
    assert 0 < found <= 30
    (alarm,) = alarms
    assert (alarm.drafter, alarm.route, alarm.language) == ("ngram", *KEY)
    assert alarm.before == pytest.approx(0.6, abs=0.05)
    assert alarm.after == pytest.approx(0.3, abs=0.1)
    assert acceptance.alarms() == ()
    curve = acceptance.curves("ngram", [KEY])[1][KEY]
    assert curve.unconditioned[0] == pytest.approx(0.3, abs=0.1)
    assert 32 <= curve.blocks <= (found + 2) * BLOCKS_OF_A_REQUEST


def test_a_rise_is_found_too() -> None:
    generator = np.random.default_rng(2)
    acceptance = Acceptance()
    assert serve(acceptance, generator, 0, 100, 0.3, []) == 0
    assert 0 < serve(acceptance, generator, 100, 40, 0.6, []) <= 30


def test_at_most_one_false_alarm_in_100_stationary_runs_of_20_000_blocks() -> None:
    """Blocks come in requests of 30 of an ease of their own; the design effect is theirs, as `Acceptance` learns it."""
    generator = np.random.default_rng(3)
    alarms = 0
    requests = 20_000 // BLOCKS_OF_A_REQUEST
    ease = np.clip(generator.normal(0.6, 0.1, (100, requests)), 0.02, 0.98)
    kept = generator.random((100, requests, BLOCKS_OF_A_REQUEST)) < ease[:, :, None]
    effect = float(np.var(kept.mean(axis=2)) * BLOCKS_OF_A_REQUEST / (0.6 * 0.4))
    assert effect > 1.5, "blocks of a request are alike"
    for run in kept.reshape(100, -1).tolist():
        test = ChangeTest()
        found = [test.find(effect) for one in run if test.add(one)]
        alarms += any(change is not None for change in found)
    assert alarms <= 1


def test_a_drafter_learns_the_design_effect_of_its_first_drafts() -> None:
    generator = np.random.default_rng(4)
    acceptance = Acceptance()
    assert serve(acceptance, generator, 0, 200, 0.6, []) == 0
    acceptance.curves("ngram", [KEY])
    # A variance of 0.01 between requests of 30 blocks: 1 + 29 * 0.01 / 0.24.
    assert acceptance.design_effect("ngram") == pytest.approx(2.2, abs=0.35)


def test_a_change_shrinks_the_cell_to_its_relatives_and_leaves_the_others_alone() -> None:
    acceptance = Acceptance(half_life_blocks=1e6)
    for index in range(3000):
        acceptance.add_block("ngram", "chat", "da", 1, 1, int(index % 10 < 3))
        acceptance.add_block("ngram", "edit", "en", 1, 1, int(index % 10 < 3))
        acceptance.add_block("ngram", *KEY, 1, 1, int(index % 10 < 8))
    for _ in range(200):
        acceptance.add_block("ngram", *KEY, 1, 1, 0)
    (alarm,) = acceptance.alarms()
    assert alarm == Alarm("ngram", *KEY, alarm.before, 0.0)
    assert alarm.before == pytest.approx(0.8, abs=0.02)
    pooled, curves = acceptance.curves("ngram", [KEY, ("chat", "da")])
    assert curves[KEY].blocks <= 200
    assert 0.0 < curves[KEY].unconditioned[0] < 0.1
    assert curves["chat", "da"].blocks == pytest.approx(3000, rel=0.01)
    assert pooled.unconditioned[0] < 0.31


def test_a_change_that_one_replica_found_holds_for_those_that_merge_it() -> None:
    found, other = Acceptance(replica="found"), Acceptance(replica="other")
    for index in range(2000):
        found.add_block("ngram", *KEY, 1, 1, int(index % 10 < 8))
        other.add_block("ngram", *KEY, 1, 1, int(index % 10 < 8))
    for _ in range(200):
        found.add_block("ngram", *KEY, 1, 1, 0)
    assert len(found.alarms()) == 1
    other.merge(found)
    found.merge(other)
    for acceptance in (found, other):
        assert acceptance.curves("ngram", [KEY])[1][KEY].unconditioned[0] < 0.1


def test_a_change_while_it_was_down_is_found_after_a_restart() -> None:
    before, after = Acceptance(), Acceptance()
    for index in range(2000):
        before.add_block("ngram", *KEY, 1, 1, int(index % 10 < 8))
    after.restore(json.loads(json.dumps(before.state())))
    for _ in range(128):
        after.add_block("ngram", *KEY, 1, 1, 0)
    (alarm,) = after.alarms()
    assert alarm.before == pytest.approx(0.8, abs=0.02)
    assert after.curves("ngram", [KEY])[1][KEY].unconditioned[0] < 0.1


def test_the_memory_of_the_test_grows_as_a_logarithm() -> None:
    test = ChangeTest()
    for index in range(200_000):
        test.add(index % 3 == 0)
    assert len(test._pieces) < 100
    assert sum(blocks for blocks, _ in test._pieces) == 200_000

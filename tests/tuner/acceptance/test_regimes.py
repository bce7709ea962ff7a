"""What comes back is known at once: how soon, how seldom wrongly, and what is known then."""

import itertools
import json
from array import array

import numpy as np
import pytest

from tests.tuner.acceptance.test_change import BLOCKS_OF_A_REQUEST, CORRELATION, SPREAD, Server, stationary
from tuner.acceptance import Acceptance
from tuner.acceptance.change import effective
from tuner.acceptance.counts import SIZE, Remembered
from tuner.acceptance.moments import Moments
from tuner.acceptance.regimes import Regimes

DAY = [(f"route-{index}", language, mean) for index in range(4) for language, mean in (("en", 0.6), ("da", 0.2))]
NIGHT = [(route, language, 0.3 if language == "en" else 0.5) for route, language, _ in DAY]
CONTEXTS = [(route, language) for route, language, _ in DAY]
WORTH = effective(BLOCKS_OF_A_REQUEST, CORRELATION)


def served(server: Server, traffic: list[tuple[str, str, float]], requests: int) -> int:
    """The number of the request that found a change of everything, counted from 1; 0 if none did."""
    for number, (route, language, mean) in enumerate(itertools.islice(itertools.cycle(traffic), requests), start=1):
        before = len(server.alarms)
        server.serve(1, mean, route, language)
        if any(alarm.route == "*" for alarm in server.alarms[before:]):
            return number
    return 0


def after_a_day_and_a_night(seed: int) -> Server:
    server = Server(seed)
    assert served(server, DAY, 160) == 0
    assert served(server, NIGHT, 80) > 0
    assert served(server, NIGHT, 160) == 0
    return server


def test_a_day_that_comes_back_is_found_in_15_requests_and_so_is_the_night_after_it() -> None:
    server = after_a_day_and_a_night(1)
    assert not server.alarms[-1].returned
    known: dict[str, float] = {}
    for traffic, name in ((DAY, "day"), (NIGHT, "night"), (DAY, "day")):
        found = served(server, traffic, 20)
        assert 0 < found <= 15
        assert server.alarms[-1].returned
        curves = server.acceptance.curves("ngram", CONTEXTS)[1]
        for route, language, mean in traffic:
            assert curves[route, language].unconditioned[0] == pytest.approx(mean, abs=0.1)
        blocks = sum(curve.blocks for curve in curves.values())
        assert blocks > known.get(name, 120 * BLOCKS_OF_A_REQUEST)
        known[name] = blocks
        assert served(server, traffic, 40) == 0


def test_with_what_comes_back_those_are_known_again_that_nobody_looked_at() -> None:
    server = Server(2)
    assert served(server, DAY, 160) == 0
    for key in range(80):
        server.watch(10_000 + key, "idle", CONTEXTS[key % 8], 0.7)
    assert served(server, DAY, 40) == 0
    assert served(server, NIGHT, 80) > 0
    assert server.acceptance.curves("idle", CONTEXTS)[0].blocks == 0.0
    assert served(server, NIGHT, 160) == 0
    assert served(server, DAY, 20) > 0
    found = server.acceptance.curves("idle", CONTEXTS)[0]
    assert found.blocks == pytest.approx(80 * BLOCKS_OF_A_REQUEST, rel=0.05)
    assert found.unconditioned[0] == pytest.approx(0.7, abs=0.05)


def test_another_version_of_a_drafter_does_not_come_back() -> None:
    server = after_a_day_and_a_night(3)
    server.acceptance.reset("ngram", "2")
    assert served(server, DAY, 60) == 0
    assert server.acceptance.curves("ngram", CONTEXTS)[0].blocks <= 60 * BLOCKS_OF_A_REQUEST


def test_a_state_saved_after_a_return_has_what_came_back_and_merges_as_any_other() -> None:
    server = after_a_day_and_a_night(4)
    assert served(server, DAY, 20) > 0
    restored = Acceptance()
    restored.restore(json.loads(json.dumps(server.acceptance.state())))
    want = server.acceptance.curves("ngram", CONTEXTS)
    assert restored.curves("ngram", CONTEXTS) == want
    restored.merge(server.acceptance)
    assert restored.curves("ngram", CONTEXTS) == want


@pytest.mark.parametrize("then", [0.3, 0.55, 0.6, 0.65, 0.9])
def test_at_most_one_false_return_in_100_runs_of_20_000_blocks_whatever_was_once(then: float) -> None:
    cells = {("ngram", *context): remembered(400.0, 400.0 * then) for context in CONTEXTS}
    false = 0
    for run in stationary(5):
        regimes = Regimes()
        regimes.keep(cells)
        known, known_kept = 200.0, 200.0 * float(np.random.default_rng(len(run)).normal(0.6, SPREAD / 200**0.5))
        for mark, kept in enumerate(run, start=1):
            good = WORTH * kept / BLOCKS_OF_A_REQUEST
            regimes.weigh(("ngram", *CONTEXTS[mark % 8]), WORTH, good, known, known_kept, mark)
            known, known_kept = known + WORTH / 8, known_kept + good / 8
            if regimes.take_returned(lambda mark: {}, changed=False) is not None:
                false += 1
                break
    assert false <= 1


def test_once_a_change_is_certain_it_needs_less_proof_that_all_is_as_it_was() -> None:
    key = ("ngram", *CONTEXTS[0])
    regimes = Regimes()
    regimes.keep({key: remembered(400.0, 240.0)})
    assert regimes.take_returned(lambda mark: {}, changed=True) is None
    for mark in range(1, 5):
        regimes.weigh(key, WORTH, 0.55 * WORTH, 400.0, 120.0, mark)
    assert regimes.take_returned(lambda mark: {}, changed=False) is None
    found = regimes.take_returned(lambda mark: {}, changed=True)
    assert found is not None
    assert (found.mark, found.drafter) == (0, "ngram")
    assert found.before == pytest.approx(0.3)
    assert found.after == pytest.approx(0.55)


def remembered(blocks: float, kept: float) -> Remembered:
    return Remembered(array("i", bytes(4 * SIZE)), Moments(), blocks, kept)

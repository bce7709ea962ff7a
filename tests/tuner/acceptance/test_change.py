"""Changes of acceptance: how soon they are found, how seldom there are false ones, and what is kept."""

import json

import numpy as np
import pytest

from policies.types import Context
from tests.tuner.acceptance.test_reblocking import texts_of
from tests.tuner.acceptance.text import Text, bursts, cycle, cycles_of
from tests.tuner.simulated_engine import sequence
from tuner.acceptance import Acceptance, Alarm
from tuner.acceptance.change import DELTA, CellsTest, CellTest, effective
from tuner.acceptance.counts import BUCKETS, NO_PLACE, Cell
from tuner.acceptance.moments import Finished, Moments

KEY = ("chat", "en")
BLOCKS_OF_A_REQUEST = 30
SPREAD = 0.1
"""Standard deviation of the ease of requests."""
CORRELATION = SPREAD**2 / 0.24


class Server:
    """Requests one after the other, of an ease of their own around a mean."""

    def __init__(self, seed: int) -> None:
        self.acceptance = Acceptance()
        self.alarms: list[Alarm] = []
        self._generator = np.random.default_rng(seed)
        self._key = 0

    def serve(self, requests: int, mean: float, route: str = "chat", language: str = "en") -> int:
        """The number of the request after which there was an alarm, counted from 1; 0 if there was none."""
        context = Context("m", route, language)
        for request in range(1, requests + 1):
            self._key += 1
            ease = float(np.clip(self._generator.normal(mean, SPREAD), 0.02, 0.98))
            for number, kept in enumerate(self._generator.random(BLOCKS_OF_A_REQUEST) < ease):
                one = sequence(context, key=self._key, requested=1, proposed=1, verified=1, accepted=int(kept))
                self.acceptance.fold(cycle(number, [one]))
            self.acceptance.finish(self._key)
            self.alarms.extend(self.acceptance.alarms())
            if self.alarms:
                return request
        return 0

    def watch(self, key: int, drafter: str, context: tuple[str, str], mean: float) -> None:
        """A request beside which `drafter` proposes one draft again and again."""
        kept = self._generator.random(BLOCKS_OF_A_REQUEST) < mean
        where = Context("m", *context)
        for number, good in enumerate(kept):
            one = sequence(where, key=key, drafter=drafter, requested=1, proposed=1, verified=1, accepted=int(good))
            self.acceptance.fold(cycle(number, [one]))
        self.acceptance.finish(key)


def test_a_fall_from_60_to_30_percent_is_found_within_30_requests_and_what_came_since_is_kept() -> None:
    server = Server(1)
    assert server.serve(150, 0.6) == 0
    found = server.serve(40, 0.3)
    assert 0 < found <= 30
    alarm = server.alarms[0]
    assert alarm.drafter == "ngram"
    assert alarm.before == pytest.approx(0.6, abs=0.05)
    assert alarm.after == pytest.approx(0.3, abs=0.1)
    assert server.acceptance.alarms() == ()
    curve = server.acceptance.curves("ngram", [KEY])[1][KEY]
    assert curve.unconditioned[0] == pytest.approx(0.3, abs=0.1)
    assert curve.emitted[1] == pytest.approx(1.3, abs=0.1)
    assert 3 * BLOCKS_OF_A_REQUEST <= curve.blocks <= (found + 2) * BLOCKS_OF_A_REQUEST


def test_a_rise_is_found_too() -> None:
    server = Server(2)
    assert server.serve(100, 0.3) == 0
    assert 0 < server.serve(40, 0.6) <= 30


def test_a_change_of_one_context_is_its_own() -> None:
    server = Server(3)
    for _ in range(60):
        assert server.serve(1, 0.6, "chat") == server.serve(3, 0.6, "edit") == server.serve(3, 0.5, "story") == 0
    found = 0
    while not found:
        found = server.serve(1, 0.25, "chat") or server.serve(3, 0.6, "edit") or server.serve(3, 0.5, "story")
    (alarm,) = server.alarms
    assert (alarm.route, alarm.language) == KEY
    curves = server.acceptance.curves("ngram", [KEY, ("edit", "en")])[1]
    assert curves[KEY].unconditioned[0] == pytest.approx(0.25, abs=0.1)
    assert curves["edit", "en"].blocks > 3500
    assert curves["edit", "en"].unconditioned[0] == pytest.approx(0.6, abs=0.05)


def test_a_drafter_that_changed_everywhere_is_found_in_50_requests_over_20_contexts() -> None:
    server = Server(4)
    contexts = [(f"route-{index}", "en", 0.3 + 0.02 * index) for index in range(20)]
    for route, language, mean in contexts * 10:
        assert server.serve(1, mean, route, language) == 0
    served = 0
    for route, language, mean in contexts * 3:
        served += 1
        if server.serve(1, mean / 2.0, route, language):
            break
    assert served <= 50
    (alarm,) = server.alarms
    assert (alarm.route, alarm.language) == ("*", "*")
    assert alarm.after == pytest.approx(alarm.before / 2.0, abs=0.1)
    curves = server.acceptance.curves("ngram", [(route, language) for route, language, _ in contexts])[1]
    assert all(curve.blocks <= 4 * BLOCKS_OF_A_REQUEST for curve in curves.values())
    assert np.mean([curve.unconditioned[0] for curve in curves.values()]) == pytest.approx(0.25, abs=0.08)


def test_a_drafter_that_became_better_in_one_language_and_worse_in_another_is_found_in_60_requests() -> None:
    server = Server(12)
    contexts = [(f"route-{index}", language) for index in range(5) for language in ("en", "de", "fr", "code")]
    before = {"en": 0.56, "de": 0.44, "fr": 0.46, "code": 0.38}
    after = {"en": 0.34, "de": 0.22, "fr": 0.62, "code": 0.68}
    for route, language in contexts * 10:
        assert server.serve(1, before[language], route, language) == 0
    served = 0
    for route, language in contexts * 3:
        served += 1
        if server.serve(1, after[language], route, language):
            break
    assert served < 60
    assert (server.alarms[0].route, server.alarms[0].language) == ("*", "*")


def test_a_drafter_that_nobody_looked_at_is_learned_again_when_another_one_changed() -> None:
    server = Server(13)
    contexts = [(f"route-{index}", "en") for index in range(8)]
    for route, language in contexts * 8:
        assert server.serve(1, 0.6, route, language) == 0
    for key, drafter in enumerate(("idle", "watched") * 40, start=10_000):
        server.watch(key, drafter, contexts[key % 8], 0.3)
    for route, language in contexts:
        assert server.serve(1, 0.6, route, language) == 0
    for round_, (route, language) in enumerate(contexts * 12):
        server.watch(20_000 + round_, "watched", (route, language), 0.3)
        server.serve(1, 0.2, route, language)
        if any(alarm.route == "*" for alarm in server.alarms):
            break
    assert {alarm.drafter for alarm in server.alarms} == {"ngram"}
    assert server.alarms[-1].route == "*"
    found = {name: server.acceptance.curves(name, contexts)[0].blocks for name in ("idle", "watched")}
    assert found["idle"] == 0.0
    assert found["watched"] > 1000.0


def test_a_shift_between_contexts_is_no_change() -> None:
    server = Server(5)
    for _ in range(60):
        assert server.serve(4, 0.7, "edit") == server.serve(1, 0.2, "chat") == 0
    for _ in range(60):
        assert server.serve(1, 0.7, "edit") == server.serve(4, 0.2, "chat") == 0


def test_other_block_lengths_are_no_change_though_blocks_then_start_elsewhere() -> None:
    acceptance = Acceptance()
    key = 0
    shares = []
    for length in (8, 1, 8):
        texts = texts_of(bursts, length)
        for text in texts:
            key += 1
            text.key = key
        cycles = cycles_of(texts)
        for stats in cycles:
            acceptance.fold(stats)
        for text in texts:
            acceptance.finish(text.key)
        kept = [one.accepted > 0 for stats in cycles for one in stats.sequences if one.requested]
        shares.append(np.mean(kept))
    assert shares[1] > 1.2 * shares[0], "the share of first drafts kept is another"
    assert acceptance.alarms() == ()


def test_one_request_that_loops_is_no_change() -> None:
    server = Server(6)
    assert server.serve(100, 0.1) == 0
    looping = Text(10_000, 10_000, 400, (8,), 0.0, 0.0, [True] * 416)
    for stats in cycles_of([looping]):
        server.acceptance.fold(stats)
    server.acceptance.finish(10_000)
    assert server.serve(100, 0.1) == 0


def stationary(seed: int) -> list[list[float]]:
    """First drafts kept by each request, in 100 runs of 20,000 blocks."""
    generator = np.random.default_rng(seed)
    requests = 20_000 // BLOCKS_OF_A_REQUEST
    ease = np.clip(generator.normal(0.6, SPREAD, (100, requests)), 0.02, 0.98)
    kept: list[list[float]] = generator.binomial(BLOCKS_OF_A_REQUEST, ease).tolist()
    return kept


def test_at_most_one_false_alarm_of_a_cell_in_100_stationary_runs_of_20_000_blocks() -> None:
    worth = effective(BLOCKS_OF_A_REQUEST, CORRELATION)
    alarms = 0
    for run in stationary(7):
        test = CellTest()
        found = [
            test.find(DELTA)
            for mark, kept in enumerate(run)
            if test.add(worth, worth * kept / BLOCKS_OF_A_REQUEST, mark)
        ]
        alarms += any(change is not None for change in found)
    assert alarms <= 1


def test_at_most_one_false_alarm_of_a_drafter_in_100_stationary_runs_of_20_000_blocks() -> None:
    worth = effective(BLOCKS_OF_A_REQUEST, CORRELATION)
    alarms = 0
    for run in stationary(8):
        cells, test = [CellTest() for _ in range(10)], CellsTest()
        for mark, kept in enumerate(run):
            cell = cells[mark % len(cells)]
            mean, known = cell.known_mean, cell.blocks
            cell.add(worth, worth * kept / BLOCKS_OF_A_REQUEST, mark)
            language = "abcde"[mark % 5]
            due = mean is not None and test.add(
                ("ngram", str(mark % 10), language), worth, worth * kept / BLOCKS_OF_A_REQUEST, mean, known, mark
            )
            if due and test.find(DELTA) is not None:
                alarms += 1
                break
    assert alarms <= 1


def test_the_correlation_within_requests_is_learned() -> None:
    generator = np.random.default_rng(9)
    moments = Moments()
    nothing = np.zeros(17)
    for ease in np.clip(generator.normal(0.6, SPREAD, 400), 0.02, 0.98):
        kept = float(generator.binomial(BLOCKS_OF_A_REQUEST, ease))
        tokens, blocks, at, accepted = nothing.copy(), nothing.copy(), nothing[1:].copy(), nothing[1:].copy()
        at[0], accepted[0] = BLOCKS_OF_A_REQUEST, kept
        moments.add_request(at, accepted, tokens, blocks)
    served = moments.correlation
    assert served == pytest.approx(CORRELATION, abs=0.015)
    assert Moments().correlation == 0.2


def test_a_change_that_one_replica_found_holds_for_those_that_merge_it() -> None:
    found, other = Server(10), Acceptance(replica="other")
    found.serve(100, 0.8)
    for index in range(2000):
        other.add_block("ngram", *KEY, 1, 1, int(index % 10 < 8))
    assert found.serve(40, 0.1) > 0
    other.merge(found.acceptance)
    found.acceptance.merge(other)
    for acceptance in (found.acceptance, other):
        assert acceptance.curves("ngram", [KEY])[1][KEY].unconditioned[0] < 0.25


def test_a_change_while_it_was_down_is_found_after_a_restart() -> None:
    server = Server(11)
    assert server.serve(100, 0.8) == 0
    state = json.loads(json.dumps(server.acceptance.state()))
    server.acceptance = Acceptance()
    server.acceptance.restore(state)
    assert 0 < server.serve(40, 0.2) <= 30
    assert server.alarms[0].before == pytest.approx(0.8, abs=0.05)
    assert server.acceptance.curves("ngram", [KEY])[1][KEY].unconditioned[0] < 0.3


def test_the_memory_of_a_test_grows_as_a_logarithm() -> None:
    test = CellTest()
    for index in range(100_000):
        test.add(10.0, 3.0, index)
    assert len(test._pieces) < 120
    assert test.blocks == pytest.approx(1e6)


def requests_of_ten(cell: Cell, marks: range) -> None:
    """Requests of ten blocks each, none of which was kept."""
    nothing = np.zeros(17)
    for mark in marks:
        for _ in range(10):
            cell.open_record("local", 1000)[1] += 1
            cell.remember(1, NO_PLACE, NO_PLACE)
            cell.seen += 1
        cell.add_request("local", 1000, Finished("ngram", *KEY, nothing[1:], nothing[1:], nothing, nothing), mark)


def blocks_of(cell: Cell) -> int:
    return sum(sum(record[:BUCKETS]) for record in cell.records.values())


def test_what_was_forgotten_stays_so_when_an_older_change_is_found_elsewhere() -> None:
    cell = Cell()
    requests_of_ten(cell, range(1, 11))
    cell.restart("local", 1000, 8)
    assert blocks_of(cell) == 20
    requests_of_ten(cell, range(11, 13))
    cell.restart("local", 1000, 5)
    assert blocks_of(cell) == 40


def test_what_no_landmark_reaches_back_to_is_forgotten() -> None:
    cell = Cell()
    requests_of_ten(cell, range(1, 61))
    cell.restart("local", 1000, 3)
    assert blocks_of(cell) == 310

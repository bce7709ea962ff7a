"""The live study on the simulated engine: it finds and adopts what is better, under the guard, and drops the rest."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from optuna.storages import BaseStorage, InMemoryStorage

from policies.cycle_policy import CyclePolicy, Knobs
from policies.records import AuditEntry
from policies.stats import CycleStats, RequestStats
from policies.types import Policy
from tests.tuner.simulated_engine import SimulatedEngine, Truth, _Running
from tuner.controller import ControllerOptions
from tuner.tune.knobs import EVERYWHERE, KNOBS, Knob, Point
from tuner.tune.live import Hold, LiveOptions, LiveTuning, State
from tuner.tune.study import Study

PRODUCTION = Knobs(ngram_min_match=2, ngram_max_match=16, draft_stop=0.07, draft_temperature=1.0, prefill_chunk=128)
SPACE: tuple[Knob, ...] = tuple(knob for knob in KNOBS if knob.name == "ngram_min_match")
CHAT = ("chat", "en")
OPTIONS = LiveOptions(window_seconds=1.0, share=0.25, windows=8, trials=8, margin=0.01, seed=3)


def one_best(shortest: int) -> Truth:
    """Matches of 5 tokens at least are offered as often and kept far more often than those of 2."""
    return Truth(shares=(0.2, 0.8), hazards=(0.0, 0.93 if shortest == 5 else 0.55))


def production_best(shortest: int) -> Truth:
    return Truth(shares=(0.2, 0.8), hazards=(0.0, 0.9 if shortest == 2 else 0.4))


def all_alike(shortest: int) -> Truth:
    return Truth(shares=(0.2, 0.8), hazards=(0.0, 0.8))


@dataclass
class KnobbedEngine(SimulatedEngine):
    """Its truth depends on the shortest match that is in force, and a live study is told what the controller is."""

    by_match: Callable[[int], Truth] = all_alike
    live: Any = None
    trial_seconds: float = 0.0

    def _offer(self, one: _Running, policy: CyclePolicy) -> tuple[int, int, int, int]:
        shortest = policy.knobs_of(one.context.route).ngram_min_match
        assert shortest is not None
        self.truth = {CHAT: self.by_match(shortest)}
        return super()._offer(one, policy)


class Both:
    """The controller and the live study, as the service joins them."""

    def __init__(self, engine: KnobbedEngine, live: LiveTuning) -> None:
        self._engine, self._controller, self._live = engine, engine.controller, live

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def fold_cycle(self, stats: CycleStats) -> None:
        if stats.window.trial:
            self._engine.trial_seconds += stats.cycle_seconds
        self._controller.fold_cycle(stats)
        self._live.fold_cycle(stats)

    def fold_request(self, stats: RequestStats) -> None:
        self._controller.fold_request(stats)
        self._live.fold_request(stats)

    def tick(self) -> list[Policy]:
        changed = self._controller.tick()
        self._live.tick()
        return changed


@dataclass
class Rig:
    """An engine that has learned for a while, and a live study beside it."""

    by_match: Callable[[int], Truth]
    options: LiveOptions = OPTIONS
    storage: BaseStorage = field(default_factory=InMemoryStorage)
    guard: Hold | None = None
    audit: list[AuditEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = ControllerOptions(knobs={EVERYWHERE: PRODUCTION})
        self.engine = KnobbedEngine({}, options, by_match=self.by_match)
        controller = self.engine.controller
        self.live = LiveTuning(
            controller,
            self.open_study,
            lambda: controller.snapshot.cycle_policy.cost,
            lambda: self.guard,
            self.audit.append,
            self.options,
            self.engine.clock,
            self.engine.clock,
        )
        self.engine.controller = Both(self.engine, self.live)  # type: ignore[assignment]
        self.serve(60)

    def open_study(self, point: Point) -> Study:
        shortest = point.knobs[EVERYWHERE].ngram_min_match
        assert shortest is not None
        production = {"ngram_min_match": shortest}
        return Study(self.storage, f"live/{shortest}", SPACE, production, {}, sampler="tpe", seed=0)

    def serve(self, requests: int) -> None:
        self.engine.serve([CHAT], 2, requests)

    def serve_until(self, state: State, most: int = 6000) -> None:
        for _ in range(most // 20):
            if self.live.status.state is state:
                return
            self.serve(20)
        raise AssertionError(f"still {self.live.status}")

    def serve_until_adopted(self) -> None:
        for _ in range(300):
            if self.live.status.adopted:
                return
            self.serve(20)
        raise AssertionError(f"nothing adopted: {self.live.status}")

    @property
    def state(self) -> str:
        return self.live.status.state.value

    @property
    def shortest(self) -> int | None:
        return self.engine.controller.production.knobs[EVERYWHERE].ngram_min_match

    @property
    def actions(self) -> list[str]:
        return [entry.action for entry in self.audit]


@pytest.fixture(scope="module")
def adopted() -> Rig:
    rig = Rig(one_best)
    assert rig.live.start("somebody", "a test")
    began = rig.engine.clock.now
    rig.serve_until(State.FINISHED)
    rig.began = began  # type: ignore[attr-defined]
    return rig


def test_a_better_match_length_is_found_and_adopted(adopted: Rig) -> None:
    assert adopted.shortest == 5
    assert adopted.live.status.adopted == {"ngram_min_match": 5}
    assert adopted.engine.policy.knobs[EVERYWHERE].ngram_min_match == 5
    assert adopted.engine.policy.window.trial == 0


def test_an_adoption_is_audited_with_its_interval(adopted: Rig) -> None:
    [entry] = [entry for entry in adopted.audit if entry.action == "tune-adopt"]
    assert entry.actor == "tuner"
    assert entry.details == {"values": {"ngram_min_match": 5}}
    assert "times production (95 % interval" in entry.reason


def test_candidates_serve_no_more_than_their_share_of_time(adopted: Rig) -> None:
    """0.25 s between two ticks comes on top of each window of 1 s."""
    seconds = adopted.engine.clock.now - adopted.began  # type: ignore[attr-defined]
    assert 0.02 < adopted.engine.trial_seconds / seconds < OPTIONS.share * 1.25


def test_what_was_adopted_is_taken_up_after_a_restart_and_taken_back_on_demand() -> None:
    rig = Rig(one_best)
    rig.live.start("somebody", "a test")
    rig.serve_until(State.FINISHED)
    again = Rig(one_best, storage=rig.storage)
    assert again.shortest == 2
    again.live.start("somebody", "goes on")
    assert again.shortest == 5
    again.live.stop("somebody", "we change our mind", revert=True)
    assert again.shortest == 2
    assert again.live.status.adopted == {}
    assert again.actions == ["tune-start", "tune-revert"]
    assert again.audit[-1].details == {"adopted": {"ngram_min_match": 5}}
    third = Rig(one_best, storage=rig.storage)
    third.live.start("somebody", "once more")
    assert third.shortest == 2


@pytest.mark.parametrize("by_match", [production_best, all_alike])
def test_what_is_not_better_is_never_adopted_and_ends_within_its_budget(by_match: Callable[[int], Truth]) -> None:
    rig = Rig(by_match)
    rig.live.start("somebody", "a test")
    rig.serve_until(State.FINISHED)
    assert rig.shortest == 2
    assert "tune-adopt" not in rig.actions
    assert 1 <= rig.live.status.tried <= OPTIONS.trials


def test_what_is_clearly_worse_is_dropped_after_few_windows() -> None:
    rig = Rig(production_best)
    rig.live.start("somebody", "a test")
    first, most = rig.live.status.trial, 0
    for _ in range(200):
        if rig.live.status.trial != first:
            break
        most = max(most, rig.live.status.windows)
        rig.serve(2)
    assert rig.live.status.trial != first
    assert most < OPTIONS.windows


def test_a_guard_that_trips_ends_the_candidate_and_holds_the_study_until_it_is_over() -> None:
    rig = Rig(one_best)
    rig.live.start("somebody", "a test")
    for _ in range(500):
        if rig.engine.policy.window.trial:
            break
        rig.serve(1)
    trial = rig.live.status.trial
    assert rig.engine.policy.window.trial == trial
    rig.guard = Hold("the safety budget is spent", ends_candidate=True)
    rig.serve(20)
    assert rig.state == "held"
    assert "the safety budget is spent" in rig.live.status.sentence
    assert rig.live.status.trial != trial
    held_from = len(rig.engine.cycles)
    rig.serve(100)
    assert not any(stats.window.trial for stats in rig.engine.cycles[held_from:])
    rig.guard = None
    rig.serve(100)
    assert rig.state == "trying"
    assert any(stats.window.trial for stats in rig.engine.cycles[held_from:])


def test_an_order_that_is_no_fault_of_the_candidate_holds_it_and_lets_it_go_on() -> None:
    rig = Rig(one_best)
    rig.live.start("somebody", "a test")
    for _ in range(500):
        if rig.engine.policy.window.trial:
            break
        rig.serve(1)
    trial = rig.live.status.trial
    rig.guard = Hold("speculation is switched off everywhere", ends_candidate=False)
    rig.serve(20)
    assert (rig.state, rig.live.status.trial, rig.engine.policy.window.trial) == ("held", trial, 0)
    rig.guard = None
    rig.serve(2)
    assert (rig.state, rig.live.status.trial) == ("trying", trial)


def test_a_production_that_comes_again_ends_the_chain_of_adoptions() -> None:
    """5 was adopted against 2, and 2 against 5: neither a start nor a revert goes round for ever."""
    rig = Rig(all_alike)
    for production, adopted in ((2, 5), (5, 2)):
        point = Point({EVERYWHERE: Knobs(ngram_min_match=production)}, 0.02)
        rig.open_study(point).keep("adopted", {"ngram_min_match": adopted})
    rig.live.start("somebody", "a test")
    assert rig.shortest == 2
    rig.live.stop("somebody", "x", revert=True)
    rig.live.start("somebody", "again")
    assert rig.shortest == 2
    assert rig.live.status.adopted == {}


def test_what_was_adopted_is_forgotten_by_a_revert_before_a_start() -> None:
    rig = Rig(all_alike)
    rig.open_study(rig.engine.controller.production).keep("adopted", {"ngram_min_match": 5})
    rig.live.stop("somebody", "never again", revert=True)
    rig.live.start("somebody", "a test")
    assert rig.shortest == 2


def test_a_stop_is_in_force_at_once_and_keeps_production() -> None:
    rig = Rig(one_best)
    rig.live.start("somebody", "a test")
    assert not rig.live.start("somebody", "twice")
    for _ in range(500):
        if rig.engine.policy.window.trial:
            break
        rig.serve(1)
    rig.live.stop("somebody", "enough", revert=False)
    assert rig.engine.policy.window.trial == 0
    assert rig.engine.policy.knobs[EVERYWHERE].ngram_min_match == 2
    stopped = len(rig.engine.cycles)
    rig.serve(100)
    assert not any(stats.window.trial for stats in rig.engine.cycles[stopped:])
    assert rig.actions == ["tune-start", "tune-stop"]


def test_a_storage_that_fails_ends_the_study_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(production_best)
    rig.live.start("somebody", "a test")

    def fail(self: Study, number: int, ratio: float) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Study, "tell", fail)
    rig.serve_until(State.FAILED)
    assert "OSError" in rig.live.status.sentence
    assert rig.engine.policy.window.trial == 0
    rig.serve(20)


def test_the_status_does_not_wait_for_a_storage_that_keeps_a_start_waiting() -> None:
    rig = Rig(all_alike)
    asked, free = threading.Event(), threading.Event()
    open_study = rig.open_study

    def waits(point: Point) -> Study:
        asked.set()
        assert free.wait(60.0)
        return open_study(point)

    live = LiveTuning(
        rig.engine.controller,
        waits,
        lambda: None,
        lambda: None,
        rig.audit.append,
        OPTIONS,
        rig.engine.clock,
        rig.engine.clock,
    )
    told: list[State] = []
    starting = threading.Thread(target=live.start, args=("alice", "a try"), daemon=True)
    asking = threading.Thread(target=lambda: told.append(live.status.state), daemon=True)
    starting.start()
    assert asked.wait(60.0)
    asking.start()
    asking.join(30.0)
    assert told == [State.OFF]
    free.set()
    starting.join(60.0)
    assert live.status.state is State.TRYING

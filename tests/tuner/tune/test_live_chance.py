"""Live adoption against chance: candidates that are as good as production, and one that is better."""

import random
from collections.abc import Callable

import pytest
from optuna.storages import InMemoryStorage

from policies.cycle_policy import Knobs, Window
from policies.records import AuditEntry
from policies.testing import FakeClock
from policies.types import Context
from tests.tuner.simulated_engine import TRUE_COST, cycle, sequence
from tuner.tune.knobs import EVERYWHERE, KNOBS, Point
from tuner.tune.live import LiveOptions, LiveTuning, State
from tuner.tune.study import Study

CONTEXT = Context("m", "chat", "en")
SPACE = tuple(knob for knob in KNOBS if knob.name == "draft_stop")


class Steered:
    """Takes knobs, and remembers what serves."""

    def __init__(self) -> None:
        self.production = Point({EVERYWHERE: Knobs(draft_stop=0.07)}, 0.02)
        self.trial = 0
        self.point: Point | None = None

    def set_production(self, point: Point) -> None:
        self.production = point

    def set_trial(self, trial: int, point: Point | None) -> None:
        self.trial, self.point = trial, point


def live_run(speed: Callable[[float], float], trials: int, seed: int) -> tuple[int, int]:
    """(adoptions, candidates) of a study: windows are as fast as `speed` says of the stop, times noise of their own."""
    clock, source, steered, audit = FakeClock(), random.Random(seed), Steered(), list[AuditEntry]()
    storage = InMemoryStorage()

    def open_study(point: Point) -> Study:
        production = point.values(EVERYWHERE, ["draft_stop"])
        return Study(storage, str(production), SPACE, production, {}, sampler="tpe", seed=seed)

    options = LiveOptions(window_seconds=1.0, share=0.5, windows=8, trials=trials, margin=0.0, seed=seed)
    live = LiveTuning(steered, open_study, lambda: TRUE_COST, lambda: None, audit.append, options, clock, clock)
    live.start("somebody", "a test")
    window, before = 1.0, 0
    while live.status.state in (State.TRYING, State.CONFIRMING):
        if steered.trial != before:
            before, window = steered.trial, source.lognormvariate(0.0, 0.05)
        point = steered.point if steered.trial else steered.production
        assert point is not None
        stop = point.knobs[EVERYWHERE].draft_stop
        assert stop is not None
        seconds = TRUE_COST.seconds(1, 1, 100) * window / speed(stop) * source.lognormvariate(0.0, 0.05)
        rows = [sequence(CONTEXT, verified=0, emitted=1)]
        served = Window(1, plain=False, trial=steered.trial)
        live.fold_cycle(cycle(load=1, tokens=1, kv_tokens=100, seconds=seconds, window=served, sequences=rows))
        clock.advance(0.12)
        live.tick()
    return sum(entry.action == "tune-adopt" for entry in audit), live.status.tried


def test_chance_adopts_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two judgements is wrong in 2.5 % of cases, both together in 0.06 %: of 400, in 0.25 on average."""
    monkeypatch.setattr("tuner.tune.live.PATIENCE", 1000)
    adopted, tried = live_run(lambda stop: 1.0, trials=400, seed=11)
    assert tried == 400
    assert adopted <= 2


def test_what_is_better_by_a_seventh_is_found_in_most_studies() -> None:
    def better_in_the_middle(stop: float) -> float:
        return 1.15 if 0.15 < stop < 0.4 else 1.0

    found = sum(live_run(better_in_the_middle, trials=10, seed=seed)[0] > 0 for seed in range(20))
    assert found >= 16

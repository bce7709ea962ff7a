"""The study that goes on while a server serves: one candidate at a time, in windows, under the guard.

A candidate is dropped as soon as its interval says that it cannot win, or when a guard trips. To be adopted it has to
win twice: in its windows, judged once at their end, and in as many new ones, since the best of many was lucky in the
first. What is adopted is production from then on, and a new study begins against it.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from policies.cycle_policy import PassCost
from policies.records import AuditEntry
from policies.stats import CycleStats, RequestStats
from policies.types import Interval
from tuner.recorder import TUNER
from tuner.tune.knobs import EVERYWHERE, Point, Values
from tuner.tune.stop import should_stop
from tuner.tune.windows import Comparison, Windows

_log = logging.getLogger(__name__)

LEAST_WINDOWS = 4
"""Before any judgement."""
PATIENCE = 10
STATUS_SECONDS = 0.25
"""So long whoever asks for the status waits for a change under way."""
_ADOPTED = "adopted"


class Steered(Protocol):
    """What takes the knobs: `tuner.controller.Controller`."""

    @property
    def production(self) -> Point:
        """The knobs that serve."""
        ...

    def set_production(self, point: Point) -> None:
        """Serve with other knobs."""
        ...

    def set_trial(self, trial: int, point: Point | None) -> None:
        """Serve with the knobs of a trial until it is taken back."""
        ...


class LiveStudy(Protocol):
    """What proposes: `tuner.tune.study.Study`, which is imported only when a study begins."""

    def propose(self) -> Any: ...
    def tell(self, number: int, ratio: float) -> None: ...
    def keep(self, key: str, value: Any) -> None: ...
    def kept(self, key: str) -> Any: ...

    @property
    def trials(self) -> Any: ...


class State(StrEnum):
    """Of the live study."""

    OFF = "off"
    TRYING = "trying"
    CONFIRMING = "confirming"
    HELD = "held"
    """A guard forbids windows now."""
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Hold:
    """Why no candidate may serve now."""

    reason: str
    """In a few words."""
    ends_candidate: bool
    """Whether the candidate that serves may be the cause, and is dropped; else it goes on afterwards."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How closely, and for how large a share of time, candidates serve."""

    window_seconds: float = 2.0
    share: float = 0.1
    windows: int = 20
    trials: int = 30
    margin: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """What is known of the live study; a value for people and programs."""

    state: State
    sentence: str
    trial: int | None = None
    values: Values = field(default_factory=dict)
    windows: int = 0
    ratio: Interval | None = None
    tried: int = 0
    adopted: Mapping[str, float] = field(default_factory=dict)
    """What the study put in place of the configuration's, in force now."""


class LiveTuning:
    """A telemetry `Consumer`. `fold_cycle` and `tick` come from the tuner's thread, the rest from any."""

    def __init__(
        self,
        steered: Steered,
        open_study: Callable[[Point], LiveStudy],
        cost: Callable[[], PassCost | None],
        guard: Callable[[], Hold | None],
        audit: Callable[[AuditEntry], None],
        options: LiveOptions,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        kept_apart: tuple[str, ...] = (),
    ) -> None:
        """
        Args:
            steered: takes knobs.
            open_study: the study against a production, begun or taken up; raises `StoreError` or `SettingsError`.
            cost: the cost of a plain cycle as it is known now.
            guard: what keeps candidates from serving now; None if nothing does.
            audit: takes what was changed and why.
            clock: Unix seconds.
            monotonic: seconds, for windows.
            kept_apart: routes on which nothing may be tried.
        """
        self._steered, self._open_study, self._cost, self._guard = steered, open_study, cost, guard
        self._audit, self._options, self._clock, self._monotonic = audit, options, clock, monotonic
        self._lock = threading.Lock()
        self._configured = steered.production.with_own(kept_apart)
        self._study: LiveStudy
        """Against what serves now."""
        self._adopted: dict[str, float] = {}
        self._tried = 0
        self._windows = Windows(options.window_seconds, options.share, options.seed)
        self._candidate: Any = None
        self._serving = 0
        """The trial whose window is open."""
        self._comparison = Comparison()
        self._first: Interval | None = None
        self._set(State.OFF, "No live study runs.")
        self._known = self._as_it_is()

    @property
    def status(self) -> LiveStatus:
        """How far it has come; while a storage is waited for, how far it had come before."""
        if self._lock.acquire(timeout=STATUS_SECONDS):
            try:
                self._known = self._as_it_is()
            finally:
                self._lock.release()
        return self._known

    def _as_it_is(self) -> LiveStatus:
        candidate, running = self._candidate, self._state in (State.TRYING, State.CONFIRMING, State.HELD)
        return LiveStatus(
            self._state,
            self._sentence,
            candidate.number if candidate and running else None,
            dict(candidate.values) if candidate and running else {},
            self._comparison.windows if running else 0,
            self._comparison.interval() if running else None,
            self._tried,
            dict(self._adopted),
        )

    def start(self, actor: str, reason: str) -> bool:
        """Begin, or go on with what was adopted and tried before; False if it runs already.

        Raises:
            StoreError, SettingsError: the study cannot be opened; nothing has changed.
        """
        with self._lock:
            if self._state not in (State.OFF, State.FINISHED, State.FAILED):
                return False
            self._follow()
            self._tried = 0
            self._record(actor, "tune-start", reason, {"adopted": dict(self._adopted)})
            self._next()
            return True

    def stop(self, actor: str, reason: str, *, revert: bool) -> None:
        """End it within a cycle; with `revert` serve again with what the configuration says, now and from then on.

        Raises:
            StoreError, SettingsError: it has ended, and serves as it should, but the studies cannot be told.
        """
        with self._lock:
            self._serve(0)
            self._candidate = None
            self._set(State.OFF, "No live study runs.")
            adopted = dict(self._adopted)
            if revert:
                self._steered.set_production(self._configured)
                self._adopted = {}
            self._record(actor, "tune-revert" if revert else "tune-stop", reason, {"adopted": adopted})
            if revert:
                for study, _ in self._chain():
                    study.keep(_ADOPTED, None)

    def fold_cycle(self, stats: CycleStats) -> None:
        """Count a cycle for the candidate's windows or for production's."""
        with self._lock:
            cost = self._cost()
            if self._candidate is not None and cost is not None:
                self._windows.fold(stats, self._candidate.number, cost)

    def fold_request(self, stats: RequestStats) -> None:
        """Nothing to do: cycles say it."""

    def tick(self) -> None:
        """Open and close windows, judge, drop, adopt. A fault of the storage ends the study and nothing else."""
        with self._lock:
            if self._candidate is None or self._state not in (State.TRYING, State.CONFIRMING, State.HELD):
                return
            try:
                self._move()
            except Exception as error:  # noqa: BLE001 - logged and told; serving and learning go on without the study
                _log.exception("the live study ends")
                self._serve(0)
                self._candidate = None
                told = f"The live study ended with a fault ({type(error).__name__}); the log says why."
                self._set(State.FAILED, told)

    def _move(self) -> None:
        now = self._monotonic()
        hold = self._guard()
        if hold is not None:
            if self._serving and hold.ends_candidate:
                self._drop(hold.reason)
            if self._candidate is not None:
                self._serve(0)
                self._set(State.HELD, f"No candidate may serve now: {hold.reason}.")
                self._windows.begin(now)
            return
        if self._state is State.HELD:
            self._set(State.TRYING if self._first is None else State.CONFIRMING, self._told())
        if self._windows.over(now):
            counted = self._windows.close(self._comparison)
            self._windows.begin(now)
            if counted:
                self._judge()
        if self._candidate is not None:
            self._serve(self._candidate.number if self._windows.trying(now) else 0)

    def _judge(self) -> None:
        interval, options = self._comparison.interval(), self._options
        if interval is None or self._comparison.windows < LEAST_WINDOWS:
            return
        if interval.high < 1.0 + options.margin:
            self._drop("it cannot win any more")
        elif self._comparison.windows >= options.windows:
            if interval.low <= 1.0 + options.margin:
                self._drop("it is not told from production")
            elif self._first is None:
                self._first, self._comparison = interval, Comparison()
                self._set(State.CONFIRMING, self._told())
            else:
                self._adopt(interval)

    def _drop(self, why: str) -> None:
        interval = self._comparison.interval()
        # A candidate that a guard ended before it was measured ranks with the worst.
        self._tell(interval.estimate if interval is not None else 0.0)
        _log.info("trial %d of the live study is dropped: %s", self._candidate.number, why)
        self._next()

    def _adopt(self, interval: Interval) -> None:
        candidate, before = self._candidate, self._steered.production
        after = before.with_values(EVERYWHERE, candidate.values)
        self._tell(interval.estimate)
        self._study.keep(_ADOPTED, dict(candidate.values))
        self._steered.set_production(after)
        reason = (
            f"trial {candidate.number} of the live study was {interval.estimate:.3f} times production "
            f"(95 % interval {interval.low:.3f} to {interval.high:.3f}) in new windows"
        )
        self._record(TUNER, "tune-adopt", reason, {"values": dict(candidate.values)})
        self._follow()
        self._next()

    def _tell(self, ratio: float) -> None:
        self._serve(0)
        self._study.tell(self._candidate.number, ratio)
        self._tried += 1

    def _follow(self) -> None:
        """Serve with what was adopted, and go on with the study against it."""
        chain = self._chain()
        point, adopted = self._configured, dict[str, float]()
        for study, before in chain:
            self._study, point = study, before
            values = study.kept(_ADOPTED)
            if values is not None and study is not chain[-1][0]:
                adopted |= values
        self._adopted = adopted
        if self._steered.production != point:
            self._steered.set_production(point)

    def _chain(self) -> list[tuple[LiveStudy, Point]]:
        """The study against the configuration; where it has adopted something, the one against that, and so on. A
        production that comes again ends it: there it goes on."""
        chain: list[tuple[LiveStudy, Point]] = []
        point = self._configured
        while True:
            study = self._open_study(point)
            again = any(point == before for _, before in chain)
            chain.append((study, point))
            values = study.kept(_ADOPTED)
            if again or values is None:
                return chain
            point = point.with_values(EVERYWHERE, values)

    def _next(self) -> None:
        """Take the next candidate, unless the study is over."""
        study = self._study
        self._candidate, self._first, self._comparison = None, None, Comparison()
        ratios = [trial.ratio for trial in study.trials if not trial.is_production]
        if self._tried >= self._options.trials or should_stop(ratios, self._options.margin, PATIENCE):
            self._set(State.FINISHED, f"The live study has ended after {len(ratios)} candidates against production.")
            return
        proposed = study.propose()
        while proposed.is_production:  # that it is as fast as itself needs no window
            study.tell(proposed.number, 1.0)
            proposed = study.propose()
        self._candidate = proposed
        self._windows.begin(self._monotonic())
        self._set(State.TRYING, self._told())

    def _serve(self, trial: int) -> None:
        """Open the window of a trial; 0 closes it."""
        if trial != self._serving:
            self._serving = trial
            values = self._candidate.values if trial else {}
            self._steered.set_trial(trial, self._steered.production.with_values(EVERYWHERE, values) if trial else None)

    def _told(self) -> str:
        number, windows = self._candidate.number, self._options.windows
        if self._first is None:
            return f"Trial {number} serves in {windows} windows, each against production around it."
        return f"Trial {number} won in its windows and has to win in {windows} new ones."

    def _set(self, state: State, sentence: str) -> None:
        self._state, self._sentence = state, sentence

    def _record(self, actor: str, action: str, reason: str, details: Mapping[str, Any]) -> None:
        self._audit(AuditEntry(self._clock(), actor, action, "*", "*", reason, details))

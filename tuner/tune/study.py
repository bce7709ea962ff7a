"""A study: what was proposed and what came of it, in Optuna's storage, so that it can be taken up again."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from policies.store import StoreUnavailableError
from tuner.settings import SettingsError
from tuner.tune.knobs import Knob, Values, possible
from tuner.tune.storage import reason_of

SamplerName = Literal["tpe", "gp"]
STARTUP_TRIALS = 8
"""Candidates drawn at random before the sampler has something to go by."""
PRODUCTION_EVERY = 6
"""Production is measured against itself in trial 0 and in every sixth: it tells the noise."""
_IDENTITY, _CONFIRMED = "identity", "confirmed"


@dataclass(frozen=True, slots=True)
class Pair:
    """Speeds of a candidate and of production at the same work, one right after the other."""

    candidate: float
    production: float

    @property
    def ratio(self) -> float:
        return self.candidate / self.production


@dataclass(frozen=True, slots=True)
class Proposed:
    """A candidate that is to be measured."""

    number: int
    values: Values
    is_production: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was measured."""

    number: int
    values: Values
    is_production: bool
    ratio: float
    """Of its speed to production's."""
    pairs: tuple[Pair, ...]


P = ParamSpec("P")
T = TypeVar("T")


def _told(call: Callable[Concatenate["Study", P], T]) -> Callable[Concatenate["Study", P], T]:
    """A storage that fails is one sentence."""

    @wraps(call)
    def reached(study: "Study", /, *given: P.args, **named: P.kwargs) -> T:
        try:
            return call(study, *given, **named)
        except (StorageInternalError, SQLAlchemyError) as error:
            raise StoreUnavailableError(
                f"The study {study.name!r} cannot be read or written ({reason_of(error)}): once it can be, the same "
                "command goes on where this one ends."
            ) from error

    return reached


class Study:
    """Ask for a candidate, tell what came of it. Every call reads or writes the storage, and raises
    StoreUnavailableError where it cannot. Several processes may share a study."""

    @_told
    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        space: Sequence[Knob],
        production: Values,
        identity: Mapping[str, Any],
        *,
        sampler: SamplerName,
        seed: int,
    ) -> None:
        """Begin a study, or take up the one of that name.

        Args:
            storage: see `tuner.tune.storage`.
            name: of the study.
            space: the knobs to search.
            production: what each of them is now.
            identity: JSON-able, what its trials depend on besides their values.
            sampler: what proposes.
            seed: with the trials so far it makes the next proposal, in whatever process.

        Raises:
            SettingsError: a study of that name was begun with other knobs, production or identity.
        """
        self.name = name
        self._space, self._production, self._sampler, self._seed = tuple(space), dict(production), sampler, seed
        self._study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
        bounds = {knob.name: [knob.low, knob.high] for knob in space}
        mine = {"bounds": bounds, "production": self._production} | dict(identity)
        begun = self._study.user_attrs.get(_IDENTITY)
        if begun is None:
            self._study.set_user_attr(_IDENTITY, mine)
        elif begun != mine:
            differing = ", ".join(key for key in mine | begun if mine.get(key) != begun.get(key))
            raise SettingsError(f"The study {name!r} was begun with other {differing}: give another --study.")

    @property
    @_told
    def trials(self) -> tuple[Trial, ...]:
        """Those that were measured, in order."""
        kept = self._study.user_attrs
        return tuple(
            Trial(
                trial.number,
                possible(trial.params),
                self._is_production(trial.params),
                trial.value or 0.0,
                tuple(Pair(*pair) for pair in kept.get(_pairs_of(trial.number), ())),
            )
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state is TrialState.COMPLETE
        )

    @property
    @_told
    def confirmed(self) -> Mapping[str, Any] | None:
        """What `confirm` kept of the best candidate; None as long as there is none, or another is best by now."""
        return self._study.user_attrs.get(_CONFIRMED)

    @_told
    def propose(self) -> Proposed:
        """The next candidate: first what was proposed and never told, as a process that was killed leaves it."""
        trial = self._left()
        if trial is not None:
            return self._proposed(trial.number, trial.params)
        number = len(self._study.get_trials(deepcopy=False))
        if number % PRODUCTION_EVERY == 0:
            self._study.enqueue_trial(self._production)
        self._study.sampler = _sampler(self._sampler, self._seed + number)
        asked = self._study.ask(self._distributions())
        return self._proposed(asked.number, asked.params)

    @_told
    def tell(self, number: int, ratio: float, pairs: Sequence[Pair] = ()) -> None:
        """Keep what came of a candidate."""
        # Of the study and not of the trial, of which another process has no handle.
        self._study.set_user_attr(_pairs_of(number), [[pair.candidate, pair.production] for pair in pairs])
        with suppress(UpdateFinishedTrialError):  # another process that shares the study was sooner, by a moment
            self._study.tell(number, ratio, skip_if_finished=True)

    @_told
    def confirm(self, number: int, pairs: Sequence[Pair]) -> None:
        """Keep how the candidate that is best did in rounds that the search had not seen."""
        kept = {"number": number, "pairs": [[pair.candidate, pair.production] for pair in pairs]}
        self._study.set_user_attr(_CONFIRMED, kept)

    @_told
    def keep(self, key: str, value: Any) -> None:
        """Keep something JSON-able with the study."""
        self._study.set_user_attr(key, value)

    @_told
    def kept(self, key: str) -> Any:
        """What `keep` kept; None if nothing."""
        return self._study.user_attrs.get(key)

    def _left(self) -> FrozenTrial | None:
        """A running trial with a value for every knob. One without is left alone: it was cut off while it was proposed,
        or another process is just proposing it. No sampler looks at it."""
        names = {knob.name for knob in self._space}
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return next((trial for trial in running if set(trial.params) == names), None)

    def _proposed(self, number: int, params: Mapping[str, Any]) -> Proposed:
        return Proposed(number, possible(params), self._is_production(params))

    def _is_production(self, params: Mapping[str, Any]) -> bool:
        return possible(params) == possible(self._production)

    def _distributions(self) -> dict[str, BaseDistribution]:
        return {
            knob.name: IntDistribution(int(knob.low), int(knob.high))
            if knob.whole
            else FloatDistribution(knob.low, knob.high)
            for knob in self._space
        }


def named(ground: str, scope: str, space: Sequence[Knob], production: Values, identity: Mapping[str, Any]) -> str:
    """A name that follows from all that the trials depend on: whoever asks for the same goes on with the same study."""
    bounds = [[knob.name, knob.low, knob.high] for knob in space]
    basis = json.dumps([bounds, dict(production), dict(identity)], sort_keys=True)
    return f"{ground}/{scope}/{hashlib.sha256(basis.encode()).hexdigest()[:8]}"


def _pairs_of(number: int) -> str:
    return f"pairs of trial {number}"


def _sampler(name: SamplerName, seed: int) -> BaseSampler:
    """Made anew for each proposal, so that it rests on seed and trials alone and not on the process that asks."""
    if name == "gp":
        return GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)

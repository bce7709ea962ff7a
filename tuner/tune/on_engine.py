"""Candidates on the embedded engine: the workload served with one and with production, in turn, in one process."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from tuner.bench.rounds import Session, open_session
from tuner.settings import Settings, SettingsError
from tuner.tune.knobs import (
    EVERYWHERE,
    NOTHING_TO_TRY,
    Ground,
    Point,
    Values,
    production_point,
    production_values,
    searched,
)
from tuner.tune.options import TuneOptions
from tuner.tune.report import Found, tell_beginning, tell_trial, tell_verdict
from tuner.tune.search import search
from tuner.tune.storage import open_storage
from tuner.tune.study import Pair, Study
from tuner.workload import ROUTES, Prompt, load_workload


class EngineObjective:
    """Tokens per second of whole rounds, prompts and HTTP included, under the tuner as it serves."""

    def __init__(
        self, session: Session, point: Point, scope: str, prompts: Sequence[Prompt], options: TuneOptions
    ) -> None:
        """`prompts` are those of which each round takes its own."""
        self._session, self._point, self._scope, self._options = session, point, scope, options
        self._prompts = tuple(prompts)
        self.different = 0
        """Outputs that a candidate changed: none, under coupled verification."""

    async def measure(self, values: Values, rounds: Sequence[int]) -> list[Pair]:
        """A round is served twice, by candidate and production; who begins changes, so that a drift cancels."""
        candidate = self._point.with_values(self._scope, values)
        pairs = []
        for index in rounds:
            rates: dict[bool, float] = {}
            texts = []
            for trying in (True, False) if index % 2 else (False, True):
                rates[trying], text = await self._round(candidate if trying else None, index)
                texts.append(text)
            self.different += sum(first != second for first, second in zip(*texts, strict=True))
            pairs.append(Pair(rates[True], rates[False]))
        return pairs

    async def _round(self, point: Point | None, index: int) -> tuple[float, tuple[str, ...]]:
        options, session = self._options, self._session
        first = index * options.prompts % len(self._prompts)
        prompts = list(itertools.islice(itertools.cycle(self._prompts), first, first + options.prompts))
        controller = session.service.controller
        controller.set_trial(1, point)
        try:
            done = await session.round(controller, prompts, options.concurrency, options.tokens)
        finally:
            controller.set_trial(0, None)
        return done.tokens_per_second, done.texts


async def tune_on_engine(settings: Settings, options: TuneOptions, console: Console) -> list[Found]:
    """Search each scope, one after the other, against the same production.

    Raises:
        SettingsError, StoreError: what was asked for cannot be searched.
        LoadError: a request failed.
    """
    storage = open_storage(options.storage_url(settings))
    found: list[Found] = []
    async with open_session(settings, console) as session:
        info = session.service.client.info
        for scope in options.scopes:
            space = searched(settings, scope, info.drafters, Ground.ENGINE)
            if not space:
                raise SettingsError(NOTHING_TO_TRY)
            identity = {
                "model": info.model,
                "drafters": list(info.drafters),
                "search": asdict(options.search) | {"trials": None},
                "sampler": options.sampler,
                "work": [options.concurrency, options.prompts, options.tokens],
            }
            name = options.study_name(settings, scope, space, identity)
            production = production_values(settings, scope, space)
            study = Study(storage, name, space, production, identity, sampler=options.sampler, seed=settings.tuner.seed)
            tell_beginning(console, name, space, study.trials)
            prompts = await _prompts(session, scope, options)
            objective = EngineObjective(session, production_point(settings), scope, prompts, options)
            verdict = await search(
                study, objective, options.search, lambda trial, noise: tell_trial(console, trial, noise)
            )
            if objective.different and settings.engine.verifier == "coupled":
                raise SettingsError(
                    f"{objective.different} outputs differ between a candidate and production; coupled verification "
                    "gives every knob the same text: please report it."
                )
            found.append(Found(scope, production, verdict))
            tell_verdict(console, found[-1])
    return found


async def _prompts(session: Session, scope: str, options: TuneOptions) -> list[Prompt]:
    """Of every route in turn, as many as the rounds can use; what loops is left out."""
    routes = ROUTES if scope == EVERYWHERE else (scope,)
    wanted = -(-options.prompts * options.search.confirming.stop // len(routes))
    of_routes = [(await session.screen(load_workload([route]), wanted, options.tokens))[0] for route in routes]
    return [prompt for turn in itertools.zip_longest(*of_routes) for prompt in turn if prompt is not None]

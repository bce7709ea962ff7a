"""Candidates in a replay of recorded traces: exact and quick, for what a trace can tell.

A trace says what a drafter would have offered and the target kept as the engine was set when it was recorded. So it
tells of the controller's own settings, and nothing of those that change what is drafted.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from rich.console import Console

from tuner.controller import ControllerOptions
from tuner.replay.ours import Ours
from tuner.replay.simulate import simulate
from tuner.replay.trace import Trace
from tuner.replay.trace_file import TraceFileError, load
from tuner.settings import Settings, SettingsError
from tuner.tune.knobs import EVERYWHERE, Ground, Values, production_values, searched
from tuner.tune.options import TuneOptions
from tuner.tune.report import Found, tell_beginning, tell_trial, tell_verdict
from tuner.tune.search import search
from tuner.tune.storage import open_storage
from tuner.tune.study import Pair, Study


class ReplayObjective:
    """Tokens per second of the machine over requests drawn anew from the trace in each round."""

    def __init__(self, trace: Trace, options: ControllerOptions, production: Values) -> None:
        self._trace, self._options, self._production = trace, options, dict(production)
        self._known: dict[int, float] = {}
        """Production's speed by round: it is the same whenever it is replayed."""

    async def measure(self, values: Values, rounds: Sequence[int]) -> list[Pair]:
        """The same requests and the same noise for candidate and production."""
        pairs = []
        for index in rounds:
            if index not in self._known:
                self._known[index] = self._speed(self._production, index)
            same = dict(values) == self._production
            pairs.append(Pair(self._known[index] if same else self._speed(values, index), self._known[index]))
        return pairs

    def _speed(self, values: Values, index: int) -> float:
        requests = self._trace.requests
        drawn = Random(index).choices(requests, k=len(requests))
        options = replace(
            self._options,
            margin=values["margin"],
            max_block_length=int(values["max_block_length"]),
            seed=index,
        )
        outcome = simulate(replace(self._trace, requests=tuple(drawn)), Ours(options), index)
        return float(outcome.load_tokens.sum()) / outcome.seconds


async def tune_on_replay(settings: Settings, options: TuneOptions, console: Console) -> list[Found]:
    """Search what the trace can tell. Raises SettingsError or StoreError: what was asked for cannot be searched."""
    if options.trace is None or list(options.scopes) != [EVERYWHERE]:
        raise SettingsError(
            "A trace tells of the margin and the longest block, which are the whole engine's: leave out --routes, or "
            "use --on engine."
        )
    try:
        trace = load(options.trace)
    except TraceFileError as error:
        raise SettingsError(str(error)) from error
    space = searched(settings, EVERYWHERE, trace.drafters, Ground.REPLAY)
    production = production_values(settings, EVERYWHERE, space)
    identity = {
        "trace": _fingerprint(options.trace),
        "rounds": options.search.rounds,
        "sampler": options.sampler,
        "max_neighbour_slowdown": settings.tuner.max_neighbour_slowdown,
    }
    name = options.study_name(settings, EVERYWHERE, space, identity)
    storage = open_storage(options.storage_url(settings))
    study = Study(storage, name, space, production, identity, sampler=options.sampler, seed=settings.tuner.seed)
    tell_beginning(console, name, space, study.trials)
    controller = ControllerOptions(max_neighbour_slowdown=settings.tuner.max_neighbour_slowdown)
    objective = ReplayObjective(trace, controller, production)
    verdict = await search(study, objective, options.search, lambda trial, noise: tell_trial(console, trial, noise))
    found = Found(EVERYWHERE, production, verdict)
    tell_verdict(console, found)
    return [found]


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]

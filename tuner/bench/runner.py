"""Runs the scenario that was asked for."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rich.console import Console

from policies.stats import EngineInfo
from tuner.bench.cold import run_cold
from tuner.bench.crowd import run_cancel, run_fragment, run_preempt
from tuner.bench.drafters import run_drafters
from tuner.bench.fleet import run_fleet
from tuner.bench.floor import run_floor
from tuner.bench.matrix import run_matrix
from tuner.bench.options import SCENARIOS, BenchOptions
from tuner.bench.other_engines import run_transformers
from tuner.bench.proxy import run_proxy
from tuner.bench.report import Report, begin, finish
from tuner.bench.stream import run_stream
from tuner.bench.tuner_speed import run_tuner_speed
from tuner.root import prepared
from tuner.settings import AUTO, Settings, SettingsError

Scenario = Callable[[Settings, BenchOptions, Console], Coroutine[Any, Any, tuple[EngineInfo | None, Report]]]

RUNNERS: dict[str, Scenario] = {
    "matrix": run_matrix,
    "floor": run_floor,
    "drafters": run_drafters,
    "transformers": run_transformers,
    "fleet": run_fleet,
    "cold": run_cold,
    "cancel": run_cancel,
    "preempt": run_preempt,
    "fragment": run_fragment,
    "stream": run_stream,
    "tuner": run_tuner_speed,
    "proxy": run_proxy,
}

WITHOUT_ENGINE = ("fleet", "proxy", "tuner")
"""Scenarios that do not start our engine."""


def run_bench(settings: Settings, options: BenchOptions, console: Console) -> int:
    """Run the scenario, print what it found, write the JSON. Returns the exit code: 3 when a bar fails.

    Raises:
        SettingsError, WorkloadError: what was asked for cannot be measured; known before anything starts.
        LoadError: a request failed.
    """
    info, report = _run(settings, options, console)
    return finish(console, options, info, report)


def measure(settings: Settings, options: BenchOptions, console: Console) -> Report:
    """As `run_bench`, without the bars, which are for a whole set of drafters."""
    return _run(settings, options, console)[1]


def _run(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo | None, Report]:
    if options.scenario not in RUNNERS:
        raise SettingsError(f"--scenario is {options.scenario!r}; choose from {', '.join(SCENARIOS)}.")
    for name in ("routes", "concurrency", "arms", "languages", "lengths"):
        if not getattr(options, name):
            raise SettingsError(f"--{name} is empty; give at least one, or leave the option out.")
    begin(console, options)
    settings = on_free_ports(settings)
    # The arms that may be asked for are known once the model is.
    if settings.engine.drafters == (AUTO,) and options.scenario not in WITHOUT_ENGINE:
        settings = prepared(settings, console)
    return asyncio.run(RUNNERS[options.scenario](settings, options, console))


def on_free_ports(settings: Settings) -> Settings:
    """A measurement does not meet a server that runs already."""
    return settings.model_copy(
        update={
            "server": settings.server.model_copy(update={"port": 0}),
            "admin": settings.admin.model_copy(update={"port": 0}),
        }
    )

"""``paceline bench --scenario fleet``: vLLM as it may be launched, against vLLM that Paceline steers.

An arm is a launch, since a launch is all that vLLM lets be set; ``tuned`` is a launch with the plug-in behind `paceline
sidecar`. Launches take turns, in reversed order every other time: the same launch differs from one time to the next, so
figures are medians over launches, and intervals are of them. Each serves the same prompts, greedy, on every route and
on all routes at once. Before what counts, each has served the prompts once, for its prefix cache, and ``tuned`` once
more in each cell, to learn.
"""

import contextlib
import itertools
import os
import re
import statistics
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from policies.types import Interval
from tuner.bench.arms import PLAIN_ARM_NAME, TUNED
from tuner.bench.fleet_load import FleetRound, loops, serve_round
from tuner.bench.fleet_tuned import running_tuned
from tuner.bench.matrix import in_turn
from tuner.bench.options import MIXED, BenchOptions
from tuner.bench.report import Bar, Report, interval_row
from tuner.bench.rounds import progress_bar, turns
from tuner.bench.vllm_server import (
    ENVIRONMENT_VARIABLE,
    MAX_SEQUENCES,
    MODEL_NAME,
    VllmError,
    VllmLaunch,
    ngram_launch,
    running_vllm,
    vllm_environment,
)
from tuner.cli.output import print_table
from tuner.load import LoadError
from tuner.paired import paired_ratio
from tuner.root import model_folder
from tuner.settings import Settings, SettingsError
from tuner.workload import Prompt, load_workload

NEAR_PLAIN = 0.97
"""Of the plain launch in each cell, which tuned is to reach."""
CANDIDATES = 40
"""Prompts of a route that are tried, for some that do not loop."""
_NGRAM = re.compile(r"ngram:([1-9]\d?)(?:@([1-9]\d?))?")

Cell = tuple[str, int]
"""(route or `MIXED`, load)."""


@dataclass(slots=True)
class Measured:
    """What every arm did in every cell: a round for each launch."""

    rounds: dict[tuple[Cell, str], list[FleetRound]] = field(default_factory=dict)

    def rates(self, cells: Sequence[Cell], arm: str) -> list[float]:
        """Tokens per second by launch, the geometric mean over `cells`."""
        by_cell = [[done.tokens_per_second for done in self.rounds[cell, arm]] for cell in cells]
        return [statistics.geometric_mean(rates) for rates in zip(*by_cell, strict=True)]

    def ratio(self, cells: Sequence[Cell], arm: str, against: str) -> Interval:
        """Of two arms; launches of one turn are a pair."""
        return paired_ratio(self.rates(cells, arm), self.rates(cells, against))

    def texts_as(self, cell: Cell, arm: str, against: str) -> tuple[int, int]:
        """(texts that are those of another arm's first launch, all texts)."""
        first = self.rounds[cell, against][0].texts
        pairs = [pair for done in self.rounds[cell, arm] for pair in zip(done.texts, first, strict=True)]
        return sum(mine == theirs for mine, theirs in pairs), len(pairs)


async def run_fleet(settings: Settings, options: BenchOptions, console: Console) -> tuple[None, Report]:
    """Launch, measure, and print the table.

    Raises:
        SettingsError, WorkloadError: what was asked for cannot be measured; known before anything starts.
        LoadError: vLLM does not start, or a request failed.
    """
    launches = fleet_launches(options.arms)
    if too_high := [load for load in options.concurrency if load > MAX_SEQUENCES]:
        raise SettingsError(f"--concurrency names {too_high[0]}; vLLM is launched for at most {MAX_SEQUENCES}.")
    if not (named := os.environ.get(ENVIRONMENT_VARIABLE)):
        raise SettingsError(f"{ENVIRONMENT_VARIABLE} names no environment with vLLM; `make test-vllm` makes one.")
    candidates = {route: load_workload([route])[:CANDIDATES] for route in options.routes if route != MIXED}
    cells = [(route, load) for route in (*candidates, MIXED) for load in dict.fromkeys(options.concurrency)]
    measured = Measured()
    prompts: dict[str, Sequence[Prompt]] = {}
    version = ""
    try:
        environment, model = vllm_environment(Path(named)), model_folder(settings)
        with tempfile.TemporaryDirectory() as folder, progress_bar(console) as progress:
            task = progress.add_task("bench", total=options.repeats * len(launches) * len(cells))
            for repeat in range(options.repeats):
                for name in turns(list(launches), repeat):
                    progress.update(task, description=f"{name}: starting")
                    async with _serving(environment, model, launches[name], Path(folder)) as http:
                        version = version or (await http.get("/version")).json()["version"]
                        if not prompts:
                            prompts, looped = await _screened(
                                http, candidates, max(options.concurrency), options.tokens
                            )
                        progress.update(task, description=f"{name}: warming up")
                        await serve_round(http, MODEL_NAME, prompts[MIXED], MAX_SEQUENCES, options.tokens)
                        if name == TUNED:
                            for route, load in cells:
                                await _round(http, prompts, (route, load), options.tokens)
                        for cell in cells:
                            progress.update(task, description=f"{name}: {cell[0]} x{cell[1]}")
                            done = await _round(http, prompts, cell, options.tokens)
                            measured.rounds.setdefault((cell, name), []).append(done)
                            progress.advance(task)
                    # A run takes half an hour: what is known is told as soon as it is.
                    rates = ", ".join(f"{measured.rates([cell], name)[-1]:.0f}" for cell in cells)
                    console.print(f"launch {repeat + 1} of {name}, tokens/s by cell: {rates}", highlight=False)
    except VllmError as error:
        raise LoadError(str(error)) from error
    bars = _bars(measured, cells, list(launches))
    _print(console, measured, cells, list(launches))
    body = {
        "vllm": version,
        "cells": [row for cell in cells for row in _rows(measured, cell, list(launches))],
        "looped_prompts_left_out": looped,
    }
    return None, Report(body, bars)


def fleet_launches(arms: Sequence[str]) -> dict[str, VllmLaunch | None]:
    """The launches by the names of their arms; None is `TUNED`. Raises SettingsError, one sentence."""
    launches: dict[str, VllmLaunch | None] = {}
    for name in arms:
        if name == TUNED:
            launches[name] = None
        elif name == PLAIN_ARM_NAME:
            launches[name] = VllmLaunch()
        elif found := _NGRAM.fullmatch(name):
            launches[name] = ngram_launch(int(found[1]), None if found[2] is None else int(found[2]))
        else:
            raise SettingsError(
                f"--arms names {name!r}; give plain, tuned, ngram:K for a block length of K, or ngram:K@LOAD for one "
                "that is 0 above that load."
            )
    if PLAIN_ARM_NAME not in launches:
        raise SettingsError(f"--arms leaves {PLAIN_ARM_NAME} out, which the others are compared with.")
    return launches


@contextlib.asynccontextmanager
async def _serving(
    environment: Path, model: Path, launch: VllmLaunch | None, folder: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a launch's server; `folder` keeps what is learned from one tuned launch to the next."""
    with contextlib.ExitStack() as stack:
        if launch is None:
            url = stack.enter_context(running_tuned(environment, model, folder))
        else:
            url = stack.enter_context(running_vllm(environment, model, launch)).url
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:
            yield http


async def _screened(
    http: httpx.AsyncClient, candidates: Mapping[str, Sequence[Prompt]], wanted: int, tokens: int
) -> tuple[dict[str, Sequence[Prompt]], dict[str, int]]:
    """So many prompts of each route that do not loop, some of them again where there are fewer; and how many loop."""
    chosen: dict[str, Sequence[Prompt]] = {}
    looped: dict[str, int] = {}
    for route, tried in candidates.items():
        done = await serve_round(http, MODEL_NAME, tried, MAX_SEQUENCES, tokens)
        usable = [prompt for prompt, text in zip(tried, done.texts, strict=True) if not loops(text)]
        if not usable:
            raise LoadError(f"Every prompt of the route {route} looped on this model; there is nothing to measure.")
        looped[route] = len(tried) - len(usable)
        chosen[route] = list(itertools.islice(itertools.cycle(usable), wanted))
    chosen[MIXED] = in_turn(list(chosen.values()))
    return chosen, looped


async def _round(
    http: httpx.AsyncClient, prompts: Mapping[str, Sequence[Prompt]], cell: Cell, tokens: int
) -> FleetRound:
    route, load = cell
    return await serve_round(http, MODEL_NAME, prompts[route][: max(4, 2 * load)], load, tokens)


def _rows(measured: Measured, cell: Cell, arms: Sequence[str]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for arm in arms:
        rates = measured.rates([cell], arm)
        same, texts = measured.texts_as(cell, arm, PLAIN_ARM_NAME)
        rows.append(
            {
                "route": cell[0],
                "concurrency": cell[1],
                "arm": arm,
                "tokens_per_second": interval_row(paired_ratio(rates, [1.0] * len(rates))),
                "over_plain": interval_row(measured.ratio([cell], arm, PLAIN_ARM_NAME)),
                "launches": rates,
                "texts": texts,
                "texts_as_plain": same,
            }
        )
    return rows


def _bars(measured: Measured, cells: Sequence[Cell], arms: Sequence[str]) -> list[Bar]:
    """Tuned over the single launch that comes closest on the mixed workload, and over plain in each cell."""
    if TUNED not in arms:
        return []
    mixed = [cell for cell in cells if cell[0] == MIXED]
    against = {arm: measured.ratio(mixed, TUNED, arm) for arm in arms if arm != TUNED}
    closest = min(against, key=lambda arm: against[arm].estimate)
    bars = [Bar(f"{MIXED}, all loads: tuned over the best single launch ({closest})", against[closest], 1.0)]
    for route, load in cells:
        found = measured.ratio([(route, load)], TUNED, PLAIN_ARM_NAME)
        bars.append(Bar(f"{route} at {load}: tuned over plain", found, NEAR_PLAIN))
    return bars


def _print(console: Console, measured: Measured, cells: Sequence[Cell], arms: Sequence[str]) -> None:
    table = Table(title="tokens per second, medians over launches; in brackets over plain")
    table.add_column("route")
    table.add_column("load", justify="right")
    for arm in arms:
        table.add_column(arm, justify="right")
    for cell in cells:
        shown = []
        for arm in arms:
            rate = statistics.median(measured.rates([cell], arm))
            over = measured.ratio([cell], arm, PLAIN_ARM_NAME).estimate
            shown.append(f"{rate:.0f}" if arm == PLAIN_ARM_NAME else f"{rate:.0f} ({over:.2f})")
        table.add_row(cell[0], str(cell[1]), *shown)
    print_table(console, table)

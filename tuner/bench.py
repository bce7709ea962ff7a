"""``paceline bench``: arms in turn within one process, on the same prompts with the same seeds.

A cell is (route, concurrency, arm). In each round every arm serves the same prompts; the order of the arms is
reversed from round to round, and figures are medians over rounds. Coupled verification gives every arm the same text,
which is checked, so that an arm cannot win by writing less.
"""

import asyncio
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from policies import Arm, CycleStats, DecisionSource, FixedPolicy, Interval, RequestStats
from policies.types import PLAIN, PLAIN_ARM
from tuner.load import LoadError, Outcome, run_closed_loop
from tuner.machine import describe_machine
from tuner.paired import paired_ratio, percentile
from tuner.root import Service, running_service
from tuner.settings import DRAFTERS, Settings, SettingsError
from tuner.workload import Prompt, load_workload

TUNED = "tuned"
PLAIN_ARM_NAME = "plain"
SCREENING_CONCURRENCY = 8
OUTPUT_TOKENS = 64
"""Longest output in a cell, so that a run stays within minutes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Medians over rounds; per-cycle figures are means over the cycles of all rounds."""

    route: str
    concurrency: int
    arm: str
    tokens_per_second: float
    ttft_seconds: float
    tpot_p50_seconds: float
    tpot_p95_seconds: float
    emitted_per_cycle: float
    draft_seconds_per_cycle: float
    verify_seconds_per_cycle: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Tokens per second of `arm` over those of `against`, paired by round."""

    route: str
    concurrency: int
    arm: str
    against: str
    estimate: float
    low: float
    high: float


class Collected:
    """A telemetry consumer that keeps what one round of one arm did."""

    def __init__(self) -> None:
        self.cycles: list[CycleStats] = []
        self.requests: list[RequestStats] = []

    def fold_cycle(self, stats: CycleStats) -> None:
        if stats.load:
            self.cycles.append(stats)

    def fold_request(self, stats: RequestStats) -> None:
        self.requests.append(stats)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one arm."""

    tokens_per_second: float
    collected: Collected
    texts: tuple[str, ...]
    looped: tuple[bool, ...]


def parse_arms(names: Sequence[str], drafters: Sequence[str], limit: int) -> dict[str, Arm | None]:
    """Arms by name: ``plain``, ``DRAFTER:K``, or ``tuned`` (None). Raises SettingsError with one sentence."""
    arms: dict[str, Arm | None] = {}
    proposing = [drafter for drafter in drafters if drafter != PLAIN]
    for name in names:
        if name == TUNED:
            arms[name] = None
        elif name == PLAIN_ARM_NAME:
            arms[name] = PLAIN_ARM
        else:
            drafter, _, length = name.partition(":")
            if drafter not in proposing or not length.isdecimal() or not 1 <= int(length) <= limit:
                known = ", ".join(f"{drafter}:K" for drafter in proposing)
                raise SettingsError(f"--arms names {name!r}; give plain, tuned, or {known} with K from 1 to {limit}.")
            arms[name] = Arm.fixed(drafter, int(length))
    return arms


def run_bench(
    settings: Settings,
    routes: Sequence[str],
    concurrency: Sequence[int],
    arms: Sequence[str],
    repeats: int,
    json_path: Path | None,
    console: Console,
) -> int:
    """Run the cells, print the table, write the JSON. Returns the exit code.

    Raises:
        SettingsError, WorkloadError: what was asked for cannot be measured; known before anything starts.
        LoadError: a request failed.
    """
    for option, values in (("--routes", routes), ("--concurrency", concurrency), ("--arms", arms)):
        if not values:
            raise SettingsError(f"{option} is empty; give at least one, or leave the option out.")
    chosen = parse_arms(arms, DRAFTERS, settings.engine.max_block_length)
    prompts = {route: load_workload([route]) for route in routes}
    report = asyncio.run(_bench(settings, prompts, list(dict.fromkeys(concurrency)), chosen, repeats, console))
    if json_path is not None:
        text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
        json_path.write_text(text + "\n", encoding="utf-8")
    return 0


async def _bench(
    settings: Settings,
    prompts: Mapping[str, Sequence[Prompt]],
    concurrency: Sequence[int],
    arms: Mapping[str, Arm | None],
    repeats: int,
    console: Console,
) -> dict[str, object]:
    async with running_service(settings, console, switchback=False) as service:
        sources = {name: service.controller if arm is None else FixedPolicy(arm) for name, arm in arms.items()}
        rounds: dict[tuple[str, int, str], list[Round]] = {}
        looped: dict[str, int] = {}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        total = len(prompts) * (1 + len(concurrency) * repeats * len(arms))
        timeout = httpx.Timeout(None, connect=5.0)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=service.data_url, timeout=timeout, limits=limits) as http:
            with Progress(*columns, console=console, transient=True) as progress:
                task = progress.add_task("bench", total=total)
                for route, candidates in prompts.items():
                    progress.update(task, description=f"{route}: screening")
                    wanted = 2 * max(concurrency)
                    usable, looped[route] = await _screen(service, http, candidates, wanted)
                    progress.advance(task)
                    for load in concurrency:
                        chosen = usable[: max(4, 2 * load)]
                        for repeat in range(repeats):
                            order = list(sources) if repeat % 2 == 0 else list(reversed(sources))
                            for name in order:
                                progress.update(task, description=f"{route} x{load} {name}")
                                done = await _round(service, http, sources[name], chosen, load)
                                rounds.setdefault((route, load, name), []).append(done)
                                progress.advance(task)
        machine = describe_machine(service.client.info)
        floor = _floor(service, rounds)
    cells = [_cell(route, load, name, done) for (route, load, name), done in rounds.items()]
    ratios = _ratios(rounds, list(arms))
    different = _texts_that_differ(rounds)
    _print(console, cells, ratios, floor, looped, different)
    return {
        "machine": machine,
        "command": {
            "routes": list(prompts),
            "concurrency": list(concurrency),
            "arms": list(arms),
            "repeats": repeats,
        },
        "cells": [asdict(cell) for cell in cells],
        "ratios": [ratio_row(ratio) for ratio in ratios],
        "floor": [{"load": load, "ratio": ratio} for load, ratio in floor],
        "looped_prompts_left_out": looped,
        "texts_that_differ_between_arms": different,
    }


def ratio_row(ratio: Ratio) -> dict[str, object]:
    """As the JSON file has it, which knows no infinity: after a single round ``high`` is null."""
    row = asdict(ratio)
    return row | {"high": None} if math.isinf(ratio.high) else row


async def _screen(
    service: Service, http: httpx.AsyncClient, candidates: Sequence[Prompt], wanted: int
) -> tuple[list[Prompt], int]:
    """The first `wanted` prompts whose output does not loop; the tuner learns the route on the way.

    A small greedy model loops, and loops flatter n-gram drafting: such prompts are left out and counted.
    """
    usable: list[Prompt] = []
    looped = 0
    for start in range(0, len(candidates), SCREENING_CONCURRENCY):
        batch = candidates[start : start + SCREENING_CONCURRENCY]
        done = await _round(service, http, service.controller, batch, SCREENING_CONCURRENCY)
        looped += sum(done.looped)
        usable.extend(prompt for prompt, loops in zip(batch, done.looped, strict=True) if not loops)
        if len(usable) >= wanted:
            break
    if not usable:
        raise SettingsError("Every prompt of the route looped on this model; there is nothing to measure.")
    while len(usable) < wanted:
        usable.extend(usable[: wanted - len(usable)])
    return usable[:wanted], looped


async def _round(
    service: Service, http: httpx.AsyncClient, source: DecisionSource, prompts: Sequence[Prompt], load: int
) -> Round:
    collected = Collected()
    service.decisions.source = source
    with service.listening(collected):
        outcomes, seconds = await run_closed_loop(http, service.client.info.model, prompts, load, OUTPUT_TOKENS)
        await service.fold_telemetry()
    _raise_for_errors(outcomes)
    tokens = sum(outcome.completion_tokens for outcome in outcomes)
    texts = tuple(outcome.text for outcome in outcomes)
    return Round(tokens / seconds, collected, texts, tuple(outcome.looped for outcome in outcomes))


def _raise_for_errors(outcomes: Sequence[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.status != 200]
    if failed:
        first = failed[0]
        raise LoadError(f"{len(failed)} requests failed; the first, {first.prompt.id}: {first.status} {first.error}")


def _cell(route: str, load: int, name: str, rounds: Sequence[Round]) -> Cell:
    requests = [request for done in rounds for request in done.collected.requests]
    cycles = [cycle for done in rounds for cycle in done.collected.cycles]
    tpots = [request.tpot_seconds for request in requests if request.tpot_seconds is not None]
    emitted = sum(sequence.emitted for cycle in cycles for sequence in cycle.sequences)
    blocks = sum(len(cycle.sequences) for cycle in cycles)
    return Cell(
        route=route,
        concurrency=load,
        arm=name,
        tokens_per_second=statistics.median(done.tokens_per_second for done in rounds),
        ttft_seconds=statistics.median(request.ttft_seconds for request in requests),
        tpot_p50_seconds=percentile(tpots, 0.5),
        tpot_p95_seconds=percentile(tpots, 0.95),
        emitted_per_cycle=emitted / blocks,
        draft_seconds_per_cycle=statistics.fmean(sum(cycle.draft_seconds.values()) for cycle in cycles),
        verify_seconds_per_cycle=statistics.fmean(cycle.verify_seconds for cycle in cycles),
    )


def _ratios(rounds: Mapping[tuple[str, int, str], Sequence[Round]], names: Sequence[str]) -> list[Ratio]:
    """Every arm against plain, and tuned against every fixed arm."""
    ratios: list[Ratio] = []
    for route, load in dict.fromkeys((route, load) for route, load, _ in rounds):
        for name in names:
            for against in names:
                if name == against or (against != PLAIN_ARM_NAME and name != TUNED):
                    continue
                interval = paired_ratio(
                    [done.tokens_per_second for done in rounds[route, load, name]],
                    [done.tokens_per_second for done in rounds[route, load, against]],
                )
                ratios.append(
                    Ratio(route, load, name, against, interval.estimate, interval.low, interval.high),
                )
    return ratios


def _texts_that_differ(rounds: Mapping[tuple[str, int, str], Sequence[Round]]) -> int:
    """Outputs that are not the same text in every arm and round of a (route, concurrency)."""
    groups: dict[tuple[str, int], list[tuple[str, ...]]] = {}
    for (route, load, _), done in rounds.items():
        groups.setdefault((route, load), []).extend(one.texts for one in done)
    return sum(len(set(texts)) > 1 for group in groups.values() for texts in zip(*group, strict=True))


def _floor(service: Service, rounds: Mapping[tuple[str, int, str], Sequence[Round]]) -> list[tuple[int, float]]:
    """For each load, the rate of plain cycles over the rate that the linear layers alone allow."""
    seconds: dict[int, list[float]] = {}
    for (_, _, name), done in rounds.items():
        if name != PLAIN_ARM_NAME:
            continue
        for cycle in (cycle for one in done for cycle in one.collected.cycles):
            if cycle.tokens == cycle.load:
                seconds.setdefault(cycle.load, []).append(cycle.cycle_seconds)
    return [
        (load, linear / statistics.median(seconds[load]))
        for load, linear in service.client.info.linear_seconds_by_load
        if load in seconds
    ]


def _print(
    console: Console,
    cells: Sequence[Cell],
    ratios: Sequence[Ratio],
    floor: Sequence[tuple[int, float]],
    looped: Mapping[str, int],
    different: int,
) -> None:
    table = Table(title="tokens per second, medians over rounds; ratio to plain with its 95 % interval")
    for heading in ("route", "concurrency", "arm", "tokens/s", "against plain", "TTFT s", "TPOT p50 ms", "p95 ms"):
        table.add_column(heading, justify="left" if heading in ("route", "arm") else "right")
    against_plain = {
        (ratio.route, ratio.concurrency, ratio.arm): Interval(ratio.estimate, ratio.low, ratio.high)
        for ratio in ratios
        if ratio.against == PLAIN_ARM_NAME
    }
    for cell in cells:
        interval = against_plain.get((cell.route, cell.concurrency, cell.arm))
        table.add_row(
            cell.route,
            str(cell.concurrency),
            cell.arm,
            f"{cell.tokens_per_second:.1f}",
            f"{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]" if interval else "",
            f"{cell.ttft_seconds:.3f}",
            f"{1e3 * cell.tpot_p50_seconds:.1f}",
            f"{1e3 * cell.tpot_p95_seconds:.1f}",
        )
    console.print(table)
    for load, ratio in floor:
        console.print(f"plain decoding at load {load}: {ratio:.2f} of the rate that the linear layers alone allow")
    left_out = ", ".join(f"{route} {count}" for route, count in looped.items())
    console.print(f"prompts left out because their output loops: {left_out}")
    console.print(f"outputs that differ between arms: {different}")

"""``paceline bench``: arms in turn within one process, on the same prompts with the same seeds.

A cell is (route, concurrency, arm); the route `MIXED` is all of them at once, their prompts in turn. In each round
every arm serves the same prompts; the order of the arms is reversed from round to round, and figures are medians over
rounds. Before them ``tuned`` serves one round that is not counted: it starts from nothing, and the bar is on what it
has learned. Coupled verification gives every arm the same text, which is checked, so that an arm cannot win by writing
less.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from policies import Interval
from policies.stats import EngineInfo
from tuner.bench.arms import PLAIN_ARM_NAME, TUNED, parse_arms
from tuner.bench.options import MIXED, BenchOptions
from tuner.bench.report import Bar, Report, interval_text
from tuner.bench.rounds import Round, open_session, progress_bar, turns
from tuner.cli.output import print_table
from tuner.paired import paired_ratio, percentile
from tuner.price import cost_per_million
from tuner.settings import Settings
from tuner.workload import ROUTES, Prompt, load_workload

NEAR_BEST = 0.97
"""Of the best fixed arm of a route and concurrency, which tuned is to reach."""


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
    cost_per_million_tokens: float | None
    """None unless engine.price_per_hour is set."""


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


async def run_matrix(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo, Report]:
    """Run the cells and print the table.

    Raises:
        SettingsError, WorkloadError: what was asked for cannot be measured; known before anything starts.
        LoadError: a request failed.
    """
    arms = parse_arms(options.arms, settings.engine.drafter_names, settings.engine.max_block_length)
    named = [route for route in options.routes if route != MIXED]
    prompts = {route: load_workload([route]) for route in named}
    if MIXED in options.routes:
        prompts[MIXED] = in_turn([prompts.get(route) or load_workload([route]) for route in named or ROUTES])
    concurrency = list(dict.fromkeys(options.concurrency))
    rounds: dict[tuple[str, int, str], list[Round]] = {}
    looped: dict[str, int] = {}
    async with open_session(settings, console) as session:
        sources = {name: session.source(arm) for name, arm in arms.items()}
        with progress_bar(console) as progress:
            each = options.repeats * len(arms) + (TUNED in arms)
            task = progress.add_task("bench", total=len(prompts) * (1 + len(concurrency) * each))
            for route, candidates in prompts.items():
                progress.update(task, description=f"{route}: screening")
                wanted = 2 * max(concurrency)
                usable, looped[route] = await session.screen(candidates, wanted, options.tokens)
                repeated = list(itertools.islice(itertools.cycle(usable), wanted))
                progress.advance(task)
                for load in concurrency:
                    chosen = repeated[: max(4, 2 * load)]
                    if TUNED in arms:
                        # What is measured is what was learned, and no rounds are as few as those of a bench.
                        progress.update(task, description=f"{route} x{load} learning")
                        await session.round(sources[TUNED], chosen, load, options.tokens)
                        progress.advance(task)
                    for repeat in range(options.repeats):
                        for name in turns(list(arms), repeat):
                            progress.update(task, description=f"{route} x{load} {name}")
                            done = await session.round(sources[name], chosen, load, options.tokens)
                            rounds.setdefault((route, load, name), []).append(done)
                            progress.advance(task)
        info = session.service.client.info
    floor = _floor(info, rounds)
    cells = [
        _cell(route, load, name, done, settings.engine.price_per_hour) for (route, load, name), done in rounds.items()
    ]
    ratios = _ratios(rounds, list(arms))
    different = _texts_that_differ(rounds)
    _print(console, cells, ratios, floor, looped, different)
    body = {
        "command": {
            "routes": list(prompts),
            "concurrency": concurrency,
            "arms": list(arms),
            "repeats": options.repeats,
        },
        "cells": [asdict(cell) for cell in cells],
        "ratios": [ratio_row(ratio) for ratio in ratios],
        "floor": [{"load": load, "ratio": ratio} for load, ratio in floor],
        "looped_prompts_left_out": looped,
        "texts_that_differ_between_arms": different,
    }
    faults: tuple[str, ...] = ()
    if different and settings.engine.verifier == "coupled":
        faults = (f"{different} outputs differ between arms; coupled verification gives every arm the same text.",)
    return info, Report(body, bars=_bars(rounds, list(arms)), faults=faults)


def in_turn(by_route: Sequence[Sequence[Prompt]]) -> tuple[Prompt, ...]:
    """The first prompt of each route, the second of each, and so on."""
    return tuple(prompt for turn in itertools.zip_longest(*by_route) for prompt in turn if prompt is not None)


def _bars(rounds: Mapping[tuple[str, int, str], Sequence[Round]], names: Sequence[str]) -> list[Bar]:
    """Tuned against the fixed arm that comes closest, or is furthest ahead: in each cell, and over the loads of `MIXED`
    pooled as well."""
    fixed = [name for name in names if name != TUNED]
    if TUNED not in names or not fixed:
        return []
    cells = list(dict.fromkeys((route, load) for route, load, _ in rounds))
    wanted = [(f"{route} at {load}", [(route, load)], NEAR_BEST) for route, load in cells]
    mixed = [cell for cell in cells if cell[0] == MIXED]
    if mixed:
        wanted.append((f"{MIXED}, all loads", mixed, 1.0))
    bars = []
    for what, pooled, bar in wanted:
        against = {name: _over(rounds, pooled, name) for name in fixed}
        closest = min(fixed, key=lambda name: against[name].estimate)
        bars.append(Bar(f"{what}: tuned over the best fixed arm ({closest})", against[closest], bar))
    return bars


def _over(
    rounds: Mapping[tuple[str, int, str], Sequence[Round]], cells: Sequence[tuple[str, int]], name: str
) -> Interval:
    """Tokens per second of tuned over those of an arm, paired by round, over some cells."""
    pairs = [
        (tuned.tokens_per_second, fixed.tokens_per_second)
        for cell in cells
        for tuned, fixed in zip(rounds[*cell, TUNED], rounds[*cell, name], strict=True)
    ]
    return paired_ratio(*zip(*pairs, strict=True))


def ratio_row(ratio: Ratio) -> dict[str, object]:
    """As the JSON file has it, which knows no infinity: after a single round ``high`` is null."""
    row = asdict(ratio)
    return row | {"high": None} if math.isinf(ratio.high) else row


def _cell(route: str, load: int, name: str, rounds: Sequence[Round], price_per_hour: float | None) -> Cell:
    requests = [request for done in rounds for request in done.collected.requests]
    cycles = [cycle for done in rounds for cycle in done.collected.cycles]
    tpots = [request.tpot_seconds for request in requests if request.tpot_seconds is not None]
    emitted = sum(sequence.emitted for cycle in cycles for sequence in cycle.sequences)
    blocks = sum(len(cycle.sequences) for cycle in cycles)
    rate = statistics.median(done.tokens_per_second for done in rounds)
    return Cell(
        route=route,
        concurrency=load,
        arm=name,
        tokens_per_second=rate,
        ttft_seconds=statistics.median(request.ttft_seconds for request in requests),
        tpot_p50_seconds=percentile(tpots, 0.5),
        tpot_p95_seconds=percentile(tpots, 0.95),
        emitted_per_cycle=emitted / blocks,
        draft_seconds_per_cycle=statistics.fmean(sum(cycle.draft_seconds.values()) for cycle in cycles),
        verify_seconds_per_cycle=statistics.fmean(cycle.verify_seconds for cycle in cycles),
        cost_per_million_tokens=None if price_per_hour is None else cost_per_million(price_per_hour, rate),
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


def _floor(info: EngineInfo, rounds: Mapping[tuple[str, int, str], Sequence[Round]]) -> list[tuple[int, float]]:
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
        for load, linear in info.linear_seconds_by_load
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
    priced = cells[0].cost_per_million_tokens is not None
    headings = ("route", "concurrency", "arm", "tokens/s", "against plain", "TTFT s", "TPOT p50 ms", "p95 ms")
    for heading in (*headings, *(("cost per million",) if priced else ())):
        table.add_column(heading, justify="left" if heading in ("route", "arm") else "right")
    against_plain = {
        (ratio.route, ratio.concurrency, ratio.arm): Interval(ratio.estimate, ratio.low, ratio.high)
        for ratio in ratios
        if ratio.against == PLAIN_ARM_NAME
    }
    narrow = Table("route", "load", "arm", "tokens/s", "against plain", "TPOT ms", title=table.title, box=None)
    for cell in cells:
        interval = against_plain.get((cell.route, cell.concurrency, cell.arm))
        against = interval_text(interval) if interval else ""
        rate, tpot = f"{cell.tokens_per_second:.1f}", f"{1e3 * cell.tpot_p50_seconds:.1f}"
        narrow.add_row(cell.route, str(cell.concurrency), cell.arm, rate, against, tpot)
        table.add_row(
            cell.route,
            str(cell.concurrency),
            cell.arm,
            rate,
            against,
            f"{cell.ttft_seconds:.3f}",
            tpot,
            f"{1e3 * cell.tpot_p95_seconds:.1f}",
            *(() if cell.cost_per_million_tokens is None else (f"{cell.cost_per_million_tokens:.2f}",)),
        )
    print_table(console, table, narrow)
    for load, ratio in floor:
        console.print(f"plain decoding at load {load}: {ratio:.2f} of the rate that the linear layers alone allow")
    left_out = ", ".join(f"{route} {count}" for route, count in looped.items())
    console.print(f"prompts left out because their output loops: {left_out}")
    console.print(f"outputs that differ between arms: {different}")

"""``paceline demo``: a real server under real traffic for a few minutes, and what it learned.

The traffic is the workload's four routes, mixed, at a concurrency that rises and falls between 1 and 8. It reaches
the server over HTTP on a free loopback port.
"""

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.live import Live
from rich.table import Table
from sqlalchemy import make_url

from policies import Policy, PolicyState, RequestStats
from policies.stats import CycleStats
from policies.types import Interval
from tuner.load import send
from tuner.output_file import write
from tuner.root import Service, running_service
from tuner.settings import Settings
from tuner.snapshot import PolicySnapshot
from tuner.wording import counted, program
from tuner.workload import Prompt, load_workload

PHASES = ((1, 20.0), (4, 20.0), (8, 25.0), (2, 15.0))
"""(concurrency, seconds), over and over until the time is up."""

OUTPUT_TOKENS = 128
"""Longest output, so that every route is seen often enough within minutes."""

WIDE_COLUMNS = 130
"""Below it the table of contexts has fewer columns."""

SHOWN_LOADS = (1, 4, 8)
"""Loads whose block length is shown where there is no room for a schedule: those that the traffic has for longest."""

LEGEND = (
    "K: tokens proposed in a cycle, by load (sequences running together). While little is known K is an estimate that "
    "moves. A drafter that copies may propose first, so that a cycle yields more than K + 1 tokens. S1, S4: share of "
    "blocks of which the first, the fourth drafted token is kept. on: some K beats plain on average; off: none does, "
    "so only drafts that it is confident of are verified; learning: too few blocks for a verdict. plain / tuned: "
    "seconds per token of measured plain over those served, at equal load and not at equal arrivals, with its 95 % "
    "interval; open where that has 1 in it."
)

REFRESH_SECONDS = 1.0
LOG_SECONDS = 20.0


@dataclass(slots=True)
class Traffic:
    """What the load has seen so far. A telemetry consumer: it keeps the time per output token by context."""

    requests: int = 0
    errors: int = 0
    first_error: str = ""
    concurrency: int = 0
    tpot_seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def fold_cycle(self, stats: CycleStats) -> None:
        """Cycles are the controller's business."""

    def fold_request(self, stats: RequestStats) -> None:
        if stats.tpot_seconds is not None:
            context = stats.decision.context
            self.tpot_seconds.setdefault((context.route, context.language), []).append(stats.tpot_seconds)


def run_demo(settings: Settings, json_path: Path | None, minutes: float, console: Console) -> int:
    """Serve, drive, learn, report. Returns the exit code: 1 when a request failed."""
    settings = settings.model_copy(
        update={
            "server": settings.server.model_copy(update={"port": 0}),
            "admin": settings.admin.model_copy(update={"port": 0}),
        }
    )
    traffic, snapshot = asyncio.run(_demo(settings, 60.0 * min(minutes, 5.0), console))
    _print_summary(console, snapshot, traffic)
    if traffic.errors:
        console.print(
            f"{traffic.errors} of {counted(traffic.requests, 'request')} failed; the first: {traffic.first_error}"
        )
    if json_path is not None:
        report = as_json(snapshot, traffic, settings.database.url)
        write(json_path, "--json", f"{json.dumps(report, indent=2)}\n".encode())
    return 1 if traffic.errors else 0


def as_json(snapshot: PolicySnapshot, traffic: Traffic, database: str) -> dict[str, object]:
    """The report as data; its keys are an interface. The password of the `database` URL is not in it."""
    tuned, plain = _rates(snapshot)
    return {
        "requests": traffic.requests,
        "errors": traffic.errors,
        "looped_requests": snapshot.looped_requests,
        "contexts": [
            {
                "route": policy.context.route,
                "language": policy.context.language,
                "drafter": policy.arm.drafter,
                "schedule": policy.arm.entries,
                "state": policy.state.value,
                "reason": policy.reason.value,
                "note": policy.evidence.note,
                "acceptance": list(policy.evidence.survival),
                "speedup": _interval(policy.evidence.speedup),
            }
            for policy in _ordered(snapshot)
        ],
        "tokens_per_second": {
            "tuned": tuned,
            "plain": plain,
        },
        "gain": _interval(snapshot.engine_gain),
        "database": _shown_url(database),
    }


def _interval(found: Interval | None) -> dict[str, float | None]:
    return {name: getattr(found, name, None) for name in ("estimate", "low", "high")}


def _shown_url(database: str) -> str:
    return make_url(database).render_as_string(hide_password=True)


async def _demo(settings: Settings, seconds: float, console: Console) -> tuple[Traffic, PolicySnapshot]:
    traffic = Traffic()
    async with running_service(settings, console) as service:
        console.log(f"what is learned goes to {_shown_url(settings.database.url)}")
        console.log(
            f"serving {service.client.info.model} at {service.data_url}, metrics at {service.admin_url}/metrics"
        )
        timeout = httpx.Timeout(None, connect=5.0)
        with service.listening(traffic):
            async with httpx.AsyncClient(base_url=service.data_url, timeout=timeout) as http:
                driving = asyncio.create_task(_drive(http, service, traffic, seconds, settings.tuner.seed))
                await _show(service, traffic, driving, console)
            await service.fold_telemetry()
        snapshot = service.controller.snapshot
    return traffic, snapshot


async def _drive(http: httpx.AsyncClient, service: Service, traffic: Traffic, seconds: float, seed: int) -> None:
    """Closed-loop workers in phases of rising and falling concurrency, for `seconds`."""
    prompts = _mixed(load_workload(), seed)
    end = time.monotonic() + seconds
    for concurrency, length in itertools.cycle(PHASES):
        now = time.monotonic()
        if now >= end or not service.client.alive:
            return
        traffic.concurrency = concurrency
        deadline = min(end, now + length)
        workers = (_work(http, service, traffic, prompts, deadline) for _ in range(concurrency))
        await asyncio.gather(*workers)


async def _work(
    http: httpx.AsyncClient, service: Service, traffic: Traffic, prompts: Iterator[Prompt], deadline: float
) -> None:
    while time.monotonic() < deadline and service.client.alive:
        outcome = await send(http, service.client.info.model, next(prompts), OUTPUT_TOKENS)
        traffic.requests += 1
        if outcome.status != 200:
            traffic.errors += 1
            traffic.first_error = traffic.first_error or f"{outcome.status} {outcome.error}"


def _mixed(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """Routes in turn, each through its own shuffled prompts, for ever."""
    order = random.Random(seed)
    by_route: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_route.setdefault(prompt.route, []).append(prompt)
    for group in by_route.values():
        order.shuffle(group)
    routes = [itertools.cycle(group) for group in by_route.values()]
    while True:
        for route in routes:
            yield next(route)


async def _show(service: Service, traffic: Traffic, driving: "asyncio.Task[None]", console: Console) -> None:
    """A live table on a terminal; elsewhere a line now and then."""
    started = time.monotonic()
    if not console.is_terminal:
        while not driving.done():
            await asyncio.wait([driving], timeout=LOG_SECONDS)
            console.log(f"{time.monotonic() - started:.0f} s: {_headline(service.controller.snapshot, traffic)}")
    else:
        with Live(console=console, transient=True, auto_refresh=False) as live:
            while not driving.done():
                await asyncio.wait([driving], timeout=REFRESH_SECONDS)
                live.update(contexts_table(service.controller.snapshot, traffic, console.width), refresh=True)
    await driving


def _headline(snapshot: PolicySnapshot, traffic: Traffic) -> str:
    states = [policy.state for policy in snapshot.policies.values()]
    told = [f"{states.count(state)} {state.value}" for state in PolicyState if state in states]
    return (
        f"{counted(traffic.requests, 'request')} at concurrency {traffic.concurrency}, {traffic.errors} failed; "
        + ", ".join([counted(len(states), "context"), *told])
    )


def contexts_table(snapshot: PolicySnapshot, traffic: Traffic, width: int) -> Table:
    """One row for each context; below `WIDE_COLUMNS` columns only what fits into 80."""
    wide = width >= WIDE_COLUMNS
    table = Table(title=_headline(snapshot, traffic))
    if not wide:
        table.box, table.padding = None, (0, 2, 0, 0)
    if wide:
        for heading in ("route", "language", "requests", "state", "drafter", "K by load", "S1", "S4"):
            table.add_column(heading)
        table.add_column("TPOT ms", justify="right")
        table.add_column("plain / tuned TPOT", justify="right")
    else:
        for heading in (
            "context",
            "state",
            "K at " + ",".join(map(str, SHOWN_LOADS)),
            "S1",
            "TPOT ms",
            "plain / tuned",
        ):
            table.add_column(heading, no_wrap=True)
    for policy in _ordered(snapshot):
        context, arm = policy.context, policy.arm
        key = (context.route, context.language)
        survival = policy.evidence.survival
        tpots = traffic.tpot_seconds.get(key)
        first = f"{survival[0]:.2f}" if survival else ""
        tpot = f"{1e3 * statistics.median(tpots):.1f}" if tpots else ""
        if wide:
            fourth = f"{survival[3]:.2f}" if len(survival) > 3 else ""
            requests = str(snapshot.requests.get(key, 0))
            schedule = schedule_text(policy)
            table.add_row(
                *key, requests, policy.state.value, arm.drafter, schedule, first, fourth, tpot, speedup_text(policy)
            )
        else:
            lengths = ",".join(str(arm.block_length(load)) for load in SHOWN_LOADS)
            table.add_row("/".join(key), policy.state.value, lengths, first, tpot, speedup_text(policy))
    return table


def _print_summary(console: Console, snapshot: PolicySnapshot, traffic: Traffic) -> None:
    console.print(verdict_text(snapshot), highlight=False)
    console.print(contexts_table(snapshot, traffic, console.width))
    console.print(LEGEND, highlight=False)
    throughput = snapshot.throughput
    tuned, plain = _rates(snapshot)
    if tuned is not None and plain is not None:
        console.print(
            f"Decoding, at unequal load: {tuned:.1f} tokens per engine second as served, {plain:.1f} in plain windows "
            f"({throughput.plain_seconds:.1f} s of them), prefill not counted. Left out of the speed-ups: "
            f"{counted(snapshot.looped_requests, 'request')} whose output looped."
        )
    first = next(iter(_ordered(snapshot)), None)
    route, language = (first.context.route, first.context.language) if first else ("chat", "en")
    paceline = program()
    console.print("\nNext, and once it serves, in another terminal:")
    for line in (
        f"{paceline} serve",
        f"{paceline} explain {route} --language {language}",
        f"{paceline} bench --routes code-edit,chat --concurrency 1,4 --arms plain,ngram:4,tuned",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict_text(snapshot: PolicySnapshot) -> str:
    """``2 faster, 0 slower, 15 open, 5 unmeasured``, and the gain of everything at equal load, if it is known."""
    found = [policy.evidence.speedup for policy in _ordered(snapshot)]
    measured = [speedup for speedup in found if speedup is not None]
    faster = sum(speedup.low > 1.0 for speedup in measured)
    slower = sum(speedup.high < 1.0 for speedup in measured)
    gain = snapshot.engine_gain
    overall = (
        "not known yet"
        if gain is None
        else f"{gain.estimate:.2f}x at equal load (95 % interval {gain.low:.2f} to {gain.high:.2f})"
    )
    return (
        f"Against measured plain, of {counted(len(found), 'context')}: {faster} faster, {slower} slower, "
        f"{len(measured) - faster - slower} open, {len(found) - len(measured)} unmeasured. All together: {overall}."
    )


def schedule_text(policy: Policy) -> str:
    """``1-2: 8, 3-4: 4, 5-16: off``; drafters are named where there are several: ``1-2: head 8, 3-4: ngram 4``."""
    several = len(policy.arm.drafters) > 1
    lengths = [
        (f"{step.drafter} {step.block_length}" if several else f"{step.block_length}") if step.block_length else "off"
        for step in policy.arm.schedule
    ]
    return ", ".join(f"{step.loads}: {text}" for step, text in zip(policy.arm.schedule, lengths, strict=True)) or "off"


def speedup_text(policy: Policy) -> str:
    """``1.42 [1.31, 1.55]``, or ``unknown``."""
    speedup = policy.evidence.speedup
    return f"{speedup.estimate:.2f} [{speedup.low:.2f}, {speedup.high:.2f}]" if speedup else "unknown"


def _ordered(snapshot: PolicySnapshot) -> list[Policy]:
    return [snapshot.policies[key] for key in sorted(snapshot.policies)]


def _rates(snapshot: PolicySnapshot) -> tuple[float | None, float | None]:
    """Tokens per engine second: as served, and in plain windows."""
    found = snapshot.throughput
    return _rate(found.tuned_tokens, found.tuned_seconds), _rate(found.plain_tokens, found.plain_seconds)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if seconds > 0 else None

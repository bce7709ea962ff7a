"""How tokens reach clients: the time from the end of a cycle to the client's piece of text, and bursts."""

import asyncio
from collections.abc import Sequence

import httpx
from rich.console import Console
from rich.table import Table

from policies.stats import EngineInfo
from tuner.bench.arms import parse_arms
from tuner.bench.options import BenchOptions
from tuner.bench.report import Report
from tuner.bench.rounds import Collected, open_session
from tuner.cli.output import print_table
from tuner.load import Streamed, stream
from tuner.paired import percentile
from tuner.settings import Settings
from tuner.workload import Prompt, load_workload


async def run_stream(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo, Report]:
    """Streams at each concurrency under each arm.

    Of the cycles that emitted for a request, the piece that follows is the first one to arrive after the cycle's end;
    cycles that end before an earlier piece has come share one: a burst.
    """
    arms = parse_arms(options.arms, settings.engine.drafter_names, settings.engine.max_block_length)
    prompts = [prompt for route in options.routes for prompt in load_workload([route])[:4]]
    table = Table(title="from the end of a cycle to the client's piece of text")
    for heading in ("concurrency", "arm", "pieces", "p50 ms", "p95 ms", "worst ms", "cycles a piece", "longest gap ms"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    rows = []
    async with open_session(settings, console) as session:
        for load in dict.fromkeys(options.concurrency):
            for name, arm in arms.items():
                collected = Collected()
                session.service.decisions.source = session.source(arm)
                with session.service.listening(collected):
                    streams = await _closed_loop(session.http, session.model, prompts, load, options.tokens)
                    await session.service.fold_telemetry()
                delays, cycles, gaps = delivery(streams, collected)
                p50, p95, worst = percentile(delays, 0.5), percentile(delays, 0.95), max(delays)
                longest = max(gaps, default=0.0)
                rows.append(
                    {
                        "concurrency": load,
                        "arm": name,
                        "pieces": len(delays),
                        "delay_p50_seconds": p50,
                        "delay_p95_seconds": p95,
                        "delay_worst_seconds": worst,
                        "cycles_a_piece": cycles / len(delays),
                        "longest_gap_seconds": longest,
                    }
                )
                shown = (f"{1e3 * seconds:.2f}" for seconds in (p50, p95, worst))
                per_piece, gap = f"{cycles / len(delays):.2f}", f"{1e3 * longest:.1f}"
                table.add_row(str(load), name, str(len(delays)), *shown, per_piece, gap)
        info = session.service.client.info
    print_table(console, table)
    return info, Report({"streams": rows})


async def _closed_loop(
    http: httpx.AsyncClient, model: str, prompts: Sequence[Prompt], load: int, max_tokens: int
) -> list[Streamed]:
    pending = iter(prompts)
    streams: list[Streamed] = []

    async def work() -> None:
        for prompt in pending:
            streams.append(await stream(http, model, prompt, max_tokens))

    await asyncio.gather(*(work() for _ in range(load)))
    return streams


def delivery(streams: Sequence[Streamed], collected: Collected) -> tuple[list[float], int, list[float]]:
    """Delays of the pieces, cycles that they came from, and the gaps between the pieces of a stream, in seconds."""
    keys = {request.decision.decision_id: request.request_key for request in collected.requests}
    ends: dict[int, list[float]] = {}
    for cycle in collected.cycles:
        for sequence in cycle.sequences:
            ends.setdefault(sequence.request_key, []).append(cycle.ended_at)
    delays: list[float] = []
    gaps: list[float] = []
    cycles = 0
    for one in streams:
        waiting = iter(ends.get(keys[one.decision_id], ()))
        end = next(waiting, None)
        for before, arrival in zip((None, *one.arrivals), one.arrivals, strict=False):
            if before is not None:
                gaps.append(arrival - before)
            first = None
            while end is not None and end <= arrival:
                first = end if first is None else first
                cycles += 1
                end = next(waiting, None)
            if first is not None:
                delays.append(arrival - first)
    return delays, cycles, gaps

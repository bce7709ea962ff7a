"""What the data path of the sidecar costs: time to the first byte, CPU for each chunk, memory for each stream.

The upstream is a stub in a process of its own that answers at once. Requests arrive by chance at a rate that keeps
200 streams open, alternately straight to the stub and through the proxy, so that what the machine does to one it does
to the other; what the proxy adds is the difference of the quantiles. The load is moderate: two cores that are full
would show how long a queue is, and not what the proxy takes.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import uvloop
from rich.console import Console
from rich.table import Table

from policies.types import Interval, Mode
from tuner.bench.options import BenchOptions
from tuner.bench.proxy_load import Load
from tuner.bench.proxy_stub import Running, proxy_process, stub_process
from tuner.bench.report import Bar, Report, interval_row, interval_text
from tuner.cli.output import print_table
from tuner.paired import paired_difference, percentile
from tuner.settings import Settings
from tuner.workload import load_workload

STREAMS = 200
IDLE_STREAMS = 2000
MODES = (Mode.OBSERVE, Mode.AUTO)
ADDED_MEDIAN = "added to the first byte, median milliseconds"
ADDED_P99 = "added to the first byte, p99 milliseconds"
CHUNK = "microseconds of CPU a chunk"
HELD = f"MiB with {IDLE_STREAMS} idle streams"
BARS = {ADDED_MEDIAN: 0.5, ADDED_P99: 2.0, CHUNK: 20.0, HELD: 300.0}
"""At most so much, in every mode."""
_EVENTS, _GAP = 20, 0.05
_ROUND_SECONDS = 5.0
_STEADY_SECONDS = 4.0
_PATIENT_SECONDS = 60.0
"""For idle streams to begin."""


@dataclass(frozen=True)
class _Measured:
    mode: Mode
    median: Interval
    p99: Interval
    direct_median: float
    direct_p99: float
    chunk: Interval
    request: float
    mebibytes: float
    requests: int


async def run_proxy(settings: Settings, options: BenchOptions, console: Console) -> tuple[None, Report]:
    """Measure against a stub; no engine is started, and `settings` are not read."""
    # Blocks the loop that called, which has nothing else to do: the clients need uvloop's.
    found = await asyncio.to_thread(_measure_all, options.repeats, console)
    table = Table(title=f"the data path at {STREAMS} streams")
    headings = ("mode", "first byte p50 +ms", "p99 +ms", "CPU us a chunk", "us a request", f"MiB, {IDLE_STREAMS} idle")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    bars, rows = [], []
    for one in found:
        name = one.mode.value
        shown = (one.median, one.p99, one.chunk)
        table.add_row(name, *map(interval_text, shown), f"{one.request:.0f}", f"{one.mebibytes:.0f}")
        held = Interval(one.mebibytes, one.mebibytes, one.mebibytes)
        measured = {ADDED_MEDIAN: one.median, ADDED_P99: one.p99, CHUNK: one.chunk, HELD: held}
        bars += [Bar(f"{name}: {what}", measured[what], bar, at_least=False) for what, bar in BARS.items()]
        rows.append(
            {
                "mode": name,
                "requests": one.requests,
                "direct_first_byte_ms": {"median": one.direct_median, "p99": one.direct_p99},
                "added_median_ms": interval_row(one.median),
                "added_p99_ms": interval_row(one.p99),
                "cpu_us_a_chunk": interval_row(one.chunk),
                "cpu_us_a_request": one.request,
                "mebibytes_idle": one.mebibytes,
            }
        )
    print_table(console, table)
    return None, Report({"streams": STREAMS, "idle_streams": IDLE_STREAMS, "modes": rows}, bars)


def _measure_all(repeats: int, console: Console) -> list[_Measured]:
    return uvloop.run(_measure(repeats, console))


async def _measure(repeats: int, console: Console) -> list[_Measured]:
    found = []
    for mode in MODES:
        with stub_process() as stub, proxy_process(stub.port, mode) as proxy:
            console.log(f"{mode.value}: {2 * repeats} pairs of {_ROUND_SECONDS:g} s, straight and through the proxy")
            found.append(await _measure_mode(mode, stub, proxy, repeats))
    return found


async def _measure_mode(mode: Mode, stub: Running, proxy: Running, repeats: int) -> _Measured:
    requests = _requests(_EVENTS, _GAP)
    rate = STREAMS / (_EVENTS * _GAP)
    loads = {"direct": Load(stub.port), "proxied": Load(proxy.port)}
    seconds: dict[str, list[list[float]]] = {"direct": [], "proxied": []}
    for load in loads.values():  # connections are made before anything is measured
        await load.arrivals(requests, rate, 1.5, seed=-1)
    spent = 0.0
    for index in range(2 * repeats):
        for name in ("direct", "proxied") if index % 2 == 0 else ("proxied", "direct"):
            before = proxy.cpu_seconds()
            seconds[name].append(await loads[name].arrivals(requests, rate, _ROUND_SECONDS, seed=index))
            if name == "proxied":
                spent += proxy.cpu_seconds() - before
    for load in loads.values():
        load.close()
    chunk = await _steady(proxy, 2 * repeats)
    count = sum(map(len, seconds["proxied"]))
    direct = list(chain.from_iterable(seconds["direct"]))
    return _Measured(
        mode=mode,
        median=_added(seconds, 0.5),
        p99=_added(seconds, 0.99),
        direct_median=1e3 * percentile(direct, 0.5),
        direct_p99=1e3 * percentile(direct, 0.99),
        chunk=chunk,
        request=1e6 * spent / count - _EVENTS * chunk.estimate,
        mebibytes=await _idle(proxy),
        requests=count,
    )


def _added(seconds: dict[str, list[list[float]]], share: float) -> Interval:
    """Milliseconds that a quantile is longer through the proxy."""
    proxied, direct = ([1e3 * percentile(one, share) for one in seconds[name]] for name in ("proxied", "direct"))
    return paired_difference(proxied, direct)


async def _steady(proxy: Running, windows: int) -> Interval:
    """Microseconds of the proxy's CPU for each chunk while nothing but chunks pass."""
    load = Load(proxy.port)
    clients = await load.connect(STREAMS)
    events = int((windows + 2) * _STEADY_SECONDS / _GAP)
    for index, client in enumerate(clients):
        client.ask(_requests(events, _GAP)[index % 4])
        await asyncio.sleep(_GAP / STREAMS)  # their events spread over the gap
    await asyncio.sleep(0.5)
    found = []
    for _ in range(windows):
        cpu, chunks = proxy.cpu_seconds(), sum(client.chunks for client in clients)
        await asyncio.sleep(_STEADY_SECONDS)
        passed = sum(client.chunks for client in clients) - chunks
        found.append(1e6 * (proxy.cpu_seconds() - cpu) / passed)
    load.close()
    return paired_difference(found, [0.0] * len(found))


async def _idle(proxy: Running) -> float:
    """MiB in memory with many streams that have begun and are silent."""
    load = Load(proxy.port)
    clients = await load.connect(IDLE_STREAMS)
    request = _requests(2, 3600.0)[0]
    for client in clients:
        client.ask(request)
    async with asyncio.timeout(_PATIENT_SECONDS):
        while not all(client.chunks for client in clients):
            await asyncio.sleep(0.05)
    held = proxy.resident_bytes() / 2**20
    load.close()
    return held


def _requests(events: int, gap: float) -> Sequence[bytes]:
    """Of every route of the workload in turn, as clients send them."""
    found = []
    for prompt in load_workload():
        turns = [dict(turn) for turn in prompt.messages]
        members = {"model": "stub", "messages": turns, "stream": True} | dict(prompt.sampling)
        body = json.dumps(members, ensure_ascii=False).encode()
        found.append(
            b"POST /v1/chat/completions?events=%d&gap=%g HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer sk-0000000000000000\r\n"
            b"User-Agent: OpenAI/Python 2.8.0\r\nx-paceline-route: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (events, gap, prompt.route.encode(), len(body), body)
        )
    return found

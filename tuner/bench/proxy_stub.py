"""An upstream as fast as Python has one, and a proxy in front of it, each in a process of its own."""

import asyncio
import contextlib
import gc
import multiprocessing
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs

import uvloop

from policies.types import PLAIN, PLAIN_ARM, Mode
from tuner.decider import RouteModes
from tuner.fleet.pools.chooser import PoolChooser
from tuner.fleet.pools.snapshot import FleetSnapshot, LaneSpeed
from tuner.fleet.proxy import ProxyOptions, serve_proxy
from tuner.fleet.types import EngineKind, Exchange, Lane, Upstream
from tuner.workload import ROUTES

_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_FIELDS = (
    b'{"id":"chatcmpl-9a3b1f0e6d0c4b0f8f6e2d1c","object":"chat.completion.chunk","created":1796047854,"model":"stub",'
)
LAST = b"0\r\n\r\n"


def _chunk(members: bytes) -> bytes:
    event = b"data: " + members + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


WORD = _chunk(_FIELDS + b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}')
"""One token, as vLLM sends it."""
_USAGE = _chunk(
    _FIELDS + b'"choices":[],"usage":{"prompt_tokens":100,"total_tokens":120,"completion_tokens":20}}',
)
_DONE = _chunk(b"[DONE]")


class Stub(asyncio.Protocol):
    """Answers every request with the stream that its query asks for: ``?events=20&gap=0.05``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begun = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._begun += data
        head, end, body = self._begun.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            return
        self._begun = b""
        query = parse_qs(head.split(b" ", 2)[1].decode().partition("?")[2])
        self._transport.write(_HEAD + WORD)
        usage = _USAGE if b'"include_usage"' in body else b""
        self._go_on(int(query["events"][0]) - 1, float(query["gap"][0]), _DONE, usage)

    def _go_on(self, left: int, gap: float, done: bytes, usage: bytes) -> None:
        if left:
            self._timer = self._loop.call_later(gap, self._word, left, gap, done, usage)
        else:
            self._transport.write(usage + done + LAST)

    def _word(self, left: int, gap: float, done: bytes, usage: bytes) -> None:
        self._transport.write(WORD)
        self._go_on(left - 1, gap, done, usage)


@dataclass
class _Counted:
    """A sink that only counts."""

    exchanges: int = 0

    def record(self, exchange: Exchange) -> None:
        self.exchanges += 1


@dataclass(frozen=True)
class Running:
    """One of the processes."""

    port: int
    pid: int
    connection: Connection

    def cpu_seconds(self) -> float:
        """What its process took so far."""
        self.connection.send(None)
        return float(self.connection.recv())

    def resident_bytes(self) -> int:
        """What of it is in memory (``VmRSS`` of proc(5))."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return 1024 * int(status.partition("VmRSS:")[2].split()[0])


@contextlib.contextmanager
def stub_process() -> Iterator[Running]:
    with _process(0, None) as running:
        yield running


@contextlib.contextmanager
def proxy_process(upstream_port: int, mode: Mode) -> Iterator[Running]:
    """The data path as the sidecar has it, with its chooser in `mode`."""
    with _process(upstream_port, mode) as running:
        yield running


@contextlib.contextmanager
def _process(upstream_port: int, mode: Mode | None) -> Iterator[Running]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, upstream_port, mode), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Running(ours.recv(), process.pid or 0, ours)
    finally:
        ours.close()  # which ends it
        process.join()


def _main(connection: Connection, upstream_port: int, mode: Mode | None) -> None:
    uvloop.run(_serve(connection, upstream_port, mode))


async def _serve(connection: Connection, upstream_port: int, mode: Mode | None) -> None:
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    if mode is None:
        server = await loop.create_server(lambda: Stub(loop), sock=listener, backlog=4096)
        await _answer(loop, connection, port)
        server.close()
        return
    url = f"http://127.0.0.1:{upstream_port}"
    upstreams = [Upstream("plain", url), Upstream("drafting", url)]
    chooser = PoolChooser()
    chooser.swap(_snapshot(mode))
    proxy = await serve_proxy(listener, upstreams, chooser, _Counted(), ProxyOptions())
    gc.collect()  # as the sidecar does once it runs
    gc.freeze()
    await _answer(loop, connection, port)
    await proxy.close()


async def _answer(loop: asyncio.AbstractEventLoop, connection: Connection, port: int) -> None:
    """Tell the port, and then the CPU time as often as it is asked for, until the other end closes."""
    closed = asyncio.Event()

    def tell() -> None:
        try:
            connection.recv()
            connection.send(time.process_time())
        except (EOFError, OSError):
            loop.remove_reader(connection.fileno())
            closed.set()

    loop.add_reader(connection.fileno(), tell)
    connection.send(port)
    await closed.wait()


def _snapshot(mode: Mode) -> FleetSnapshot:
    """Two lanes that are equally fast, so that a choice weighs both."""
    curve = (0.01, 0.011, 0.013, 0.018, 0.03)
    lanes = tuple(
        LaneSpeed(
            lane,
            EngineKind.VLLM,
            version="0.32.0",
            models=(),
            curve=curve,
            error=0.1,
            crowd=curve,
            prefill_seconds=1e-5,
        )
        for lane in (Lane("plain", "plain", PLAIN, 0), Lane("drafting", "drafting", "ngram", 4))
    )
    return FleetSnapshot(1, "stub", lanes, frozenset(ROUTES), RouteModes({}, mode, {}, PLAIN_ARM, 0.1))

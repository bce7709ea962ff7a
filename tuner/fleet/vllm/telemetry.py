"""The end of the telemetry socket to which plug-ins connect; several at once, each a replica."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from policies.protocols import TelemetrySink
from policies.stats import CycleStats, EngineInfo, RequestStats
from policies.types import PLAIN
from policies.wire import WireError, from_value, kind_of
from tuner.fleet.vllm.calibration import ROUTE, Calibration
from tuner.fleet.vllm.plugin.messages import CYCLE, HELLO, REQUEST, STATE, Hello, State
from tuner.fleet.vllm.replica import Replica

log = logging.getLogger(__name__)

LINE_LIMIT = 1 << 20
"""Longest report, in bytes: some 5,000 sequences."""


class TelemetryServer:
    """What plug-ins report goes to a sink; for one event loop.

    Cycles and requests of a calibration do not: they are nobody's traffic.
    """

    def __init__(self, sink: TelemetrySink, on_change: Callable[[Replica], None]) -> None:
        """`on_change` is called in the loop when a replica said hello, told its state, or is gone."""
        self.replicas: dict[str, Replica] = {}
        """By `Hello.instance`; those that are gone stay until others of their kind take their place."""
        self.malformed = 0
        """Lines that could not be read."""
        self.sentence = ""
        """What was wrong with the last of them."""
        self._sink = sink
        self._on_change = on_change
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which is another one where 0 was asked for.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._serve, host, port, limit=LINE_LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    async def start_unix(self, path: Path) -> None:
        """Listen at the path of a Unix socket.

        Raises:
            OSError: there is something else.
        """
        self._server = await asyncio.start_unix_server(self._serve, path, limit=LINE_LIMIT)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._connections.values():
            writer.close()
        await asyncio.gather(*self._connections)
        if self._server is not None:
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        replica: Replica | None = None
        try:
            while True:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    break
                replica = self._take(line, replica)
        except (ValueError, ConnectionError) as error:  # a line over the limit, or the other end is gone
            self._refuse(str(error))
        finally:
            del self._connections[task]
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            if replica is not None:
                replica.connected = False
                self._on_change(replica)

    def _take(self, line: bytes, replica: Replica | None) -> Replica | None:
        try:
            kind, value = kind_of(line)
            if kind == HELLO:
                return self._greet(from_value(Hello, value))
            if replica is None:
                self._refuse(f"a report of kind {kind} came before a hello")
            elif kind == CYCLE:
                self._fold_cycle(from_value(CycleStats, value), replica)
            elif kind == REQUEST:
                request = from_value(RequestStats, value)
                if request.decision.context.route != ROUTE:
                    self._sink.record_request(request)
            elif kind == STATE:
                replica.state = from_value(State, value)
                self._on_change(replica)
            else:
                self._refuse(f"a report is of kind {kind!r}, which is unknown")
        except WireError as error:
            self._refuse(str(error))
        return replica

    def _greet(self, hello: Hello) -> Replica:
        replica = self.replicas.get(hello.instance)
        if replica is None:
            for instance, gone in list(self.replicas.items()):
                if not gone.connected:
                    del self.replicas[instance]
            replica = self.replicas[hello.instance] = Replica(hello)
        replica.connected = True
        self._on_change(replica)
        return replica

    def _fold_cycle(self, cycle: CycleStats, replica: Replica) -> None:
        replica.cycles += 1
        if replica.collect is not None:
            replica.collect(cycle)
        served = tuple(one for one in cycle.sequences if one.context.route != ROUTE)
        if len(served) == len(cycle.sequences):
            self._sink.record_cycle(cycle)
        elif served:
            # Its seconds are those of a calibration too.
            self._sink.record_cycle(
                replace(cycle, sequences=served, cycle_seconds=0.0, verify_seconds=0.0, draft_seconds={})
            )

    def _refuse(self, sentence: str) -> None:
        if not self.malformed:
            log.warning("a report of vLLM's plug-in is left out: %s", sentence)
        self.malformed += 1
        self.sentence = sentence


def engine_info(hello: Hello, calibration: Calibration) -> EngineInfo:
    """What `tuner.controller.Controller` is to know of a vLLM server."""
    return EngineInfo(
        model=hello.model,
        drafters=(PLAIN,) if hello.drafter == PLAIN else (PLAIN, hello.drafter),
        dtype=hello.dtype,
        device=hello.device,
        threads=0,
        slots=hello.slots,
        blocks=hello.kv_blocks,
        context_limit=min(hello.context_limit, hello.kv_blocks * hello.kv_block_tokens or hello.context_limit),
        vocabulary=hello.vocabulary,
        linear_seconds=0.0,
        calibration=calibration.cycles,
        draft_calibration=calibration.drafts,
        versions=hello.versions,
    )

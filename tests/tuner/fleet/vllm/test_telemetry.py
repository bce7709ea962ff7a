"""From the plug-in's reporter to a sink, over real sockets."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from policies.stats import CycleStats, FinishReason, RequestStats
from policies.types import PLAIN
from policies.wire import to_wire
from tests.tuner.fleet.vllm.plugin_examples import Bench, decision, orders, policy, vllm_config
from tuner.fleet.vllm.calibration import ROUTE, Calibration
from tuner.fleet.vllm.plugin import reporting
from tuner.fleet.vllm.plugin.cycle_report import CycleReport
from tuner.fleet.vllm.plugin.launch import hello_of, launch_of
from tuner.fleet.vllm.plugin.messages import CYCLE, HELLO, Hello, State
from tuner.fleet.vllm.plugin.reporting import Reporter
from tuner.fleet.vllm.replica import Replica
from tuner.fleet.vllm.telemetry import TelemetryServer, engine_info

SECONDS = 20.0


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.cycles: list[CycleStats] = []
        self.requests: list[RequestStats] = []

    def record_cycle(self, stats: CycleStats) -> None:
        self.cycles.append(stats)

    def record_request(self, stats: RequestStats) -> None:
        self.requests.append(stats)


def hello() -> Hello:
    config = vllm_config()
    return hello_of("0.32.0", config, launch_of(config, False, None))


def state() -> State:
    return State(1, 0, "", 0, 0, 0.1, 3, True, "")


def cycle(*routes: str) -> CycleReport:
    return Bench(*[decision(route=route, forced=True) for route in routes]).step(orders(policy()))


def request(route: str = "chat") -> RequestStats:
    return Bench(decision(route=route)).seats["r0"].finished(FinishReason.LENGTH, [7] * 24)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.005)


def served(body: Callable[[TelemetryServer, Sink, int, list[Replica]], Awaitable[None]]) -> TelemetryServer:
    """Run `body` beside a server: (server, its sink, its port, the replicas that it told of)."""

    async def run() -> TelemetryServer:
        sink, told = Sink(), list[Replica]()
        server = TelemetryServer(sink, told.append)
        port = await server.start("127.0.0.1", 0)
        try:
            await body(server, sink, port, told)
        finally:
            await server.close()
        return server

    return asyncio.run(run())


def test_reports_of_several_replicas_reach_the_sink_as_they_were() -> None:
    async def body(server: TelemetryServer, sink: Sink, port: int, told: list[Replica]) -> None:
        reporters = [Reporter(f"127.0.0.1:{port}", hello(), state) for _ in range(2)]
        sent = cycle("chat", "code"), request()
        for reporter in reporters:
            reporter.start()
            for each in sent:
                reporter.report(each)
        await until(lambda: len(sink.requests) == 2)
        assert sink.cycles == [sent[0].stats()] * 2
        assert sink.requests == [sent[1]] * 2
        assert sink.requests[0].looped
        assert len(server.replicas) == 2
        await until(lambda: all(each.state == state() for each in server.replicas.values()))
        for reporter in reporters:
            await asyncio.to_thread(reporter.close)
        await until(lambda: not any(each.connected for each in server.replicas.values()))
        assert {each.hello.instance for each in told} == set(server.replicas)

    assert served(body).malformed == 0


def test_lines_that_cannot_be_read_are_counted_and_the_next_ones_are_taken() -> None:
    async def body(server: TelemetryServer, sink: Sink, port: int, told: list[Replica]) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        early = to_wire(CYCLE, cycle("chat").stats())
        for line in (early, b"", b"{", b"\xff", to_wire(HELLO, hello()), to_wire("word", 1), to_wire(CYCLE, state())):
            writer.write(line + b"\n")
        writer.write(early + b"\n")
        await until(lambda: len(sink.cycles) == 1)
        assert server.malformed == 6
        assert "CycleStats" in server.sentence
        writer.write(early[:30])  # and no more: it is gone in the middle of a line
        writer.close()
        await writer.wait_closed()
        await until(lambda: bool(told) and not told[-1].connected)

    assert served(body).malformed == 6


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    async def body(server: TelemetryServer, sink: Sink, port: int, told: list[Replica]) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * (3 << 20))
        await until(lambda: server.malformed == 1)
        writer.close()

    served(body)


def test_what_a_calibration_runs_is_nobodys_traffic() -> None:
    async def body(server: TelemetryServer, sink: Sink, port: int, told: list[Replica]) -> None:
        reporter = Reporter(f"127.0.0.1:{port}", hello(), state)
        reporter.start()
        await until(lambda: bool(told))
        collected: list[CycleStats] = []
        told[0].collect = collected.append
        for each in (cycle(ROUTE), request(ROUTE), cycle(ROUTE, "chat"), request()):
            reporter.report(each)
        await until(lambda: bool(sink.requests))
        assert len(collected) == 2
        (mixed,) = sink.cycles
        assert [one.context.route for one in mixed.sequences] == ["chat"]
        assert mixed.cycle_seconds == 0.0
        assert [one.decision.context.route for one in sink.requests] == ["chat"]
        await asyncio.to_thread(reporter.close)

    served(body)


def test_nobody_who_listens_costs_reports_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "_AGAIN_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    reporter = Reporter(f"127.0.0.1:{port}", hello(), state)
    reporter.start()
    reporter.report(request())
    asyncio.run(until(lambda: reporter.dropped == 1))

    async def late() -> None:
        sink = Sink()
        listening = TelemetryServer(sink, lambda replica: None)
        await listening.start("127.0.0.1", port)
        await until(lambda: bool(listening.replicas))
        reporter.report(request())
        await until(lambda: len(sink.requests) == 1)
        await listening.close()

    asyncio.run(late())
    reporter.close()


def test_a_listener_that_does_not_read_costs_reports_and_no_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reporter = Reporter(f"127.0.0.1:{server.getsockname()[1]}", hello(), state)
        big = cycle(*["chat"] * 16)
        for _ in range(reporting.LIMIT):  # nobody takes them yet: the queue is full
            reporter.report(big)
        assert reporter.dropped == 0
        for _ in range(3):
            reporter.report(big)
        assert reporter.dropped == 3
        reporter.start()
        connection, _ = server.accept()
        connection.close()
        reporter.close()
    assert "paceline-reports" not in {thread.name for thread in threading.enumerate()}


def test_reports_go_over_a_unix_socket_too(tmp_path: Path) -> None:
    async def run() -> None:
        sink = Sink()
        server = TelemetryServer(sink, lambda replica: None)
        await server.start_unix(tmp_path / "s")
        reporter = Reporter(str(tmp_path / "s"), hello(), state)
        reporter.start()
        reporter.report(request())
        await until(lambda: bool(sink.requests))
        await asyncio.to_thread(reporter.close)
        await server.close()

    asyncio.run(run())


def test_nothing_is_kept_where_nothing_is_reported() -> None:
    reporter = Reporter(None, hello(), state)
    reporter.start()
    for _ in range(2 * reporting.LIMIT):
        reporter.report(request())
    assert reporter.dropped == 0
    reporter.close()


def test_the_tuner_is_told_what_a_plug_in_says_of_its_server() -> None:
    info = engine_info(hello(), Calibration())
    assert (info.model, info.drafters, info.slots, info.context_limit) == ("smol", (PLAIN, "ngram"), 4, 160)
    assert set(info.versions) == {"target", "tokenizer", "engine", "ngram"}


def test_a_drafter_that_matches_otherwise_is_another_version() -> None:
    config = vllm_config()
    launch = launch_of(config, False, None)
    first = hello_of("0.32.0", config, launch)
    config.speculative_config.prompt_lookup_max = 5
    again = hello_of("0.32.0", config, launch)
    assert first.versions["ngram"] != again.versions["ngram"]
    assert first.versions["target"] == again.versions["target"]

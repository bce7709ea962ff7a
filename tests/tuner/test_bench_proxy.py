"""tuner.bench.proxy: the scenario's processes, its clients and its report; what is fast is for the bench to say."""

import asyncio
import io

import pytest
from rich.console import Console

from tuner.bench import proxy
from tuner.bench.options import BenchOptions
from tuner.bench.proxy_load import Load
from tuner.bench.proxy_stub import stub_process
from tuner.settings import Settings


def test_the_scenario_measures_every_mode_against_every_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STREAMS", 8), ("IDLE_STREAMS", 8), ("_ROUND_SECONDS", 0.3), ("_STEADY_SECONDS", 0.2)):
        monkeypatch.setattr(proxy, name, value)
    console = Console(file=io.StringIO())
    info, report = asyncio.run(proxy.run_proxy(Settings(), BenchOptions(scenario="proxy", repeats=1), console))
    assert info is None
    assert [bar.name for bar in report.bars] == [f"{mode}: {what}" for mode in proxy.MODES for what in proxy.BARS]
    assert all(bar.measured is not None for bar in report.bars)
    for row in report.body["modes"]:
        assert row["requests"] > 0
        assert row["cpu_us_a_chunk"]["estimate"] > 0.0
        assert row["mebibytes_idle"] > 10.0


def test_a_client_reads_every_event_and_when_the_first_came() -> None:
    async def test(port: int) -> tuple[list[float], int]:
        load = Load(port)
        (client,) = await load.connect(1)
        client.ask(proxy._requests(3, 0.001)[0])
        await client.ended()
        chunks = client.chunks
        found = await load.arrivals(proxy._requests(1, 0.0), 100.0, 0.1, seed=1)
        load.close()
        return found, chunks

    with stub_process() as stub:
        found, chunks = asyncio.run(test(stub.port))
    assert chunks == 4  # three words and [DONE]
    assert found
    assert all(seconds > 0.0 for seconds in found)

"""tuner.fleet.plugin_link: a plug-in speaks over a real socket before anybody knows its server."""

import asyncio

from policies.stats import EngineInfo
from policies.wire import to_wire
from tests.tuner.fleet.fleet_examples import SPECULATES, plugin_state
from tuner.fleet.metrics import FleetMetrics
from tuner.fleet.plugin_link import PluginLink
from tuner.fleet.settings import UpstreamSettings
from tuner.fleet.types import Upstream
from tuner.fleet.vllm.plugin.messages import HELLO, STATE, Hello
from tuner.telemetry import TelemetryQueue

WELCOME = Hello(
    instance="i1",
    vllm_version="0.32.0",
    model="tiny",
    drafter="ngram",
    block_length=4,
    block_lengths=(0, 1, 2, 3, 4),
    dtype="bfloat16",
    device="cpu",
    slots=16,
    kv_blocks=100,
    kv_block_tokens=16,
    context_limit=2048,
    vocabulary=49152,
)


def test_a_plug_in_is_placed_once_its_server_is_known_and_counts_there_from_then_on() -> None:
    told: list[str] = []
    ready: list[tuple[EngineInfo, int]] = []
    found: list[Upstream] = []
    metrics = FleetMetrics(["a"])

    async def run() -> None:
        spoken = asyncio.Condition()

        def tell(sentence: str) -> None:
            told.append(sentence)
            asyncio.get_running_loop().create_task(wake())

        async def wake() -> None:
            async with spoken:
                spoken.notify_all()

        link = PluginLink(
            {"a": UpstreamSettings(url="http://h:1")},
            lambda: tuple(found),
            lambda: True,
            False,
            TelemetryQueue(),
            metrics,
            lambda info, longest: ready.append((info, longest)),
            tell,
        )
        port = await link.start("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(to_wire(HELLO, WELCOME) + b"\n")
            async with asyncio.timeout(30), spoken:
                await spoken.wait_for(lambda: len(told) == 1)
            found.append(SPECULATES)
            writer.write(to_wire(STATE, plugin_state(steps=7)) + b"\n")
            async with asyncio.timeout(30), spoken:
                await spoken.wait_for(lambda: len(told) == 2)
        finally:
            writer.close()
            await writer.wait_closed()
            await link.close()

    asyncio.run(run())
    assert "from a server that is none of the upstreams yet" in told[0]
    assert "from upstream a: ngram, up to 4 tokens, 16 sequences" in told[1]
    assert [(info.model, info.drafters, longest) for info, longest in ready] == [("tiny", ("none", "ngram"), 4)]
    steps = next(family for family in metrics.families() if family.name == "paceline_plugin_steps")
    assert {sample.labels["upstream"]: sample.value for sample in steps.samples} == {"a": 7.0}

"""The memory of the engine process: computed before it starts, and not exceeded."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engine.memory import MemoryPlan, plan_memory, refusal
from engine.messages import EngineOptions, Submit
from engine.model_config import read_config
from engine.process import EngineClient, EngineStartError
from kernels.sampling import Sampling
from policies.testing import ListSink
from policies.types import Context, Decision, Reason
from tests.engine.tiny_model import make_tiny_model

LIBRARY_BYTES = 90 << 20
"""Pages of files that the engine process maps."""
PLAN = MemoryPlan(target=10 << 20, kv_cache=20 << 20, drafters=1 << 20, workspace=2 << 20, process=300 << 20)


def test_the_kv_cache_grows_with_its_blocks_and_the_rest_stays(tmp_path: Path) -> None:
    config = read_config(make_tiny_model(tmp_path))
    one, two = (
        plan_memory(config, "float32", blocks=blocks, context_limit=64, slots=2, prefill_chunk=16, drafters=())
        for blocks in (100, 200)
    )
    assert two.kv_cache == 2 * one.kv_cache
    assert replace(two, kv_cache=one.kv_cache) == one
    assert one.total == one.target + one.kv_cache + one.drafters + one.workspace + one.process


def test_a_plan_that_the_machine_cannot_hold_is_refused_with_its_parts_and_a_remedy() -> None:
    assert refusal(PLAN, PLAN.total) is None
    assert refusal(PLAN, None) is None
    problem = refusal(PLAN, PLAN.total - 1)
    assert problem is not None
    for part in (
        "333 MiB",
        "KV cache 20 MiB",
        "this machine has 333 MiB",
        "lower engine.kv_blocks",
        "engine.prefill_chunk",
    ):
        assert part in problem


def test_an_engine_that_cannot_fit_does_not_start(tmp_path: Path) -> None:
    options = EngineOptions(str(make_tiny_model(tmp_path)), "tiny", dtype="float32", threads=1, kv_blocks=1 << 40)

    async def start() -> None:
        await EngineClient.start(options, ListSink())

    with pytest.raises(
        EngineStartError, match=r"The engine needs \d+ MiB of memory at most: .*lower engine\.kv_blocks"
    ):
        asyncio.run(start())


@pytest.mark.slow
@pytest.mark.model
def test_the_peak_of_a_full_cache_stays_under_a_plan_that_is_not_much_more(default_model: Path) -> None:
    options = EngineOptions(
        str(default_model), "default", threads=1, slots=8, context_limit=1024, drafters=("ngram", "suffix")
    )
    decision = Decision("d", Context("m", "chat", "en"), "suffix", 8, True, Reason.PINNED, 0)

    async def run() -> tuple[int, int]:
        client = await EngineClient.start(options, ListSink())
        try:
            vocabulary = client.info.vocabulary

            async def generate(key: int) -> None:
                prompt = tuple((7919 * key + 31 * index) % vocabulary for index in range(900))
                submit = Submit(key, prompt, Sampling(temperature=0.0), 123, (), (), decision, 0.0)
                async for _ in client.submit(submit):
                    pass

            await asyncio.gather(*(generate(client.next_key()) for _ in range(8)))
            lines = Path(f"/proc/{client.pid}/status").read_text(encoding="ascii").splitlines()
            peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
            return peak, client.info.memory_bytes
        finally:
            await client.close()

    peak, planned = asyncio.run(run())
    # The lower bound is 10 % and what a system short of memory takes back meanwhile of the pages of libraries.
    told = f"peak {peak / 2**20:.0f} MiB, planned {planned / 2**20:.0f} MiB"
    assert planned / 1.1 - LIBRARY_BYTES <= peak <= planned, told

"""A real engine process on the tiny model, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from engine.messages import EngineOptions, Finished
from engine.process import EngineClient, Generation
from policies.protocols import TelemetrySink
from policies.testing import ListSink


def tiny_options(model_path: Path, *, slots: int = 4, calibrate: bool = False, threads: int = 1) -> EngineOptions:
    return EngineOptions(
        model_path=str(model_path),
        model_name="tiny",
        dtype="float32",
        threads=threads,
        slots=slots,
        context_limit=256,
        prefill_chunk=32,
        calibrate=calibrate,
    )


@asynccontextmanager
async def running_engine(options: EngineOptions, sink: TelemetrySink | None = None) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(options, sink or ListSink())
    try:
        yield client
    finally:
        await client.close()


async def collect(generation: Generation) -> tuple[list[int], Finished | None]:
    """All tokens, and the end if there was one."""
    token_ids: list[int] = []
    finished = None
    async for item in generation:
        token_ids.extend(item.token_ids)
        finished = item.finished
    return token_ids, finished

"""A real server with a real engine process on the tiny model, in a thread of its own with its own event loop."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from engine.messages import EngineOptions
from engine.process import EngineClient
from engine.server import ServerOptions, create_app, load_tokenizer
from policies.protocols import FixedPolicy
from policies.stats import EngineStatus
from policies.testing import ListSink
from policies.types import Arm

CONTEXT_LIMIT = 768
SLOTS = 4


@dataclass(frozen=True, slots=True)
class LiveServer:
    url: str
    model: str
    engine: EngineClient
    sink: ListSink
    loop: asyncio.AbstractEventLoop

    def status(self) -> EngineStatus:
        """A reading of the engine, taken between two of its cycles."""
        return asyncio.run_coroutine_threadsafe(self.engine.status(), self.loop).result()


@contextlib.contextmanager
def serve(model_path: Path, model: str) -> Iterator[LiveServer]:
    """Serve until the block is left. n-gram drafts with K = 4 wherever a client does not opt out."""
    ready: Future[LiveServer] = Future()
    leave = asyncio.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_run(model_path, model, ready, leave)), name="live-server")
    thread.start()
    try:
        live = ready.result()
        yield live
    finally:
        if ready.exception() is None:
            ready.result().loop.call_soon_threadsafe(leave.set)
        thread.join()


async def _run(model_path: Path, model: str, ready: "Future[LiveServer]", leave: asyncio.Event) -> None:
    try:
        sink = ListSink()
        options = EngineOptions(
            model_path=str(model_path),
            model_name=model,
            dtype="float32",
            threads=1,
            slots=SLOTS,
            context_limit=CONTEXT_LIMIT,
            calibrate=False,
        )
        engine = await EngineClient.start(options, sink)
        try:
            tokenizer = load_tokenizer(model_path, engine.info.vocabulary)
            app = create_app(
                engine,
                tokenizer,
                FixedPolicy(Arm.fixed("ngram", 4)),
                sink,
                ServerOptions(model, frozenset({"chat"}), engine.info.context_limit),
            )
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                server = uvicorn.Server(
                    uvicorn.Config(app, log_level="warning", lifespan="off", ws="none", timeout_keep_alive=75)
                )
                serving = asyncio.create_task(server.serve([listener]))
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
                ready.set_result(LiveServer(url, model, engine, sink, asyncio.get_running_loop()))
                await leave.wait()
                server.should_exit = True
                await serving
        finally:
            await engine.close()
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)

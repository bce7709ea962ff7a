"""Starts everything in order, serves, and stops everything in order."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console

from engine.model_config import ModelError
from engine.process import EngineClient, EngineGoneError, EngineStartError
from engine.server.app import create_app
from engine.server.reading import ReadLimits
from engine.server.tokenizer import load_tokenizer
from policies.database_url import without_password
from policies.quoting import listed
from policies.store import Store, StoreUnavailableError
from tuner.api.app import create_admin_app
from tuner.controller import Controller
from tuner.http_servers import GRACE_SECONDS, StartError, listen, serving, url_of
from tuner.recorder import Recorder, RecorderOptions
from tuner.root.model import prepared
from tuner.root.options import engine_options, server_options
from tuner.root.served_log import log_served
from tuner.root.service import Service
from tuner.settings import Settings
from tuner.steering_options import controller_options
from tuner.stored_state import load_state
from tuner.telemetry import TelemetryQueue

START_ERRORS = (StartError, EngineStartError, ModelError, EngineGoneError)
"""What starting raises besides `policies.store.StoreError`, and what running raises once the engine process has ended;
the command line prints the sentence and ends with 1."""


@contextlib.asynccontextmanager
async def running_service(settings: Settings, console: Console, switchback: bool = True) -> AsyncIterator[Service]:
    """Start everything, give the service, and stop everything in order. The default model is fetched if it is missing.

    Without `switchback` no plain windows open, as bench has a plain arm of its own.

    Raises:
        StartError, EngineStartError, StoreError, ModelError: one sentence each; nothing is left running.
    """
    with contextlib.ExitStack() as sockets:
        data_socket = sockets.enter_context(listen(settings.server.host, settings.server.port, "server"))
        admin_socket = sockets.enter_context(listen(settings.admin.host, settings.admin.port, "admin"))
        store = Store(settings.database.url)
        with contextlib.suppress(StoreUnavailableError):  # serving starts without it, and `load_state` says so
            store.check()
        settings = prepared(settings, console)  # nothing runs yet that it could hold up
        options = engine_options(settings)
        queue = TelemetryQueue()
        console.log("starting the engine process")
        client = await EngineClient.start(options, queue, console.log)
        try:
            console.log("reading the tokenizer")
            info = client.info
            tokenizer = await asyncio.to_thread(
                load_tokenizer, Path(options.model_path), info.vocabulary, info.context_limit
            )
            console.log("opening the store, and taking up what it knows of this model")
            known = load_state(store, client.info.model)
            controller = Controller(
                client.info,
                controller_options(settings, switchback),
                client.set_cycle_policy,
                clock=time.time,
                monotonic=time.monotonic,
            )
            if known is not None:
                controller.restore(known.posterior, known.policies, known.pins, known.kill_switches)
            recorder = Recorder(store, RecorderOptions(model=client.info.model), known=known)
            service = Service(settings, client, controller, recorder, queue)
            options_of_server = server_options(settings, client.info, url_of(admin_socket))
            data_app = create_app(client, tokenizer, service.decisions, queue, options_of_server)
            admin_app = create_admin_app(
                controller,
                recorder,
                service.render_metrics,
                lambda: client.alive,
                settings,
                control=service,
                tuning=service.tuning,
            )
            admin_app.add_middleware(ReadLimits)
            service.start_learning()
            try:
                async with serving(data_app, data_socket), serving(admin_app, admin_socket):
                    service.data_url = url_of(data_socket)
                    service.admin_url = url_of(admin_socket)
                    yield service
            finally:
                await asyncio.to_thread(service.stop_learning)
        finally:
            await client.close()


def serve(settings: Settings, console: Console) -> int:
    """Serve until a signal ends it. Returns the exit code."""
    return asyncio.run(_serve(settings, console))


async def _serve(settings: Settings, console: Console) -> int:
    stop, started = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(_serve_until(stop, started, settings, console))

    def end() -> None:
        if started.is_set() and not stop.is_set():
            console.log(f"stopping: no more requests are taken, those that run get {GRACE_SECONDS} s to end")
        stop.set()
        if not started.is_set():
            # Nothing is served yet: there is nothing to wait for.
            serving.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        return await serving
    except asyncio.CancelledError:
        console.log("stopped before the start was done")
        return 0


async def _serve_until(stop: asyncio.Event, started: asyncio.Event, settings: Settings, console: Console) -> int:
    async with running_service(settings, console) as service:
        started.set()
        console.log(f"serving {service.client.info.model} at {service.data_url}/v1")
        console.log(f"admin API and metrics at {service.admin_url}")
        store_name = without_password(settings.database.url)
        console.log(f"routes: {listed(settings.routes)}; the store is {store_name}")
        watch, log_of_served = asyncio.create_task(stop.wait()), asyncio.create_task(log_served(service, console))
        while not watch.done() and service.client.alive:
            await asyncio.wait([watch], timeout=1.0)
        watch.cancel()
        log_of_served.cancel()
        if not service.client.alive:
            console.log(service.client.end)
            return 1
    return 0

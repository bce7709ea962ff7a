"""The composition root: builds every object, joins them, and starts and stops them in order.

It is the only module of this room that imports the engine.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from sqlalchemy import make_url

from engine.drafter_files import DrafterError as DrafterError
from engine.drafter_files import added_folder, fitting_drafters
from engine.drafter_shelf import add_drafter as engine_add_drafter
from engine.drafter_shelf import check_new_name as check_new_name
from engine.drafter_shelf import remove_drafter as remove_drafter
from engine.drafter_shelf import shelf
from engine.floor import Floor as Floor
from engine.messages import EngineOptions, Verifier, Watermark
from engine.model_check import is_complete
from engine.model_config import ModelError, read_config
from engine.model_fetch import DEFAULT_MODEL, cache_folder, default_model_path, fetch_default_model, resolve_model
from engine.process import DrafterRefusedError, EngineClient, EngineGoneError, EngineStartError
from engine.server.app import ServerOptions, create_app
from engine.server.tokenizer import load_tokenizer
from policies import Arm, Context, Decision, DecisionSource, EngineInfo, EngineStatus, RequestFeatures
from policies.records import StoredState
from policies.store import Store, StoreUnavailableError
from tuner.api.app import create_admin_app
from tuner.api.drafters import DrafterConflictError
from tuner.controller import Controller, ControllerOptions
from tuner.metrics import Gauges, Metrics
from tuner.recorder import Recorder, RecorderOptions
from tuner.settings import AUTO, Settings, SettingsError
from tuner.switchback import SwitchbackOptions
from tuner.telemetry import Consumer, TelemetryQueue
from tuner.training_request import TrainingRequest, TrainingStep

log = logging.getLogger(__name__)

POSTERIOR_SECONDS = 15.0
"""How often the posterior is handed to the store."""

CLOSE_SECONDS = 10.0
"""How long the store may take to write what is left when the server ends."""


class StartError(Exception):
    """The service cannot start; the message is one sentence for people."""


START_ERRORS = (StartError, EngineStartError, ModelError, EngineGoneError)
"""What starting raises besides `policies.store.StoreError`, and what running raises once the engine process has ended;
the command line prints the sentence and ends with 1."""


class DecisionSwitch:
    """A `DecisionSource` that passes on to whichever source is set; bench sets one arm after the other."""

    def __init__(self, source: DecisionSource) -> None:
        self.source = source

    def decide(self, context: Context, features: RequestFeatures) -> Decision:
        return self.source.decide(context, features)


class HttpServer(uvicorn.Server):
    """A server on a socket that is bound already; signals are the service's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Service:
    """One engine with its tuner, its store and its two HTTP servers; see `running_service`."""

    def __init__(
        self,
        settings: Settings,
        client: EngineClient,
        controller: Controller,
        recorder: Recorder,
        queue: TelemetryQueue,
    ) -> None:
        self._settings = settings
        self.client = client
        self.controller = controller
        self.recorder = recorder
        self.decisions = DecisionSwitch(controller)
        self.data_url = ""
        self.admin_url = ""
        self._queue = queue
        self._metrics = Metrics(settings.routes, client.info)
        self._consumers: tuple[Consumer, ...] = (controller, self._metrics, recorder)
        self._folding = threading.Lock()
        self._tick_seconds = settings.tuner.tick_seconds
        self._stop_ticking = threading.Event()
        self._ticker = threading.Thread(target=self._tick_until_stopped, name="tuner", daemon=True)

    @contextlib.contextmanager
    def listening(self, consumer: Consumer) -> Iterator[None]:
        """Let `consumer` fold telemetry too, in the tuner's thread, while the context is open."""
        with self._folding:
            self._consumers = (*self._consumers, consumer)
        try:
            yield
        finally:
            with self._folding:
                self._consumers = tuple(other for other in self._consumers if other is not consumer)

    async def fold_telemetry(self) -> None:
        """Return when everything that was measured before the call has been folded."""
        # The engine answers after the telemetry of the cycles before, and the answer takes the same way.
        await self.client.status()
        await asyncio.to_thread(self._fold)

    def start_learning(self) -> None:
        """Start the tuner's thread and the recorder's."""
        self.recorder.start()
        self._ticker.start()

    def stop_learning(self) -> None:
        """Fold what is left, and hand everything to the store."""
        self._stop_ticking.set()
        self._ticker.join()
        self._tick()
        self.recorder.save_posterior(self.controller.state())
        self.recorder.close(CLOSE_SECONDS)

    @property
    def drafters(self) -> tuple[str, ...]:
        """What a pin may name, plain first."""
        return self.client.info.drafters

    async def load_drafter(self, source: str) -> None:
        """Load a drafter while serving. Raises DrafterConflictError."""
        await self._change_drafters(self.client.load_drafter(source))

    async def unload_drafter(self, name: str) -> None:
        """Let a drafter go while serving. Raises DrafterConflictError, also while a pin or a setting names it."""
        if name == self._settings.engine.learned_drafter:
            raise DrafterConflictError(
                f"The drafter {name!r} is the one that is learned: engine.default_drafter sets it."
            )
        for pin in self.controller.snapshot.pins:
            if pin.drafter == name:
                raise DrafterConflictError(
                    f"A pin of {pin.route}/{pin.language} names the drafter {name!r}: take it back first"
                )
        for route, configured in self._settings.routes.items():
            if configured.default_arm is not None and configured.default_arm.drafter == name:
                raise DrafterConflictError(f"routes.{route}.default_arm.drafter is {name!r}: change it first")
        await self._change_drafters(self.client.unload_drafter(name))

    async def _change_drafters(self, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except DrafterRefusedError as error:
            raise DrafterConflictError(str(error)) from error
        self.controller.set_drafters(self.drafters)
        self._metrics.set_drafters(self.drafters)

    async def render_metrics(self) -> bytes:
        """The body of /metrics."""
        status: EngineStatus | None = None
        with contextlib.suppress(EngineGoneError):  # then the gauge of the engine says that it is down
            status = await self.client.status()
        gauges = Gauges(
            engine=status,
            store_up=self.recorder.store_up,
            telemetry_dropped=self._queue.dropped,
            recorder_dropped=self.recorder.dropped,
        )
        return await asyncio.to_thread(self._metrics.render, self.controller.snapshot, gauges)

    def _fold(self) -> None:
        with self._folding:
            self._queue.drain(self._consumers)

    def _tick(self) -> None:
        self._fold()
        changed = self.controller.tick()
        for policy in changed:
            self.recorder.record_policy(policy)
        self._metrics.count_policy_changes(changed)

    def _tick_until_stopped(self) -> None:
        saved_at = time.monotonic()
        while not self._stop_ticking.wait(self._tick_seconds):
            try:
                self._tick()
                if time.monotonic() - saved_at >= POSTERIOR_SECONDS:
                    saved_at = time.monotonic()
                    self.recorder.save_posterior(self.controller.state())
            except Exception:
                log.exception("a round of learning failed; the next one goes on")


@contextlib.asynccontextmanager
async def running_service(settings: Settings, console: Console, switchback: bool = True) -> AsyncIterator[Service]:
    """Start everything, give the service, and stop everything in order. The default model is fetched if it is missing.

    Without `switchback` no plain windows open, as bench has a plain arm of its own.

    Raises:
        StartError, EngineStartError, StoreError, ModelError: one sentence each; nothing is left running.
    """
    with contextlib.ExitStack() as sockets:
        data_socket = sockets.enter_context(_listen(settings.server.host, settings.server.port, "server.port"))
        admin_socket = sockets.enter_context(_listen(settings.admin.host, settings.admin.port, "admin.port"))
        store = Store(settings.database.url)
        with contextlib.suppress(StoreUnavailableError):  # serving starts without it, and `_load_state` says so
            store.check()
        settings = prepared(settings, console)  # nothing runs yet that it could hold up
        options = engine_options(settings)
        queue = TelemetryQueue()
        client = await EngineClient.start(options, queue, console.log)
        try:
            tokenizer = await asyncio.to_thread(load_tokenizer, Path(options.model_path), client.info.vocabulary)
            known = _load_state(store, client.info.model)
            controller = Controller(
                client.info,
                _controller_options(settings, switchback),
                client.set_cycle_policy,
                clock=time.time,
                monotonic=time.monotonic,
            )
            if known is not None:
                controller.restore(known.posterior, known.policies, known.pins, known.kill_switches)
            recorder = Recorder(store, RecorderOptions(model=client.info.model), known=known)
            service = Service(settings, client, controller, recorder, queue)
            data_app = create_app(client, tokenizer, service.decisions, queue, _server_options(settings, client.info))
            admin_app = create_admin_app(
                controller, recorder, service.render_metrics, lambda: client.alive, settings, control=service
            )
            service.start_learning()
            try:
                async with _serving(data_app, data_socket), _serving(admin_app, admin_socket):
                    service.data_url = _url(data_socket)
                    service.admin_url = _url(admin_socket)
                    yield service
            finally:
                await asyncio.to_thread(service.stop_learning)
        finally:
            await client.close()


def engine_options(settings: Settings) -> EngineOptions:
    """What the engine process is told.

    Raises:
        SettingsError: model.path names nothing that can be served, or engine.context_limit is more than it reads.
        ModelError: the model could not be had from elsewhere.
    """
    try:
        path = resolve_model(settings.model.path or DEFAULT_MODEL)
        longest = read_config(path).max_position
    except ModelError as error:
        if error.__cause__ is None and settings.model.path is not None:
            raise SettingsError(f"{error}.") from error  # nothing failed on the way: the setting itself is wrong
        raise
    if settings.engine.context_limit > longest:
        raise SettingsError(
            f"engine.context_limit is {settings.engine.context_limit}: give 2 to {longest}, the most that the model "
            "reads."
        )
    return EngineOptions(
        model_path=str(path),
        model_name=settings.model.name or _model_name(settings.model.path, path),
        dtype=settings.model.dtype,
        threads=settings.model.threads,
        slots=settings.engine.slots,
        context_limit=settings.engine.context_limit,
        prefill_chunk=settings.engine.prefill_chunk,
        ngram_min_match=settings.engine.ngram_min_match,
        ngram_max_match=settings.engine.ngram_max_match,
        drafters=settings.engine.drafters,
        draft_stop=settings.engine.draft_stop,
        suffix_shared_routes=settings.engine.suffix_shared_routes,
        kv_blocks=settings.engine.kv_blocks,
        prefix_reuse=settings.engine.prefix_reuse,
        verifier=settings.engine.verifier,
    )


def drafter_rows(settings: Settings) -> list[dict[str, Any]]:
    """Every drafter, and whether the configured model can use it. Raises what `engine_options` does."""
    return [asdict(row) for row in shelf(model_folder(settings))]


def add_drafter(settings: Settings, folder: Path, name: str | None) -> Path:
    """Take a drafter over for the configured model. Raises DrafterError, and what `engine_options` does."""
    return engine_add_drafter(folder, model_folder(settings), name)


def train_drafter(settings: Settings, asked: TrainingRequest, progress: Callable[[TrainingStep], None]) -> Path:
    """Train a drafter for the configured model in this process, and take it over. Returns its folder.

    Raises what `engine_options` does, and SettingsError when there is nothing to train on.
    """
    from engine.drafter_files import DrafterKind
    from engine.training.distillation import DistillationSettings  # the tensor library, which nothing else here needs
    from engine.training.train import TrainingOptions, TrainingProgress
    from engine.training.train import train_drafter as train

    target = model_folder(settings)
    options = TrainingOptions(
        target_path=target,
        kind=DrafterKind(asked.kind.replace("-", "_")),
        name=asked.name,
        output_folder=asked.output or added_folder(),
        work_folder=asked.work or cache_folder() / "training" / target.name,
        tokens=asked.tokens,
        files=tuple(asked.files),
        excluded=tuple(asked.excluded),
        kinds=tuple(asked.text_kinds),
        start_from=asked.start_from,
        distillation=DistillationSettings(epochs=asked.epochs),
        threads=settings.model.threads or len(os.sched_getaffinity(0)),
        command=asked.command,
    )

    def told(now: TrainingProgress) -> None:
        progress(TrainingStep(now.phase.value, now.done, now.total, now.tokens_per_second, now.first_survival))

    try:
        train(options, told)
    except ValueError as error:
        raise SettingsError(f"{error}.") from error
    return options.output_folder / asked.name


def model_folder(settings: Settings) -> Path:
    """The folder of the model that is configured. Raises what `engine_options` does."""
    return Path(engine_options(settings).model_path)


def floor_of(settings: Settings, rounds: int, progress: Callable[[str], None]) -> Floor:
    """`engine.floor_run.measure_floor` of the model that is configured, in this process. Raises ModelError."""
    from engine.floor_run import measure_floor  # the tensor library, which a server leaves to its engine process

    return measure_floor(engine_options(settings), rounds, progress)


def prepared(settings: Settings, console: Console) -> Settings:
    """Fetch the default model if it is to be served, and put the drafters that fit it in the place of auto.

    Raises:
        SettingsError: a default names a drafter that is not among them, or what `engine_options` refuses.
        ModelError: the model cannot be had.
    """
    if (settings.model.path or DEFAULT_MODEL) == DEFAULT_MODEL:
        fetch_model(console)
    if settings.engine.drafters != (AUTO,):
        return settings
    values = settings.model_dump(exclude_unset=True)
    drafters = fitting_drafters(model_folder(settings))
    try:
        return Settings(**values | {"engine": values.get("engine", {}) | {"drafters": drafters}})
    except ValidationError as error:
        faults = ". ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
        raise SettingsError(f"{faults}.") from error


async def engine_start_phases(settings: Settings) -> tuple[EngineInfo, dict[str, float]]:
    """Start the engine alone and end it. Returns the seconds of each phase that it reports, and of the whole start.

    Raises what `running_service` does.
    """
    options = engine_options(settings)
    started = time.perf_counter()
    marks: list[tuple[str, float]] = [("start of the process", started)]

    def mark(text: str) -> None:
        name = text.partition(",")[0]
        if name != marks[-1][0]:
            marks.append((name, time.perf_counter()))

    client = await EngineClient.start(options, TelemetryQueue(), mark)
    ended = time.perf_counter()
    await client.close()
    ends = [at for _, at in marks[1:]] + [ended]
    phases = {name: end - begin for (name, begin), end in zip(marks, ends, strict=True)}
    return client.info, phases | {"whole start": ended - started}


def _model_name(given: str | None, path: Path) -> str:
    """The last part of what was given; of a Hugging Face id that is not the folder, whose name is a revision's hash."""
    if given is None:
        return DEFAULT_MODEL
    return path.name if Path(given).expanduser().is_dir() else Path(given).name


def fetch_model(console: Console) -> Path:
    """Fetch the default model unless it is there, with a progress bar. Raises ModelError."""
    path = default_model_path()
    if is_complete(path):
        return path
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console) as progress:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        return fetch_default_model(show)


def serve(settings: Settings, console: Console) -> int:
    """Serve until a signal ends it. Returns the exit code."""
    return asyncio.run(_serve(settings, console))


async def _serve(settings: Settings, console: Console) -> int:
    stop, started = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(_serve_until(stop, started, settings, console))

    def end() -> None:
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
        store_name = make_url(settings.database.url).render_as_string(hide_password=True)
        console.log(f"routes: {', '.join(settings.routes)}; the store is {store_name}")
        watch = asyncio.create_task(stop.wait())
        while not watch.done() and service.client.alive:
            await asyncio.wait([watch], timeout=1.0)
        watch.cancel()
        if not service.client.alive:
            console.log(service.client.end)
            return 1
    return 0


def _load_state(store: Store, model: str) -> StoredState | None:
    """What the store knows; None, and a line in the log, when it cannot be read: serving goes on without it."""
    try:
        store.upgrade()
        return store.load_state(model)
    except StoreUnavailableError as error:
        log.warning("serving starts without the store: %s", error)
        return None


def _server_options(settings: Settings, info: EngineInfo) -> ServerOptions:
    engine = settings.engine
    watermark = None
    if engine.watermark_key is not None:
        watermark = Watermark(engine.watermark_gamma, engine.watermark_delta, engine.watermark_key)
    return ServerOptions(
        model=info.model,
        routes=frozenset(settings.routes),
        context_limit=info.context_limit,
        verifier=Verifier(engine.verifier),
        watermark=watermark,
    )


def _controller_options(settings: Settings, switchback: bool) -> ControllerOptions:
    tuner = settings.tuner
    return ControllerOptions(
        modes={name: route.mode for name, route in settings.routes.items()},
        route_defaults={
            name: Arm.fixed(route.default_arm.drafter, route.default_arm.block_length)
            for name, route in settings.routes.items()
            if route.default_arm is not None
        },
        drafter=settings.engine.learned_drafter,
        max_block_length=settings.engine.max_block_length,
        margin=tuner.margin,
        max_neighbour_slowdown=tuner.max_neighbour_slowdown,
        switchback=SwitchbackOptions(
            window_seconds=tuner.switchback_window_seconds,
            share_start=tuner.switchback_share_start if switchback else 0.0,
            share_floor=tuner.switchback_share_floor if switchback else 0.0,
        ),
        seed=tuner.seed,
    )


def _listen(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, TypeError) as error:  # TypeError: what the address has for a name can be none
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise StartError(f"{setting}: cannot listen on {host}:{port} ({reason}); choose another.") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def log_no_messages(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: no cancellation, and of every other exception where it came from but not its
    message, which may quote a prompt."""
    if not record.exc_info or record.exc_info[1] is None:
        return True
    error = record.exc_info[1]
    if isinstance(error, asyncio.CancelledError):
        return False
    where = "".join(traceback.format_tb(error.__traceback__))
    record.msg, record.args = "%s\n%s%s", (record.getMessage().strip(), where, type(error).__name__)
    record.exc_info = record.exc_text = None
    return True


@contextlib.asynccontextmanager
async def _serving(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on `listener` while the context is open; requests in progress get a few seconds to end."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5)
    # A stream that is cut off when the seconds are over is told by one line, and no fault with a traceback.
    logging.getLogger("uvicorn.error").addFilter(log_no_messages)
    server = HttpServer(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        # Requests that were cut off still have to end, so that telemetry counts them before it is folded for good.
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)

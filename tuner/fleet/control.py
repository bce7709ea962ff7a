"""The control process of a sidecar: learns from what the data path measured, and has the store, the API, the metrics.

It holds nothing up: the data path passes requests on from before it is there, and after it is gone.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path

from fastapi import FastAPI, Header, Response
from rich.console import Console

from policies.cycle_policy import CyclePolicy
from policies.database_url import without_password
from policies.records import StoredState
from policies.stats import EngineInfo
from policies.store import Store
from policies.types import OTHER_ROUTE, Mode
from tuner.api.app import create_admin_app
from tuner.api.views import CapabilityView, UpstreamView
from tuner.fleet.folding import Folding
from tuner.fleet.link import Exchanges, Link, Stop, Told
from tuner.fleet.metrics import FleetMetrics
from tuner.fleet.plugin_link import PluginLink
from tuner.fleet.sglang_corpora import CorporaKeeper
from tuner.fleet.steering import FleetSteering, pools_info
from tuner.fleet.types import Effect, EngineKind, Exchange, Lever, ProxyState, Upstream, UpstreamState
from tuner.fleet.vllm.publishing import ORDERS_PATH
from tuner.fleet.watching import Watch
from tuner.http_servers import StartError, serving, url_of
from tuner.metric_table import NEEDS_OWN_ENGINE, NEEDS_PLUGIN
from tuner.metrics import Gauges, Metrics
from tuner.recorder import Recorder, RecorderOptions
from tuner.settings import RouteSettings, Settings
from tuner.stored_state import load_state
from tuner.telemetry import TelemetryQueue

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""How long the store may take to write what is left at the end."""
FIRST_LOOK_SECONDS = 12.0
"""What upstreams get to say who they are, before the store is asked what is known of their model."""
CORPORA_SECONDS = 30.0
"""Between two looks at which languages have traffic."""
UNKNOWN_MODEL = "unknown"
PULLING = frozenset((Mode.ADVISE, Mode.CANARY, Mode.AUTO))
"""Modes in which an upstream may be sent requests of our own, on connect."""
STEERED = frozenset((Mode.CANARY, Mode.AUTO))
UNSEEN = (
    "observe: both directions pass byte for byte. What cannot be learned so: the tokens of streams whose client does "
    "not ask for usage, what other settings would do, and what plain would take; so no gain is known"
)


def run_control(settings: Settings, connection: Connection, admin_socket: socket.socket) -> None:
    """The body of the control process. It ends when the data path says so, or is gone."""
    # The terminal's interrupt reaches both processes; the data path says when this one is to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(Control(for_sidecar(settings), connection, admin_socket).run())


def for_sidecar(settings: Settings) -> Settings:
    """`settings` with a mode for every route, its own or else that of the fleet; `other` is a route too."""
    routes = {
        name: route if "mode" in route.model_fields_set else route.model_copy(update={"mode": settings.fleet.mode})
        for name, route in {OTHER_ROUTE: RouteSettings(), **settings.routes}.items()
    }
    return settings.model_copy(update={"routes": routes})


class Control:
    """See the module."""

    def __init__(self, settings: Settings, connection: Connection, admin_socket: socket.socket) -> None:
        """`settings` are those of `for_sidecar`; `admin_socket` listens already."""
        self._settings = settings
        self._modes = frozenset(route.mode for route in settings.routes.values())
        self._admin_socket = admin_socket
        self._console = Console(file=sys.stdout, log_path=False, width=160, soft_wrap=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._link = Link(connection, self._take, self._end_soon)
        self._arriving = threading.Lock()
        self._exchanges: list[Exchange] = []
        self._state = ProxyState((), 0)
        self._reports = TelemetryQueue()
        self._fleet_metrics = FleetMetrics(settings.fleet.upstreams)
        self._folding: Folding | None = None
        self._watch = Watch(
            settings.fleet.upstreams,
            settings.fleet.poll_seconds,
            bool(self._modes & PULLING),
            self._fleet_metrics,
            self._found,
        )

    async def run(self) -> None:
        """Work until the data path says that it is enough."""
        self._loop = asyncio.get_running_loop()
        self._link.start()
        watching = asyncio.create_task(self._watch.run())
        try:
            await self._watch.looked(FIRST_LOOK_SECONDS)
            model = next((one.models[0] for one in self._watch.upstreams if one.models), UNKNOWN_MODEL)
            store = Store(self._settings.database.url)
            known = await asyncio.to_thread(load_state, store, model)
            async with self._learning(model, store, known):
                await self._ending.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await asyncio.to_thread(self._link.close)

    @contextlib.asynccontextmanager
    async def _learning(self, model: str, store: Store, known: StoredState | None) -> AsyncIterator[None]:
        """Learn, and answer on the admin port, while the context is open."""
        settings = self._settings
        steering = FleetSteering(settings, model, self._watch.upstreams)
        if known is not None:
            steering.restore(known.posterior or {}, known.policies, known.pins, known.kill_switches)
        recorder = Recorder(store, RecorderOptions(model=model), known=known)
        unknown = NEEDS_OWN_ENGINE if settings.fleet.plugin_port is not None else NEEDS_OWN_ENGINE | NEEDS_PLUGIN
        metrics = Metrics(settings.routes, pools_info(model, steering.drafters), unknown=unknown)

        async def render() -> bytes:
            gauges = Gauges(
                engine=None,
                engine_up=self._fleet_metrics.any_up,
                store_up=recorder.store_up,
                telemetry_dropped=self._reports.dropped,
                recorder_dropped=recorder.dropped,
            )
            return await asyncio.to_thread(metrics.render, steering.snapshot, gauges, self._fleet_metrics.families())

        app = create_admin_app(
            steering,
            recorder,
            render,
            lambda: self._fleet_metrics.any_up,
            settings,
            control=steering,
            upstreams=self._views,
        )
        folding = Folding(
            steering, metrics, self._fleet_metrics, recorder, self._take_exchanges, self._reports, self._link.send
        )
        folding.set_upstreams(self._watch.upstreams)
        self._folding = folding
        async with contextlib.AsyncExitStack() as stack:
            if settings.fleet.plugin_port is not None:
                plugin = self._plugin_link(steering, known)
                stack.push_async_callback(plugin.close)
                await self._open(plugin, app, settings.fleet.plugin_port)
            folding.start()
            if settings.fleet.corpora and self._modes & STEERED:
                corpora = asyncio.create_task(self._keep_corpora(folding))
                stack.callback(corpora.cancel)
            try:
                async with serving(app, self._admin_socket):
                    self._say(f"admin API and metrics at {url_of(self._admin_socket)}")
                    store_name = without_password(settings.database.url)
                    modes = ", ".join(f"{name} {route.mode.value}" for name, route in settings.routes.items())
                    self._say(f"modes of the routes: {modes}; the store is {store_name}")
                    if Mode.OBSERVE in self._modes:
                        self._say(UNSEEN)
                    yield
            finally:
                await asyncio.to_thread(folding.stop, CLOSE_SECONDS)

    def _plugin_link(self, steering: FleetSteering, known: StoredState | None) -> PluginLink:
        def ready(info: EngineInfo, longest: int) -> None:
            # In observe and advise nothing is ordered: a plain window would steer what nobody asked to be steered.
            steering.set_plugin(info, longest, plugin.publisher.publish if self._modes & STEERED else _nobody)
            if known is not None:
                steering.resume_plugin(known.posterior or {})
            self._say("cycles are steered from now on" if self._modes & STEERED else "cycles are learned from now on")

        plugin = PluginLink(
            self._settings.fleet.upstreams,
            lambda: self._watch.upstreams,
            lambda: self._state.streams == 0,
            bool(self._modes & STEERED),
            self._reports,
            self._fleet_metrics,
            ready,
            self._say,
        )
        return plugin

    async def _open(self, plugin: PluginLink, app: FastAPI, port: int) -> None:
        """Hear plug-ins at `port`, and answer them on the admin port."""
        host = self._settings.server.host
        try:
            bound = await plugin.start(host, port)
        except StartError as error:  # requests go on all the same
            self._say(str(error))
            return

        @app.get(ORDERS_PATH, include_in_schema=False)
        async def orders(if_none_match: str | None = Header(None)) -> Response:
            """What vLLM's plug-in asks for, again and again."""
            page = plugin.publisher.page
            if page is None:
                return Response(status_code=404)
            headers = {"etag": page.etag, "cache-control": "no-cache"}
            if page.matches(if_none_match):
                return Response(status_code=304, headers=headers)
            return Response(page.body, media_type="application/json", headers=headers)

        self._say(
            f"for vLLM's plug-in: PACELINE_POLICY={url_of(self._admin_socket)}{ORDERS_PATH} "
            f"PACELINE_TELEMETRY={host}:{bound}"
        )

    async def _keep_corpora(self, folding: Folding) -> None:
        """Give SGLang's n-gram drafters the texts of the languages that have traffic."""
        files = {language: Path(name) for language, name in self._settings.fleet.corpora.items()}
        keepers: dict[str, CorporaKeeper] = {}
        told: tuple[str, ...] = ()
        async with contextlib.AsyncExitStack() as clients:
            while True:
                await asyncio.sleep(CORPORA_SECONDS)
                requests = folding.take_languages()
                sentences: list[str] = []
                for one in self._watch.upstreams:
                    # Its effect cannot be tested without changing what others get.
                    if one.engine is not EngineKind.SGLANG or one.effect(Lever.CORPORA) is Effect.ABSENT:
                        continue
                    if one.name not in keepers:
                        client = await clients.enter_async_context(self._watch.client(one.name))
                        keepers[one.name] = CorporaKeeper(client, one.url, files, time.monotonic)
                    sentences += (await keepers[one.name].keep(requests)).sentences
                if sentences and tuple(sentences) != told:
                    for sentence in sentences:
                        self._say(sentence)
                told = tuple(sentences)

    def _views(self) -> tuple[UpstreamView, ...]:
        """Every upstream for people."""
        states = {one.name: one for one in self._state.upstreams}
        return tuple(view_of(one, states.get(one.name)) for one in self._watch.upstreams)

    def _found(self, upstreams: tuple[Upstream, ...], sentence: str) -> None:
        self._say(sentence)
        if self._folding is not None:
            self._folding.set_upstreams(upstreams)

    def _say(self, sentence: str) -> None:
        self._console.log(sentence, markup=False, highlight=False)

    def _take(self, message: object) -> None:
        """A word of the data path, in the link's thread."""
        if isinstance(message, Exchanges):
            with self._arriving:
                self._exchanges.extend(message.exchanges)
        elif isinstance(message, Told):
            self._state = message.state
            self._fleet_metrics.set_state(message.state)
        elif isinstance(message, Stop):
            self._end_soon()

    def _take_exchanges(self) -> list[Exchange]:
        with self._arriving:
            taken, self._exchanges = self._exchanges, []
        return taken

    def _end_soon(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)


def view_of(upstream: Upstream, state: UpstreamState | None) -> UpstreamView:
    """An upstream as the admin API shows it; `state` is None before the data path has told."""
    return UpstreamView(
        name=upstream.name,
        url=upstream.url,
        engine=upstream.engine.value,
        version=upstream.version,
        models=upstream.models,
        speculates=upstream.speculates,
        drafter=upstream.drafter,
        block_length=upstream.block_length,
        healthy=None if state is None else state.healthy,
        in_flight=0 if state is None else state.in_flight,
        sentence="" if state is None else state.sentence,
        capabilities=tuple(
            CapabilityView(one.lever.value, one.effect.value, one.sentence) for one in upstream.capabilities
        ),
    )


def _nobody(policy: CyclePolicy) -> None:
    """Takes what cycles would be steered by, where they are not."""

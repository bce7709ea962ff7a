"""`paceline sidecar`: the data path in this process, and beside it the control process, which may die and come back.

Requests pass from the first moment on, before anything is known of an upstream, and go on passing whatever becomes of
the control process: what it said last stays in force, and it is started again.
"""

import asyncio
import contextlib
import gc
import logging
import math
import multiprocessing
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.context import SpawnProcess

import uvloop
from rich.console import Console

from policies.quoting import listed, shown
from policies.store import Store
from tuner.fleet.control import run_control
from tuner.fleet.handing import Handing
from tuner.fleet.link import Link, Steer, Stop, Told
from tuner.fleet.proxy import OriginError, Proxy, ProxyOptions, parse_origin, serve_proxy
from tuner.fleet.switching import SwitchingChooser
from tuner.fleet.watching import configured
from tuner.http_servers import GRACE_SECONDS, listen, reaches, url_of
from tuner.settings import Settings, SettingsError

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.05
"""How long an exchange waits to be handed to the control process."""
STATE_SECONDS = 1.0
"""How often the control process is told how the data path does."""
RESTART_SECONDS = (1.0, 30.0)
"""Before a control process that ended is started again: at first, and at most, doubled from one to the next."""
STEADY_SECONDS = 60.0
"""A control process that ran for so long begins with the first of these again."""
CONTROL_SECONDS = 15.0
"""What the control process gets to write down what it knows when all ends."""


def run_sidecar(settings: Settings, console: Console) -> int:
    """Serve until a signal ends it. Returns the exit code.

    Raises:
        SettingsError: there is no upstream, or one that cannot be used.
        StoreUrlError: the database's URL cannot be used.
        StartError: a port is taken.
    """
    if not settings.fleet.upstreams:
        raise SettingsError(
            "fleet.upstreams is empty: give --upstream URL, such as http://127.0.0.1:8080, or name them in the "
            "configuration file."
        )
    # Opens nothing. A URL that cannot be used would end the control process again and again.
    Store(settings.database.url)
    with contextlib.ExitStack() as sockets:
        data_socket = sockets.enter_context(listen(settings.server.host, settings.server.port, "server"))
        admin_socket = sockets.enter_context(listen(settings.admin.host, settings.admin.port, "admin"))
        for name, upstream in settings.fleet.upstreams.items():
            _refuse_unusable(name, upstream.url, (data_socket, admin_socket))
        return uvloop.run(Sidecar(settings, console, data_socket, admin_socket).serve())


class Sidecar:
    """The data path with its control process."""

    def __init__(
        self, settings: Settings, console: Console, data_socket: socket.socket, admin_socket: socket.socket
    ) -> None:
        """Both sockets listen already; what is served on them ends with `serve`."""
        self._settings = settings
        self._console = console
        self._data_socket, self._admin_socket = data_socket, admin_socket
        self._chooser = SwitchingChooser()
        self._handing = Handing()
        self._beginning_or_ending = threading.Lock()
        self._link: Link | None = None
        self._process: SpawnProcess | None = None
        self._proxy: Proxy | None = None
        self._ending = asyncio.Event()
        self._control_gone = asyncio.Event()

    async def serve(self) -> int:
        """Serve until a signal comes. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, number)
        url = url_of(self._data_socket)
        upstreams = [configured(name, given) for name, given in self._settings.fleet.upstreams.items()]
        self._proxy = await serve_proxy(
            self._data_socket, upstreams, self._chooser, self._handing, proxy_options(self._settings)
        )
        self._console.log(f"passing requests on at {url}/v1 to {listed(self._named_upstreams())}")
        handing = asyncio.create_task(self._hand_over())
        supervising = asyncio.create_task(self._keep_control())
        # What has been built stays: the collector need not look at it again and again beside the data path.
        gc.collect()
        gc.freeze()
        await self._ending.wait()
        await self._proxy.drain(GRACE_SECONDS)
        while self._handing.flush(self._link):
            pass
        handing.cancel()
        supervising.cancel()
        await asyncio.gather(handing, supervising, return_exceptions=True)
        await asyncio.to_thread(self._end_control)
        return 0

    def _end(self, number: int) -> None:
        if self._ending.is_set():
            # The second word: nobody is waited for any more.
            if self._process is not None:
                self._process.kill()
            raise SystemExit(128 + number)
        self._console.log(f"stopping: no more requests are taken, those that run get {GRACE_SECONDS} s to end")
        self._ending.set()

    def _named_upstreams(self) -> Iterator[str]:
        for name, upstream in self._settings.fleet.upstreams.items():
            yield f"{name} ({upstream.url})"

    async def _hand_over(self) -> None:
        """Tell the control process what was measured, and now and then how the data path does."""
        assert self._proxy is not None
        told_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._handing.flush(self._link)
            if self._link is not None and loop.time() - told_at >= STATE_SECONDS:
                told_at = loop.time()
                state = self._proxy.state()
                self._link.send(Told(replace(state, dropped=state.dropped + self._handing.dropped)))

    async def _keep_control(self) -> None:
        """Start the control process, and start it again whenever it has ended."""
        loop = asyncio.get_running_loop()
        pause = RESTART_SECONDS[0]
        while True:
            started_at = loop.time()
            await asyncio.to_thread(self._start_control, loop)
            await self._control_gone.wait()
            self._control_gone.clear()
            unsent = await asyncio.to_thread(self._end_control)
            self._handing.take_back(unsent)
            pause = RESTART_SECONDS[0] if loop.time() - started_at > STEADY_SECONDS else pause
            self._console.log(f"the control process ended; requests go on, and it starts again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, RESTART_SECONDS[1])

    def _start_control(self, loop: asyncio.AbstractEventLoop) -> None:
        def in_loop(callback: Callable[..., object], *given: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for a word any more
                loop.call_soon_threadsafe(callback, *given)

        with self._beginning_or_ending:
            if self._ending.is_set():
                return
            context = multiprocessing.get_context("spawn")
            near, far = context.Pipe()
            process = context.Process(
                target=run_control, args=(self._settings, far, self._admin_socket), name="paceline-control", daemon=True
            )
            process.start()
            far.close()
            self._process = process
            self._link = Link(near, partial(in_loop, self._take), partial(in_loop, self._control_gone.set))
            self._link.start()

    def _end_control(self) -> list[object]:
        """Let the control process write down what it knows, and end it. Returns what was not written to it."""
        with self._beginning_or_ending:  # a signal may come while it starts
            link, self._link = self._link, None
            process, unsent = self._process, []
            if link is not None:
                link.send(Stop())
                if process is not None:
                    process.join(CONTROL_SECONDS)
                unsent = link.close()
            if process is not None:
                process.kill()
                process.join()
                self._process = None
                process.close()
            return unsent

    def _take(self, message: object) -> None:
        """A word of the control process, in the loop of the data path."""
        if isinstance(message, Steer) and self._proxy is not None:
            if message.upstreams is not None:
                self._proxy.set_upstreams(message.upstreams)
            self._chooser.swap(message.snapshot)


def _refuse_unusable(name: str, url: str, listeners: Sequence[socket.socket]) -> None:
    """Raises: SettingsError: nothing can be reached at `url`, or one of our own `listeners` is."""
    try:
        origin = parse_origin(url)
    except OriginError as error:
        raise SettingsError(f"fleet.upstreams.{name}.url: {error}") from error
    if any(reaches(origin.host, origin.port, listener) for listener in listeners):
        raise SettingsError(
            f"fleet.upstreams.{name}.url is {shown(url)}, where this sidecar itself would listen, so that every "
            "request came back to it: give the address of the server behind it, or another server.port and admin.port."
        )


def proxy_options(settings: Settings) -> ProxyOptions:
    """What the data path is told of the settings."""
    fleet = settings.fleet
    return ProxyOptions(
        max_body_bytes=fleet.max_body_bytes,
        connect_seconds=fleet.connect_seconds,
        first_byte_seconds=fleet.first_byte_seconds or math.inf,
        idle_seconds=fleet.idle_seconds or math.inf,
        comment_seconds=fleet.keep_alive_seconds or None,
    )

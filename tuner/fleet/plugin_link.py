"""The control process's side of vLLM's plug-in: hears its reports, calibrates its server, and hands it orders."""

import asyncio
import logging
from collections.abc import Callable

from policies.protocols import TelemetrySink
from policies.stats import EngineInfo
from tuner.fleet.metrics import FleetMetrics
from tuner.fleet.settings import UpstreamSettings
from tuner.fleet.types import Effect, Lever, Upstream
from tuner.fleet.vllm.calibration import Calibration, calibrate
from tuner.fleet.vllm.publishing import Publisher
from tuner.fleet.vllm.replica import Replica
from tuner.fleet.vllm.telemetry import TelemetryServer, engine_info
from tuner.http_servers import StartError

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0
"""Before a calibration is tried again that others' requests have kept from being of use."""
OTHER = "other"
"""The upstream of a plug-in that nobody can place."""


class PluginLink:
    """For one event loop."""

    def __init__(
        self,
        upstreams: dict[str, UpstreamSettings],
        found: Callable[[], tuple[Upstream, ...]],
        idle: Callable[[], bool],
        calibrates: bool,
        sink: TelemetrySink,
        metrics: FleetMetrics,
        on_ready: Callable[[EngineInfo, int], None],
        tell: Callable[[str], None],
    ) -> None:
        """
        Args:
            found: what is known of the upstreams now.
            idle: whether nobody's requests are in progress.
            calibrates: whether servers may be sent requests of our own.
            on_ready: is told, once, what the first server is, and the block length that it was launched with.
            tell: a sentence for people.
        """
        self._settings = upstreams
        self._found = found
        self._idle = idle
        self._calibrates = calibrates
        self._metrics = metrics
        self._on_ready = on_ready
        self._tell = tell
        self._places: dict[str, str] = {}
        """The upstream of each instance."""
        self._ready: asyncio.Task[None] | None = None
        self.publisher = Publisher(None)
        self._server = TelemetryServer(sink, self._changed)

    async def start(self, host: str, port: int) -> int:
        """Listen for reports; returns the port.

        Raises:
            StartError: nothing can listen there.
        """
        try:
            bound = await self._server.start(host, port)
        except OSError as error:
            raise StartError(
                f"fleet.plugin_port: cannot listen on {host}:{port} ({error.strerror}); choose another."
            ) from error
        self.publisher.start()
        return bound

    async def close(self) -> None:
        """Take the orders away, and hear nothing more."""
        if self._ready is not None:
            self._ready.cancel()
            await asyncio.gather(self._ready, return_exceptions=True)
        await self._server.close()
        await asyncio.to_thread(self.publisher.close)

    def _changed(self, replica: Replica) -> None:
        instance = replica.hello.instance
        place = self._place_of(replica)
        if not replica.connected:
            self._metrics.forget_plugin(place, instance)
            return
        if replica.state is not None:
            self._metrics.fold_plugin(place, instance, replica.state)
        if self._ready is None:
            self._ready = asyncio.create_task(self._get_ready(replica))

    def _place(self, replica: Replica) -> str:
        """The upstream that a plug-in is in, by the model that it serves; those taken already come last."""
        serving = [one for one in self._found() if replica.hello.model in one.models]
        with_plugin = [one for one in serving if one.effect(Lever.PLUGIN) is Effect.WORKS] or serving
        taken = set(self._places.values()) - {OTHER}
        free = [one.name for one in with_plugin if one.name not in taken] or [one.name for one in with_plugin]
        return free[0] if free else OTHER

    async def _get_ready(self, replica: Replica) -> None:
        """Calibrate, and let cycles be steered from then on."""
        hello = replica.hello
        if self._calibrates:
            while not await self._calibrated(replica):
                await asyncio.sleep(AGAIN_SECONDS)
        else:
            self._on_ready(engine_info(hello, Calibration()), hello.block_length)

    async def _calibrated(self, replica: Replica) -> bool:
        """Whether what cycles cost is known now, and the tuner told."""
        given = self._settings.get(self._place_of(replica))
        if given is None or not self._idle():
            return False
        calibration = await calibrate(given.url, replica, given.headers)
        self._tell(calibration.sentence)
        # Without a pass that verified drafts nobody knows what they cost.
        if replica.hello.block_length and not any(cycle.tokens > cycle.load for cycle in calibration.cycles):
            return False
        self._on_ready(engine_info(replica.hello, calibration), replica.hello.block_length)
        return True

    def _place_of(self, replica: Replica) -> str:
        """Its upstream. A plug-in speaks before its server answers, so that it may be placed only later."""
        instance, hello = replica.hello.instance, replica.hello
        known = self._places.get(instance)
        if known is None or known == OTHER:
            place = self._places[instance] = self._place(replica)
            if place != known:
                where = "a server that is none of the upstreams yet" if place == OTHER else f"upstream {place}"
                self._tell(
                    f"vLLM's plug-in reports from {where}: {hello.drafter}, up to {hello.block_length} tokens, "
                    f"{hello.slots} sequences"
                )
        return self._places[instance]

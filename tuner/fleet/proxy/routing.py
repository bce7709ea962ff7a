"""Which upstream a request goes to: the chooser's word, or the one with the fewest requests."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from tuner.fleet.proxy.answer import Answer
from tuner.fleet.proxy.endpoint import Endpoint
from tuner.fleet.proxy.options import ProxyOptions
from tuner.fleet.proxy.outcome import Sent, report
from tuner.fleet.types import Asked, Choice, Chooser, End, ExchangeSink, Upstream

_log = logging.getLogger(__name__)
OVERHEAD_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, float("inf"))


class Routing:
    """The upstreams, the chooser and the sink; no fault of the latter two reaches a request."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        chooser: Chooser,
        sink: ExchangeSink,
        options: ProxyOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.options = options
        self.loop = loop
        self.chooser_faults = 0
        self.dropped = 0
        self.exchanges = 0
        """In progress."""
        self.overhead = dict.fromkeys(OVERHEAD_BOUNDS, 0)
        self._chooser = chooser
        self._sink = sink
        self._endpoints: dict[str, Endpoint] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.set_upstreams(upstreams)

    @property
    def endpoints(self) -> Iterable[Endpoint]:
        return self._endpoints.values()

    def set_upstreams(self, upstreams: Sequence[Upstream]) -> None:
        """Those of the same name and URL keep their connections and their health.

        Raises:
            OriginError: a URL cannot be used; the upstreams stay as they were.
        """
        new = {}
        for upstream in upstreams:
            old = self._endpoints.get(upstream.name)
            if old is None or old.upstream.url != upstream.url:
                new[upstream.name] = Endpoint(upstream, self.options, self.loop)
            else:
                old.upstream = upstream
                new[upstream.name] = old
        for name, endpoint in self._endpoints.items():
            if new.get(name) is not endpoint:
                endpoint.close()
        self._endpoints = new

    def open_endpoints(self, without: Collection[str]) -> dict[str, Endpoint]:
        """Those that take a request. If none does, all: a request that fails is no worse than one that is refused,
        and there may be nobody else who would notice that they are back."""
        left = {name: one for name, one in self._endpoints.items() if name not in without}
        return {name: one for name, one in left.items() if one.health.takes} or left

    def first(self, without: Collection[str]) -> Endpoint | None:
        """For what is no generation: the first one, so that pages such as ``/metrics`` come from the same server."""
        return next(iter(self.open_endpoints(without).values()), None)

    def least_loaded(self, without: Collection[str]) -> Endpoint | None:
        return min(self.open_endpoints(without).values(), key=lambda one: one.in_flight, default=None)

    def reads(self, path: str, route: str | None) -> bool:
        try:
            return self._chooser.reads(path, route)
        except Exception:  # noqa: BLE001 - whatever is wrong with the tuner, requests are served
            self._chooser_failed()
            return False

    def choose(self, asked: Asked) -> Choice | None:
        """The chooser's choice; None where it failed, or named an upstream that it could not have."""
        try:
            choice = self._chooser.choose(asked)
        except Exception:  # noqa: BLE001 - whatever is wrong with the tuner, requests are served
            self._chooser_failed()
            return None
        if asked.sent_to is None and choice.upstream not in asked.in_flight:
            self.chooser_faults += 1
            _log.error("the chooser named the upstream %r, which takes no requests", choice.upstream)
            return None
        return choice

    def chooser_fault(self, sentence: str) -> None:
        """A choice could not be carried out."""
        self.chooser_faults += 1
        _log.error("%s", sentence)

    def record(self, sent: Sent, answer: Answer, end: End) -> None:
        """Hand over what was measured."""
        bound = next(bound for bound in OVERHEAD_BOUNDS if sent.overhead_seconds <= bound)
        self.overhead[bound] += 1
        try:
            self._sink.record(report(sent, answer, end))
        except Exception:  # noqa: BLE001 - whatever is wrong with the tuner or an answer's counts, requests are served
            self.dropped += 1
            _log.exception("an exchange was not taken down")

    def tick(self, now: float) -> None:
        """Close unused connections, and ask those that are down whether they are well."""
        for endpoint in self._endpoints.values():
            endpoint.close_unused(now)
            if endpoint.health.asks(now):
                task = self.loop.create_task(endpoint.ask_health())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _chooser_failed(self) -> None:
        self.chooser_faults += 1
        _log.exception("the chooser failed; a request is passed on as it came")

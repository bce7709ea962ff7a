"""Upstreams, watched one by one: who they are, what they let be steered, and what their metrics say from then on."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus

import httpx

from policies.quoting import listed
from policies.types import PLAIN
from tuner.fleet.engines.fetching import FetchError, fetch
from tuner.fleet.engines.identity import LOOK_SECONDS, identify, models_of
from tuner.fleet.engines.probe import probe
from tuner.fleet.engines.scrape import EngineMeter
from tuner.fleet.metrics import FleetMetrics
from tuner.fleet.settings import UpstreamSettings
from tuner.fleet.types import UNKNOWN_DRAFTER, Upstream

log = logging.getLogger(__name__)

RECHECK_SECONDS = 60.0
"""How often an upstream is asked anew who it is, also where its metrics say that it still runs."""


class Watch:
    """Keeps what is known of every upstream."""

    def __init__(
        self,
        upstreams: Mapping[str, UpstreamSettings],
        poll_seconds: float,
        pulls_levers: bool,
        metrics: FleetMetrics,
        on_change: Callable[[tuple[Upstream, ...], str], None],
    ) -> None:
        """
        Args:
            pulls_levers: whether an upstream may be sent requests of our own, to see what it lets be steered.
            on_change: is told all upstreams, and a sentence for people about the one that changed.
        """
        self._settings = upstreams
        self._poll_seconds = poll_seconds
        self._pulls_levers = pulls_levers
        self._metrics = metrics
        self._on_change = on_change
        self._known = {name: configured(name, given) for name, given in upstreams.items()}
        self._full_blocks = dict.fromkeys(upstreams, False)
        self._first_look = {name: asyncio.Event() for name in upstreams}

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        return tuple(self._known.values())

    def client(self, name: str) -> httpx.AsyncClient:
        """One that says to an upstream who asks, where it wants to know."""
        return httpx.AsyncClient(headers=self._settings[name].headers, trust_env=False)

    async def looked(self, seconds: float) -> None:
        """Return when every upstream was asked once who it is, or when `seconds` are over."""
        waiting = [asyncio.create_task(event.wait()) for event in self._first_look.values()]
        _, late = await asyncio.wait(waiting, timeout=seconds)
        for task in late:
            task.cancel()

    async def run(self) -> None:
        """Watch until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self._settings:
                group.create_task(self._watch(name))

    async def _watch(self, name: str) -> None:
        given = self._settings[name]
        async with self.client(name) as client:
            meter = EngineMeter(given.url, client)
            loop = asyncio.get_running_loop()
            looked_at = -RECHECK_SECONDS
            anew = True
            sentence = ""
            while True:
                if (anew or loop.time() - looked_at >= RECHECK_SECONDS) and await self._look(name, client, anew):
                    looked_at, anew = loop.time(), False
                self._first_look[name].set()
                await asyncio.sleep(self._poll_seconds)
                scraped = await meter.read(full_blocks=self._full_blocks[name])
                if scraped.sentence != sentence:
                    sentence = scraped.sentence
                    if sentence:
                        log.warning("upstream %s: %s", name, sentence)
                if scraped.reading is None:
                    self._metrics.count_missing(name)
                    anew |= await self._is_another(name, client)
                elif scraped.delta is not None:
                    delta = scraped.delta
                    if delta.cycles is delta.drafted is delta.accepted is None:
                        self._metrics.count_missing(name)
                    self._metrics.count_drafting(
                        name, cycles=delta.cycles, drafted=delta.drafted, accepted=delta.accepted
                    )
                    if delta.restarted:
                        self._metrics.count_restart(name)
                        anew = True  # it may have been launched in another way

    async def _is_another(self, name: str, client: httpx.AsyncClient) -> bool:
        """Whether an upstream whose metrics tell nothing may have been started anew: it was gone, or lists others."""
        before = self._known[name]
        try:
            answer = await fetch(client, f"{before.url}/v1/models", seconds=LOOK_SECONDS)
        except FetchError:
            return True
        models = models_of(answer)
        if answer.status != HTTPStatus.OK or models == before.models:
            return False
        if before.models:
            self._metrics.count_restart(name)
        return True

    async def _look(self, name: str, client: httpx.AsyncClient, anew: bool) -> bool:
        """Ask who an upstream is, and where that is new also what it lets be steered. False where nobody answered."""
        before = self._known[name]
        try:
            told = await self._told(name, client)
            same = _same(before, told)
            # Of one that is as it was, levers are not pulled again.
            if same and not anew:
                return True
            if not same and not anew:
                self._metrics.count_restart(name)
            found = await probe(before.url, client=client, name=name) if self._pulls_levers else told
        except FetchError as error:
            log.info("upstream %s: %s", name, error)
            return False
        found = as_configured(found, self._settings[name])
        self._known[name] = found
        self._metrics.set_upstreams(self.upstreams)
        self._on_change(self.upstreams, described(found))
        return True

    async def _told(self, name: str, client: httpx.AsyncClient) -> Upstream:
        """What it says of itself, without a request that generates."""
        before = self._known[name]
        identity = await identify(before.url, client)
        launched = identity.launched
        self._full_blocks[name] = identity.full_blocks
        return Upstream(
            name=name,
            url=before.url,
            engine=identity.engine,
            version=identity.version,
            models=identity.models,
            speculates=launched,
            drafter=PLAIN if launched is False else identity.drafter or UNKNOWN_DRAFTER,
            block_length=0 if launched is False else identity.block_length,
        )


def configured(name: str, given: UpstreamSettings) -> Upstream:
    """What the configuration alone says of an upstream."""
    return Upstream(
        name=name,
        url=given.url,
        speculates=None if given.drafter is None else given.drafter != PLAIN,
        drafter=given.drafter or PLAIN,
        block_length=given.block_length or 0,
    )


def as_configured(found: Upstream, given: UpstreamSettings) -> Upstream:
    """What was found, under what the configuration says of it."""
    if given.drafter is not None:
        found = replace(found, drafter=given.drafter, speculates=given.drafter != PLAIN)
    if given.block_length is not None:
        found = replace(found, block_length=given.block_length)
    return found


def described(upstream: Upstream) -> str:
    """One line for people."""
    drafting = {True: f"drafts with {upstream.drafter}", False: "decodes plain", None: "may draft or not"}
    length = f", up to {upstream.block_length} tokens" if upstream.block_length else ""
    levers = ", ".join(f"{one.lever.value}: {one.effect.value}" for one in upstream.capabilities)
    version = upstream.version or "of a version that it does not tell"
    return (
        f"upstream {upstream.name} is {upstream.engine.value} {version} "
        f"with {listed(upstream.models) or 'no model that it lists'}; it {drafting[upstream.speculates]}{length}"
        + (f"; levers: {levers}" if levers else "")
    )


def _same(before: Upstream, told: Upstream) -> bool:
    return (before.engine, before.version, before.models) == (told.engine, told.version, told.models)

"""Readings of one upstream's metrics, in bounded time and bytes, and what it did between them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from tuner.fleet.engines.fetching import FetchError, fetch
from tuner.fleet.engines.reading import EngineDelta, EngineReading, difference, is_another_server, read_page
from tuner.fleet.types import EngineKind

PAGE_SECONDS = 5.0
"""How long a page may take, from the connection to its last byte."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of metrics."""

    text: str
    process: str
    """What tells one process of llama.cpp from the next; empty where there is no such header."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """What came of one reading."""

    reading: EngineReading | None
    """None where there was none."""
    delta: EngineDelta | None
    """Since the last reading that there was; None at the first one, and where the two do not go together."""
    sentence: str
    """Why something is missing; empty where nothing is."""


class EngineMeter:
    """Reads one upstream again and again. What a reading missed is in the difference of the next one."""

    def __init__(
        self,
        url: str,
        client: httpx.AsyncClient,
        *,
        seconds: float = PAGE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`url` is the upstream's, and `clock` tells Unix seconds."""
        self._url = url
        self._client = client
        self._seconds = seconds
        self._clock = clock
        self._before: EngineReading | None = None

    async def read(self, *, full_blocks: bool = False) -> Scraped:
        """The next reading; one that fails is a sentence and no exception. `full_blocks` as for `difference`."""
        try:
            page = await fetch_page(self._client, self._url, seconds=self._seconds)
        except FetchError as error:
            return Scraped(None, None, str(error))
        reading = read_page(page.text, self._clock(), process=page.process)
        if reading.engine is EngineKind.UNKNOWN:
            said = f"{self._url}/metrics has no series of vLLM, llama.cpp or SGLang: correct the URL if it should."
            return Scraped(None, None, said)
        before, self._before = self._before, reading
        if before is None:
            return Scraped(reading, None, "")
        if is_another_server(before, reading):
            return Scraped(
                reading,
                None,
                f"Several servers answer at {self._url} in turn, so that nothing can be counted: make each of them an "
                "upstream.",
            )
        return Scraped(reading, difference(before, reading, full_blocks=full_blocks), "")


async def fetch_page(client: httpx.AsyncClient, url: str, *, seconds: float = PAGE_SECONDS) -> Page:
    """The page of metrics of the server at `url`.

    Raises:
        FetchError: there is none, or none in time, or one without end.
    """
    where = f"{url}/metrics"
    answer = await fetch(client, where, seconds=seconds, headers={"accept": "text/plain;version=0.0.4"})
    if answer.status != 200:
        raise FetchError(f"{where} answered {answer.status}{_remedy(answer.status)}.")
    return Page(answer.text, answer.headers.get("process-start-time-unix", ""))


def _remedy(status: int) -> str:
    if status in (401, 403):
        return ": it asks for a key, so set fleet.upstreams.NAME.api_key"
    if status in (404, 501):
        return ": launch llama-server with --metrics, SGLang with --enable-metrics"
    return ": look into its log"

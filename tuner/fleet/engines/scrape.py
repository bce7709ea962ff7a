"""Readings of one upstream's metrics, in bounded time and bytes, and what it did between them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from policies.quoting import shown
from tuner.fleet.engines.reading import EngineDelta, EngineReading, difference, is_another_server, read_page
from tuner.fleet.types import EngineKind

PAGE_SECONDS = 5.0
"""How long a page may take, from the connection to its last byte."""
MOST_BYTES = 8 << 20
"""A page of vLLM has 58 KB with one engine and 17 KB more for each further one."""
_HEADERS = {
    "accept": "text/plain;version=0.0.4",
    "accept-encoding": "identity",  # so that the bound is one of what comes
}


class ScrapeError(Exception):
    """A page of metrics could not be had; the message is one sentence for people."""


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
        full_blocks: bool = False,
        seconds: float = PAGE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`url` is the upstream's; `full_blocks` as for `difference`; `clock` tells Unix seconds."""
        self._url = url
        self._client = client
        self._full_blocks = full_blocks
        self._seconds = seconds
        self._clock = clock
        self._before: EngineReading | None = None

    async def read(self) -> Scraped:
        """The next reading; one that fails is a sentence and no exception."""
        try:
            page = await fetch_page(self._client, self._url, seconds=self._seconds)
        except ScrapeError as error:
            return Scraped(None, None, str(error))
        reading = read_page(page.text, self._clock(), process=page.process)
        if reading.engine is EngineKind.UNKNOWN:
            return Scraped(None, None, f"{self._url}/metrics has no series of vLLM, llama.cpp or SGLang.")
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
        return Scraped(reading, difference(before, reading, full_blocks=self._full_blocks), "")


async def fetch_page(client: httpx.AsyncClient, url: str, *, seconds: float = PAGE_SECONDS) -> Page:
    """The page of metrics of the server at `url`.

    Raises:
        ScrapeError: there is none, or it took longer than `seconds`, or it is longer than `MOST_BYTES`.
    """
    where = f"{url}/metrics"
    try:
        async with (
            asyncio.timeout(seconds),
            client.stream("GET", where, headers=_HEADERS, timeout=seconds) as answer,
        ):
            if answer.status_code != 200:
                raise ScrapeError(f"{where} answered {answer.status_code}{_remedy(answer.status_code)}.")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise ScrapeError(f"{where} is compressed, which was not asked for, and is not read.")
            received = bytearray()
            async for piece in answer.aiter_bytes():
                received += piece
                if len(received) > MOST_BYTES:
                    raise ScrapeError(f"{where} is longer than {MOST_BYTES >> 20} MiB and is not read.")
            return Page(received.decode("utf-8", "replace"), answer.headers.get("process-start-time-unix", ""))
    except (TimeoutError, httpx.TimeoutException):
        raise ScrapeError(f"{where} did not come within {seconds:g} seconds.") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ScrapeError(f"{where} could not be read: {shown(str(error) or type(error).__name__)}.") from error


def _remedy(status: int) -> str:
    if status in (401, 403):
        return ": it asks for a key"
    if status in (404, 501):
        return ": launch llama-server with --metrics, SGLang with --enable-metrics"
    return ""

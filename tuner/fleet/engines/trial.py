"""One tiny request to an engine, and what was drafted for it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from policies.quoting import clipped
from tuner.fleet.engines.draft_counts import draft_counts
from tuner.fleet.engines.fetching import Fetched, FetchError, fetch
from tuner.fleet.engines.reading import EngineDelta, EngineReading, difference, read_page
from tuner.fleet.engines.scrape import fetch_page
from tuner.fleet.types import EngineKind

MARK = "paceline-probe"
"""``user`` and the beginning of ``x-request-id`` of each request, so that operators know it in their logs."""
REPEATING = " one two three four five six seven eight nine ten" * 8
"""A text that goes on as it is, so that any drafter has something to propose, n-grams among them."""
STORY = "The old lighthouse keeper opened the door, looked out at the sea and"
NO_TIME = "There was no time left to try it."
SHORT, LONG = 16, 64
"""Output tokens. An n-gram drafter of llama.cpp proposes 48 or nothing, unless it is told otherwise."""
_LAG_SECONDS, _LAG_TRIES = 0.05, 8
"""A page of metrics may come before the engine has counted the answer that it has sent."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one request."""

    status: int
    """0 where no answer came."""
    output_tokens: int | None
    drafted: float | None
    """Tokens; None where nobody tells, as for `accepted` and `cycles`."""
    accepted: float | None
    cycles: float | None
    """Those that verified drafts."""
    seconds: float
    """Of decoding, by the engine's own clock where it tells it; else of the whole request."""
    sentence: str
    """Why something is missing; empty where nothing is."""

    @property
    def drafting(self) -> bool | None:
        """Whether anything was drafted; None where nobody tells."""
        told = self.cycles if self.drafted is None else self.drafted
        return None if told is None else told > 0

    @property
    def amount(self) -> str:
        """What was drafted, for people."""
        if not self.drafting:
            return "unknown" if self.drafting is None else "nothing"
        return f"{self.cycles:g} blocks" if self.drafted is None else f"{self.drafted:g} tokens"

    @property
    def tokens_per_second(self) -> float | None:
        return self.output_tokens / self.seconds if self.output_tokens and self.seconds > 0 else None


class Trier:
    """Sends trials to one upstream, until its time is up."""

    def __init__(self, url: str, client: httpx.AsyncClient, engine: EngineKind, model: str, deadline: float) -> None:
        """`deadline` is one of the clock of `asyncio.get_running_loop`."""
        self._url = url
        self._client = client
        self._engine = engine
        self._model = model
        self._deadline = deadline
        self._sent = 0

    @property
    def sent(self) -> int:
        """Requests so far."""
        return self._sent

    def left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - asyncio.get_running_loop().time()

    async def run(
        self,
        fields: Mapping[str, Any] | None = None,
        *,
        prompt: str = REPEATING,
        tokens: int = SHORT,
        model: str | None = None,
    ) -> Trial:
        """One greedy request with `fields` added to its body; never an exception."""
        if self.left() <= 0:
            return Trial(0, None, None, None, None, 0.0, NO_TIME)
        self._sent += 1
        body: dict[str, Any] = {
            "model": model or self._model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "user": MARK,
        }
        if self._engine is EngineKind.SGLANG:
            body["return_spec_tokens_details"] = True
        before = await self._read()
        started = time.perf_counter()
        try:
            answer = await fetch(
                self._client,
                f"{self._url}/v1/completions",
                seconds=max(self.left(), 0.001),
                body=body | dict(fields or {}),
                headers={"x-request-id": f"{MARK}-{self._sent}", "user-agent": MARK},
            )
        except FetchError as error:
            return Trial(0, None, None, None, None, time.perf_counter() - started, str(error))
        seconds = time.perf_counter() - started
        if answer.status != 200:
            return Trial(answer.status, None, None, None, None, seconds, _refusal(answer))
        return await self._told(answer.mapping, before, seconds)

    async def look(self, path: str) -> Fetched:
        """What `path` says; an empty answer of status 0 where it says nothing."""
        try:
            return await fetch(self._client, self._url + path, seconds=max(min(self.left(), 2.0), 0.001))
        except FetchError:  # nothing hangs on it that could not be unknown
            return Fetched(0, {}, b"")

    async def _told(self, told: Mapping[str, Any], before: EngineReading | None, seconds: float) -> Trial:
        tokens = _number(_mapping(told, "usage"), "completion_tokens")
        output = None if tokens is None else int(tokens)
        timings = _mapping(told, "timings")
        clock = _number(timings, "predicted_ms") or _number(_mapping(told, "metrics"), "generation_time_ms")
        seconds = seconds if not clock else clock / 1000.0
        if (counts := draft_counts(told)) is not None:
            return Trial(200, output, counts.drafted, counts.accepted, counts.cycles, seconds, "")
        if timings:  # of llama.cpp, which leaves the drafts out where there were none
            return Trial(200, output, 0, 0, None, seconds, "")
        return await self._counted(before, output, seconds)

    async def _counted(self, before: EngineReading | None, output: int | None, seconds: float) -> Trial:
        """By the engine's counters, if nobody else's tokens came in between."""
        delta = None if before is None or output is None else await self._since(before, output)
        if delta is None or delta.output_tokens is None:
            said = "The answer does not tell its drafts, and the metrics cannot be read."
            return Trial(200, output, None, None, None, seconds, said)
        if delta.output_tokens != output:
            said = "Other requests ran at the same time, so that the engine's counters do not tell this one's drafts."
            return Trial(200, output, None, None, None, seconds, said)
        if delta.cycles is None:
            return Trial(200, output, 0, 0, 0, seconds, "")
        return Trial(200, output, delta.drafted, delta.accepted, delta.cycles, seconds, "")

    async def _since(self, before: EngineReading, output: int) -> EngineDelta | None:
        """What the engine counted, once it has counted `output` tokens or time is up."""
        delta: EngineDelta | None = None
        for _ in range(_LAG_TRIES):
            after = await self._read()
            delta = None if after is None else difference(before, after)
            if delta is None or (delta.output_tokens or 0.0) >= output:
                return delta
            await asyncio.sleep(_LAG_SECONDS)
        return delta

    async def _read(self) -> EngineReading | None:
        if self._engine is EngineKind.LLAMA_CPP:
            return None  # its answers tell
        try:
            page = await fetch_page(self._client, self._url, seconds=max(min(self.left(), 2.0), 0.001))
        except FetchError:  # then there is no counting, which the trial says
            return None
        return read_page(page.text, 0.0, process=page.process)


def _refusal(answer: Fetched) -> str:
    error = answer.mapping.get("error", answer.mapping)
    said = error.get("message") if isinstance(error, Mapping) else error
    return f"It answered {answer.status}: {clipped(str(said or answer.text)).rstrip('.')}."


def _mapping(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = told.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(told: Mapping[str, Any], name: str) -> float | None:
    found = told.get(name)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) and found >= 0 else None

"""Sends rounds of prompts to any OpenAI-compatible server: not streamed, since it shares the cores that serve."""

import asyncio
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from tuner.load import LoadError
from tuner.workload import Prompt

_LOOP = re.compile(r"(.{12,}?)\1\1", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FleetRound:
    """What a round of requests gave."""

    tokens: int
    seconds: float
    texts: tuple[str, ...]
    """In the order of the prompts."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def loops(text: str) -> bool:
    """Whether some 12 characters or more come three times in a row: a small greedy model loops, and loops flatter
    n-gram drafting."""
    return _LOOP.search(text) is not None


async def serve_round(
    http: httpx.AsyncClient, model: str, prompts: Sequence[Prompt], load: int, max_tokens: int
) -> FleetRound:
    """Every prompt once, greedy, `load` at a time. Raises LoadError, one sentence, when a request failed."""
    answers: list[tuple[int, str]] = [(0, "")] * len(prompts)
    pending = iter(enumerate(prompts))

    async def work(source: Iterator[tuple[int, Prompt]]) -> None:
        for index, prompt in source:
            answers[index] = await _ask(http, model, prompt, max_tokens)

    started = time.perf_counter()
    await asyncio.gather(*(work(pending) for _ in range(load)))
    seconds = time.perf_counter() - started
    return FleetRound(sum(tokens for tokens, _ in answers), seconds, tuple(text for _, text in answers))


async def _ask(http: httpx.AsyncClient, model: str, prompt: Prompt, max_tokens: int) -> tuple[int, str]:
    body = {
        "model": model,
        "messages": [dict(message) for message in prompt.messages],
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "seed": zlib.crc32(prompt.id.encode()),
    }
    headers = {"x-paceline-route": prompt.route}
    try:
        answer = await http.post("/v1/chat/completions", json=body, headers=headers)
    except httpx.HTTPError as error:
        raise LoadError(f"The request {prompt.id} failed: {type(error).__name__}: {error}") from error
    if answer.status_code != 200:
        raise LoadError(f"The request {prompt.id} failed: {answer.status_code} {answer.text}")
    content = answer.json()
    return content["usage"]["completion_tokens"], content["choices"][0]["message"]["content"]

"""Sends the workload to a server over HTTP, as clients would: bounded in count, on the loopback address."""

import asyncio
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from tuner.workload import Prompt


class LoadError(Exception):
    """Requests failed where every one of them counts; the message is one sentence for people."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back for one prompt."""

    prompt: Prompt
    status: int
    """HTTP status; 0 when the connection failed."""
    completion_tokens: int
    text: str
    seconds: float
    looped: bool = False
    """The server saw the same 8 tokens three times in a row in the output."""
    error: str = ""


async def send(client: httpx.AsyncClient, model: str, prompt: Prompt, max_tokens: int) -> Outcome:
    """One chat completion, not streamed. The seed is the prompt's own, so that a repeat gives the same text."""
    body = {
        "model": model,
        "messages": [dict(message) for message in prompt.messages],
        "max_tokens": min(prompt.max_tokens, max_tokens),
        "seed": zlib.crc32(prompt.id.encode()),
        **prompt.sampling,
    }
    started = time.perf_counter()
    try:
        headers = {"x-paceline-route": prompt.route, "x-paceline-debug": "true"}
        answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    except httpx.HTTPError as error:
        return Outcome(prompt, 0, 0, "", time.perf_counter() - started, error=f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - started
    if answer.status_code != 200:
        return Outcome(prompt, answer.status_code, 0, "", seconds, error=answer.text)
    content = answer.json()
    return Outcome(
        prompt,
        200,
        content["usage"]["completion_tokens"],
        content["choices"][0]["message"]["content"],
        seconds,
        looped=answer.headers["x-paceline-looped"] == "true",
    )


async def run_closed_loop(
    client: httpx.AsyncClient, model: str, prompts: Sequence[Prompt], concurrency: int, max_tokens: int
) -> tuple[list[Outcome], float]:
    """Every prompt once, `concurrency` at a time. Returns the outcomes in order of the prompts, and the seconds."""
    outcomes: list[Outcome | None] = [None] * len(prompts)
    pending = iter(enumerate(prompts))

    async def work(source: Iterator[tuple[int, Prompt]]) -> None:
        for index, prompt in source:
            outcomes[index] = await send(client, model, prompt, max_tokens)

    started = time.perf_counter()
    await asyncio.gather(*(work(pending) for _ in range(concurrency)))
    seconds = time.perf_counter() - started
    return [outcome for outcome in outcomes if outcome is not None], seconds

"""Sends the workload to a server over HTTP, as clients would: bounded in count, on the loopback address."""

import asyncio
import json
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
    prompt_tokens: int = 0
    error: str = ""


async def send(client: httpx.AsyncClient, model: str, prompt: Prompt, max_tokens: int) -> Outcome:
    """One chat completion, not streamed. The seed is the prompt's own, so that a repeat gives the same text."""
    body = _body(model, prompt, max_tokens)
    started = time.perf_counter()
    try:
        answer = await client.post("/v1/chat/completions", json=body, headers=_headers(prompt))
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
        prompt_tokens=content["usage"].get("prompt_tokens", 0),
    )


@dataclass(frozen=True, slots=True)
class Streamed:
    """When the pieces of one streamed answer came."""

    decision_id: str
    arrivals: tuple[float, ...]
    """`time.monotonic()` of each piece of text, the first one included."""


async def stream(client: httpx.AsyncClient, model: str, prompt: Prompt, max_tokens: int) -> Streamed:
    """One streamed chat completion. Raises LoadError unless it is served to its end."""
    arrivals: list[float] = []
    try:
        async with client.stream(
            "POST",
            "/v1/chat/completions",
            json=_body(model, prompt, max_tokens) | {"stream": True},
            # With a language of its own a request keeps the decision whose id its answer begins with.
            headers=_headers(prompt) | {"x-paceline-language": prompt.language},
        ) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise LoadError(f"The request {prompt.id} failed: {answer.status_code} {answer.text}")
            async for line in answer.aiter_lines():
                arrived = time.monotonic()
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise LoadError(f"The stream {prompt.id} broke off: {event['error']}")
                if any(choice["delta"].get("content") for choice in event["choices"]):
                    arrivals.append(arrived)
            return Streamed(answer.headers["x-paceline-decision"], tuple(arrivals))
    except httpx.HTTPError as error:
        raise LoadError(f"The stream {prompt.id} broke off: {type(error).__name__}: {error}") from error


def _body(model: str, prompt: Prompt, max_tokens: int) -> dict[str, object]:
    return {
        "model": model,
        "messages": [dict(message) for message in prompt.messages],
        "max_tokens": min(prompt.max_tokens, max_tokens),
        "seed": zlib.crc32(prompt.id.encode()),
        **prompt.sampling,
    }


def _headers(prompt: Prompt) -> dict[str, str]:
    return {"x-paceline-route": prompt.route, "x-paceline-debug": "true"}


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

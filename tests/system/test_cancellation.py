"""Clients that leave: whatever they were waiting for, everything that they held comes back."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from policies.stats import EngineStatus, FinishReason
from tests.engine.server.live import LiveServer, serve
from tests.engine.tiny_model import make_tiny_model

MODEL = "paceline/tiny"
CLIENTS, REQUESTS_EACH = 20, 10
DEADLINE_SECONDS = 120.0
NO_END = {"0": -100, "2": -100}
"""Keeps the random model from ending by chance."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(make_tiny_model(tmp_path_factory.mktemp("model")), MODEL) as server:
        yield server


def request_bytes(lot: random.Random, *, stream: bool) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "one two three " * lot.randint(1, 8)}],
        "max_tokens": 100,
        "temperature": lot.choice([0, 0.8]),
        "seed": lot.getrandbits(32),
        "logit_bias": NO_END,
        "stop": ["never said"],
        "n": lot.choice([1, 1, 1, 2]),
        "stream": stream,
    }
    content = json.dumps(body).encode()
    # Else who reads on after the end waits for as long as the server keeps an idle connection.
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\n"
    head += f"content-length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def one_client(host: str, port: int, lot: random.Random) -> Counter[str]:
    """Sends requests and leaves each: half-way through sending, while it waits, or after some of the answer."""
    left: Counter[str] = Counter()
    for _ in range(REQUESTS_EACH):
        reader, writer = await asyncio.open_connection(host, port)
        stream = lot.random() < 0.7
        sent = request_bytes(lot, stream=stream)
        moment = lot.choice(["unsent", "unread", "later", "reading", "reading"])
        if moment == "unsent":
            sent = sent[: lot.randrange(1, len(sent))]
        writer.write(sent)
        await writer.drain()
        if moment == "later":
            # A lot of the test, and nothing waits for it: the client leaves wherever the engine is by then.
            await asyncio.sleep(lot.random() * 0.2)
        elif moment == "reading":
            for _ in range(lot.randrange(1, 40)):
                if not await reader.readline():
                    break
        left[moment] += 1
        writer.transport.abort()
        await closed(writer)
    return left


async def closed(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.wait_closed()
    except ConnectionError:
        return  # we have just aborted it ourselves


async def settled(live: LiveServer) -> EngineStatus:
    """The first status in which nothing runs; the caller's deadline ends a wait in vain."""
    while True:
        status = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(live.engine.status(), live.loop))
        if not status.running and not status.waiting:
            return status


def test_report_44_after_200_cancelled_requests_everything_is_free_and_the_server_answers(live: LiveServer) -> None:
    url = httpx.URL(live.url)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30, "logit_bias": NO_END}
    body |= {"seed": 7, "temperature": 0.8}

    async def answer(client: httpx.AsyncClient) -> str:
        reply = await client.post(f"{live.url}/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["completion_tokens"] == 30
        return str(reply.json()["choices"][0]["message"]["content"])

    async def everything() -> tuple[EngineStatus, EngineStatus, Counter[str], str, str]:
        async with httpx.AsyncClient(timeout=DEADLINE_SECONDS) as client:
            first_answer = await answer(client)
            before = await settled(live)
            lots = [random.Random(number) for number in range(CLIENTS)]
            left = await asyncio.gather(*(one_client(url.host, url.port or 80, lot) for lot in lots))
            last_answer = await answer(client)
            return before, await settled(live), sum(left, Counter()), first_answer, last_answer

    before, after, left, first_answer, last_answer = asyncio.run(asyncio.wait_for(everything(), DEADLINE_SECONDS))
    assert left.total() == CLIENTS * REQUESTS_EACH
    assert (before.free_slots, before.free_blocks) == (live.engine.info.slots, live.engine.info.blocks)
    assert (after.free_slots, after.free_blocks) == (before.free_slots, before.free_blocks)
    assert last_answer == first_answer
    assert live.engine.alive
    ends = Counter(request.finish for request in live.sink.requests)
    assert ends[FinishReason.ERROR] == 0
    assert ends[FinishReason.CANCELLED] > CLIENTS, "the clients left while the engine was at work"
    moments = Counter(request.output_tokens > 0 for request in live.sink.requests if request.finish == "cancelled")
    assert moments[True] > 0, "some left after their first token"
    assert moments[False] > 0, "some left before it"

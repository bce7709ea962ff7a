"""tuner.fleet.proxy in front of a real vLLM: usage that a client did not ask for is learned from, and not passed on."""

import asyncio
import json
from typing import Any

import pytest

from tests.tuner.fleet.proxy.wire import DECISION, Steering, line, post
from tests.vllm.test_vllm import SECONDS, body
from tuner.bench.vllm_server import VllmServer
from tuner.fleet.types import Choice, Upstream

EDIT = (("stream_options", {"include_usage": True}),)


async def events(port: int, content: bytes) -> list[Any]:
    """Of a stream that is read over a bare socket, without what differs from run to run."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(content, headers=b"Content-Type: application/json\r\nConnection: close\r\n"))
    async with asyncio.timeout(SECONDS):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.endswith(b"0\r\n\r\n")
    found = [one.removeprefix(b"data: ") for one in answer.splitlines() if one.startswith(b"data: ")]
    assert found.pop() == b"[DONE]"
    return [{name: value for name, value in json.loads(one).items() if name not in ("id", "created")} for one in found]


@pytest.mark.parametrize("asks", [False, True], ids=["that did not ask", "that asked"])
def test_a_client_gets_the_stream_of_vllm_that_it_asked_for(vllm_ngram: VllmServer, asks: bool) -> None:
    fields = {"stream": True} | ({"stream_options": {"include_usage": True}} if asks else {})
    content = json.dumps(body(**fields)).encode()
    chooser = Steering(lambda name: Choice(name, decision=DECISION, edits=EDIT, strip_usage=not asks))

    async def test() -> None:
        port = int(vllm_ngram.url.rpartition(":")[2])
        async with line(Upstream("vllm", vllm_ngram.url), chooser=chooser) as proxied:
            through, direct = await events(proxied.port, content), await events(port, content)
            assert steady(through) == steady(direct)
            exchange = await proxied.sink.next()
            assert exchange.output_tokens is not None
            assert exchange.drafts is not None
            assert exchange.drafts.drafted

    asyncio.run(test())


def steady(found: list[Any]) -> list[Any]:
    """Without times."""
    return [
        {name: value for name, value in one.items() if name != "metrics"} if isinstance(one, dict) else one
        for one in found
    ]

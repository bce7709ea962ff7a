"""tuner.fleet.proxy in front of a real llama.cpp, with the official client and with bare sockets; and over TLS."""

import asyncio
import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.tuner.fleet.llama_server import LlamaServer
from tests.tuner.fleet.proxy.wire import (
    DECISION,
    PATIENCE,
    Line,
    Observing,
    Steering,
    line,
    post,
    run,
)
from tuner.fleet.types import Choice, End, Upstream

MESSAGES = [{"role": "user", "content": "Name three rivers of Europe."}]
PER_RUN = ("id", "created", "timings", "system_fingerprint")


def body_of(**members: Any) -> bytes:
    return json.dumps({"messages": MESSAGES, "temperature": 0, "max_tokens": 12} | members).encode()


async def events_of(port: int, body: bytes) -> list[dict[str, Any]]:
    """The events of a stream that is read over a bare socket, without what differs from run to run."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(post(body, headers=b"Connection: close\r\n"))
        async with asyncio.timeout(PATIENCE):
            content = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    lines = [one for one in content.splitlines() if one.startswith(b"data: {")]
    found = [json.loads(one.removeprefix(b"data: ")) for one in lines]
    return [{name: value for name, value in one.items() if name not in PER_RUN} for one in found]


async def streamed_text(proxied: Line) -> tuple[str, int]:
    """With the official client: the text, and how many tokens its usage tells."""
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{proxied.port}/v1", api_key="x", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "Name three rivers of Europe."}],
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
            max_tokens=12,
        )
        text, tokens = "", 0
        async for piece in stream:
            text += "".join(choice.delta.content or "" for choice in piece.choices)
            tokens = piece.usage.completion_tokens if piece.usage else tokens
        return text, tokens


@pytest.mark.model
def test_the_official_client_streams_through_the_proxy(llama_plain: LlamaServer) -> None:
    upstream = Upstream("llama", llama_plain.url)

    async def test() -> None:
        async with line(upstream) as proxied:
            text, tokens = await streamed_text(proxied)
            assert text
            assert tokens == 12
            exchange = await proxied.sink.next()
            assert (exchange.end, exchange.output_tokens, exchange.streamed) == (End.DONE, 12, True)
            assert exchange.prompt_tokens is not None
            assert exchange.decode_seconds > 0.0

    run(test)


@pytest.mark.model
def test_llama_cpp_tells_its_counts_unasked(llama_plain: LlamaServer) -> None:
    upstream = Upstream("llama", llama_plain.url)

    async def test() -> None:
        async with line(upstream, chooser=Observing()) as proxied:
            for stream in (True, False):
                client = await proxied.client()
                await client.send(post(body_of(stream=stream), headers=b"Connection: close\r\n"))
                await client.rest()
                exchange = await proxied.sink.next()
                assert (exchange.output_tokens, exchange.streamed) == (12, stream)
                assert exchange.prompt_tokens is not None
                assert exchange.decode_seconds > 0.0

    run(test)


@pytest.mark.model
def test_a_client_that_did_not_ask_for_usage_gets_llama_cpps_stream_as_without_us(llama_plain: LlamaServer) -> None:
    """But for its ``timings``, which llama.cpp puts into the usage's chunk where there is one: no reason to ask it."""
    port = int(llama_plain.url.rpartition(":")[2])
    edit = (("stream_options", {"include_usage": True}),)
    chooser = Steering(lambda name: Choice(name, decision=DECISION, edits=edit, strip_usage=True))

    async def test() -> None:
        async with line(Upstream("llama", llama_plain.url), chooser=chooser) as proxied:
            assert await events_of(proxied.port, body_of(stream=True)) == await events_of(port, body_of(stream=True))
            assert (await proxied.sink.next()).output_tokens == 12

    run(test)


@pytest.mark.model
def test_a_client_that_leaves_ends_the_generation(llama_plain: LlamaServer) -> None:
    async def test() -> None:
        async with line(Upstream("llama", llama_plain.url)) as proxied:
            client = await proxied.client()
            await client.send(post(body_of(stream=True, max_tokens=900, ignore_eos=True)))
            await client.until(b"data: ")
            client.end()
            assert (await proxied.sink.next()).end is End.CANCELLED
            page = b""
            async with asyncio.timeout(PATIENCE):
                while b"llamacpp:requests_processing 0\n" not in page:
                    watcher = await proxied.client()
                    await watcher.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    page = await watcher.rest()

    run(test)


@pytest.mark.binary("openssl")
def test_an_upstream_is_reached_over_tls_if_its_certificate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl = shutil.which("openssl") or "openssl"
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    order = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*order, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))
        await reader.read()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        for trusted in (False, True):
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            else:
                monkeypatch.delenv("SSL_CERT_FILE", raising=False)
            async with line(Upstream("tls", f"https://localhost:{port}")) as proxied:
                client = await proxied.client()
                await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                head, seen = await client.answer()
                if trusted:
                    assert seen == b"GET / HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % port
                else:
                    assert head.startswith(b"HTTP/1.1 502 ")
                    assert b"certificate" in seen
        server.close()

    run(test)

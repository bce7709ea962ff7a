"""Readings over HTTP: what hangs, floods or is not there is a sentence, and the next reading has what was missed."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.tuner.fleet.engines.recordings import page
from tuner.fleet.engines.fetching import MOST_BYTES, FetchError
from tuner.fleet.engines.scrape import EngineMeter, Scraped, fetch_page

URL = "http://engine"


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def pages(*texts: str | int) -> Callable[[httpx.Request], httpx.Response]:
    """One answer after another; a number is a status."""
    left = iter(texts)

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/metrics"
        text = next(left)
        return httpx.Response(text) if isinstance(text, int) else httpx.Response(200, text=text)

    return answer


def read(answer: Callable[[httpx.Request], httpx.Response], times: int) -> list[Scraped]:
    async def run() -> list[Scraped]:
        moments = iter(range(100))
        async with client(answer) as http:
            meter = EngineMeter(URL, http, clock=lambda: float(next(moments)))
            return [await meter.read() for _ in range(times)]

    return asyncio.run(run())


def fetched(answer: Callable[[httpx.Request], httpx.Response]) -> str:
    async def run() -> str:
        async with client(answer) as http:
            return (await fetch_page(http, URL)).text

    return asyncio.run(run())


@asynccontextmanager
async def server(serve: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await serve(writer)
            await reader.read()  # until the other side gives up
        finally:
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def silent(writer: asyncio.StreamWriter) -> None:
    """Says nothing."""


async def half(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nvllm:num_requests_running 1\n")
    await writer.drain()


@pytest.mark.parametrize("serve", [silent, half])
def test_a_page_that_hangs_is_given_up(serve: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
    async def run() -> str:
        async with server(serve) as url, httpx.AsyncClient() as http:
            with pytest.raises(FetchError) as caught:
                await fetch_page(http, url, seconds=0.2)
            return str(caught.value).removeprefix(url)

    assert asyncio.run(run()) == "/metrics did not answer within 0.2 seconds: look whether the server still works."


def test_a_page_that_drips_is_given_up_too() -> None:
    """A byte now and then keeps a timeout of each read away, and not that of the page."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"#")
            await asyncio.sleep(0.02)

    async def run() -> None:
        async with server(drip) as url, httpx.AsyncClient() as http:
            with pytest.raises(FetchError, match=r"within 0\.3 seconds"):
                await fetch_page(http, url, seconds=0.3)

    asyncio.run(run())


def test_a_page_without_end_is_not_read_to_the_end() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 20
            yield b"#" * (1 << 20)

    with pytest.raises(FetchError, match=r"longer than 8 MiB and not read: correct the URL\.$"):
        fetched(lambda _: httpx.Response(200, content=endless()))
    assert sent <= MOST_BYTES + (2 << 20)


def test_a_page_that_was_compressed_unasked_is_not_unpacked() -> None:
    packed = gzip.compress(b"#" * (64 << 20))
    with pytest.raises(FetchError, match="compressed"):
        fetched(lambda _: httpx.Response(200, headers={"content-encoding": "gzip"}, content=packed))


@pytest.mark.parametrize(
    ("status", "said"),
    [(404, "launch llama-server with --metrics"), (501, "--enable-metrics"), (401, "asks for a key"), (500, "500")],
)
def test_a_page_that_is_not_there_is_a_sentence_with_the_remedy(status: int, said: str) -> None:
    with pytest.raises(FetchError, match=said):
        fetched(pages(status))


def test_a_server_that_cannot_be_reached_is_a_sentence() -> None:
    async def run() -> Scraped:
        async with server(silent) as url:
            pass
        async with httpx.AsyncClient() as http:
            return await EngineMeter(url, http).read()

    found = asyncio.run(run())
    assert (found.reading, found.delta) == (None, None)
    assert "could not be read" in found.sentence


def test_the_first_reading_has_no_delta_and_the_next_one_has() -> None:
    first, second = read(pages(page("vllm_ngram_start"), page("vllm_ngram")), 2)
    assert first.reading is not None
    assert first.delta is None
    assert second.delta is not None
    assert (second.delta.cycles, second.delta.seconds) == (21.0, 1.0)
    assert (first.sentence, second.sentence) == ("", "")


def test_what_a_reading_missed_is_in_the_next_one() -> None:
    _, lost, found = read(pages(page("vllm_ngram_start"), 503, page("vllm_ngram")), 3)
    assert (lost.reading, lost.delta) == (None, None)
    assert "503" in lost.sentence
    assert found.delta is not None
    assert found.delta.cycles == 21.0


def test_several_servers_behind_one_url_are_told_and_nothing_is_counted() -> None:
    one, other = page("vllm_ngram"), page("vllm_two_engines")
    found = read(pages(one, other, one), 3)
    assert found[2].delta is None
    assert "in turn" in found[2].sentence


def test_another_engine_after_a_restart_has_no_delta() -> None:
    found = read(pages(page("vllm_ngram"), page("llama_cpp_ngram")), 2)[1]
    assert found.reading is not None
    assert found.delta is None


def test_a_page_of_nobody_known_is_a_sentence() -> None:
    (found,) = read(pages("up 1\n"), 1)
    assert found.reading is None
    assert "no series of vLLM, llama.cpp or SGLang" in found.sentence


def test_the_start_of_a_llama_cpp_is_read_from_its_header() -> None:
    texts = iter([page("llama_cpp_ngram"), page("llama_cpp_ngram")])
    starts = iter(["1", "2"])

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=next(texts), headers={"Process-Start-Time-Unix": next(starts)})

    found = read(answer, 2)[1]
    assert found.delta is not None
    assert found.delta.restarted is True

"""tuner.fleet.proxy: what passes, passes byte for byte, in both directions."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tuner.fleet.proxy.wire import (
    CHAT,
    STREAM_HEAD,
    Observing,
    PlayedUpstream,
    chunked,
    event,
    line,
    ok,
    post,
    run,
)
from tuner.fleet.types import End

BODY = b'{ "model": "m",\n "messages":[{"role":"user","content":"Hi \\u00e9"}] , "stream": true}'
ODD_HEADERS = (
    b"ACCEPT: */*\r\nx-b:1\r\nX-B:  2 \r\nAuthorization: Bearer k\r\nX-Paceline-Route: r\r\nx-empty:\r\n"
    b"X-Latin: caf\xe9\r\n"
)


def test_a_request_reaches_the_upstream_byte_for_byte_but_for_the_value_of_host() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            request = post(BODY, CHAT + "?a=b%20c&a", b"hOsT:   me\r\n" + ODD_HEADERS).replace(b"Host: proxy\r\n", b"")
            await client.send(request)
            peer = await upstream.accepted()
            expected = request.replace(b"hOsT:   me\r\n", b"hOsT:   " + upstream.authority + b"\r\n")
            assert await peer.read(len(expected)) == expected

    run(test)


def test_an_answer_reaches_the_client_byte_for_byte() -> None:
    answer = (
        b"HTTP/1.1 200 Very Well\r\nserver: x\r\nServer: y\r\nX-Latin: \xe9\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: text/event-stream\r\nTrailer: x-sum\r\n\r\n"
        b"5;ext=1\r\ndata:\r\n0A ; a\r\n 1\n\ndata: \r\n3\r\n2\n\n\r\n000\r\nx-sum: 1\r\nX-Two: 2\r\n\r\n"
    )

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n")
            await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + answer)
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
            assert await client.read(len(answer)) == answer
            assert (await proxied.sink.next()).end is End.DONE

    run(test)


def test_each_event_of_a_stream_is_passed_on_before_the_next_one_comes() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n")
            await peer.send(STREAM_HEAD)
            assert await client.read(len(STREAM_HEAD)) == STREAM_HEAD
            for index in range(5):
                piece = b"%x\r\n%b\r\n" % (len(event(str(index))), event(str(index)))
                await peer.send(piece)
                assert await client.read(len(piece)) == piece

    run(test)


def test_a_body_is_passed_on_before_it_is_whole() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(BODY)[:-20])
            peer = await upstream.accepted()
            assert (await peer.until(b"\r\n\r\n")).startswith(b"POST ")
            assert await peer.read(len(BODY) - 20) == BODY[:-20]
            await client.send(BODY[-20:])
            assert await peer.read(20) == BODY[-20:]

    run(test)


def test_what_passed_unread_is_told_to_the_chooser_afterwards() -> None:
    chooser = Observing()

    async def test() -> None:
        chooser.noted.clear()
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(BODY, headers=b"x-paceline-route: r\r\nx-paceline-language: de\r\n"))
            peer = await upstream.accepted()
            await peer.until(BODY)
            await peer.send(ok(b"{}"))
            await client.answer()
            await proxied.sink.next()
        (noted,) = chooser.noted
        assert (noted.sent_to, noted.route, noted.language) == ("a", "r", "de")
        assert noted.body is not None
        assert noted.body["messages"] == [{"role": "user", "content": "Hi \u00e9"}]
        assert noted.body_bytes == len(BODY)

    run(test)


def test_requests_of_one_connection_are_answered_one_after_another_over_one_upstream_connection() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(b"1") + post(b"22") + b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            peer = await upstream.accepted()
            for body in (b"1", b"22", b""):
                head = await peer.until(b"\r\n\r\n")
                assert await peer.read(len(body)) == body
                await peer.send(ok(b"<" + body + b">"))
                assert (await client.answer())[1] == b"<" + body + b">"
            assert head.startswith(b"GET /v1/models HTTP/1.1\r\n")
            assert upstream.connections == 1

    run(test)


def test_a_chunked_request_keeps_its_chunks_and_trailers() -> None:
    body = b'7\r\n{"a":1,\r\n4;x=y\r\n"b":\r\n2\r\n2}\r\n0\r\nx-sum: 1\r\n\r\n'

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            await client.send(head + body + b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n")
            assert await peer.read(len(body)) == body
            await peer.send(ok(b""))
            await client.answer()
            assert (await peer.until(b"\r\n\r\n")).startswith(b"GET /next ")

    run(test)


def test_a_path_of_the_upstream_stands_before_that_of_the_request() -> None:
    async def test() -> None:
        async with PlayedUpstream(path="/llm") as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(b"GET /v1/models?x=/v1 HTTP/1.1\r\nHost: x\r\n\r\n")
            peer = await upstream.accepted()
            assert (await peer.until(b"\r\n\r\n")).startswith(b"GET /llm/v1/models?x=/v1 HTTP/1.1\r\n")

    run(test)


def test_answers_without_a_body_end_with_their_head() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            peer = None
            for request, answer in (
                (b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
                (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
                (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"),
            ):
                await client.send(request)
                peer = peer or await upstream.accepted()
                await peer.until(b"\r\n\r\n")
                await peer.send(answer)
                assert await client.read(len(answer)) == answer
            assert upstream.connections == 1

    run(test)


def test_an_answer_that_ends_with_its_connection_ends_the_clients() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(b"GET /metrics HTTP/1.0\r\n\r\n")
            peer = await upstream.accepted()
            assert await peer.until(b"\r\n\r\n") == b"GET /metrics HTTP/1.0\r\n\r\n"
            await peer.send(b"HTTP/1.0 200 OK\r\n\r\na 1\n")
            peer.end()
            assert await client.rest() == b"HTTP/1.0 200 OK\r\n\r\na 1\n"

    run(test)


def test_an_upgraded_connection_passes_both_ways_as_it_comes() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n")
            switched = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
            await peer.send(switched + b"\x81\x00")
            assert await client.read(len(switched) + 2) == switched + b"\x81\x00"
            await client.send(b"\x82\x00\r\n\r\n")
            assert await peer.read(6) == b"\x82\x00\r\n\r\n"
            client.end()
            await peer.gone()

    run(test)


def test_a_continue_is_the_upstreams_while_nothing_is_read() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(b"body", headers=b"Expect: 100-continue\r\n")[:-4])
            peer = await upstream.accepted()
            assert b"Expect: 100-continue\r\n" in await peer.until(b"\r\n\r\n")
            await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"body")
            assert await peer.read(4) == b"body"
            await peer.send(ok(b"x"))
            assert (await client.answer())[1] == b"x"

    run(test)


REQUESTS = (
    post(BODY, headers=ODD_HEADERS)
    + b"POST /v1/completions HTTP/1.1\r\nHost: proxy\r\ntransfer-encoding: Chunked\r\n\r\n"
    + chunked(b'{"prompt":', b'"x"}')
    + b"GET /v1/models HTTP/1.1\r\nhost: proxy\r\n\r\n"
)
ANSWERS = (
    STREAM_HEAD + chunked(event('{"choices":[]}'), event("[DONE]")),
    ok(b'{"usage":{"completion_tokens":3}}', b"Content-Type: application/json\r\n"),
    b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno",
)


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, size - 1), max_size=12, unique=True).map(sorted)


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts(len(REQUESTS)), cuts(len(b"".join(ANSWERS))))
def test_however_bytes_are_split_on_their_way_the_same_arrive(asked_at: list[int], answered_at: list[int]) -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            for piece in pieces(REQUESTS, asked_at):
                await client.send(piece)
                await asyncio.sleep(0)
            peer = await upstream.accepted()
            expected = REQUESTS.replace(b"ost: proxy", b"ost: " + upstream.authority)
            seen = b""
            at = 0
            for index, answer in enumerate(ANSWERS):
                ends = (b'"stream": true}', b"0\r\n\r\n", b"\r\n\r\n")
                seen += await peer.until(ends[index])
                inside = [place - at for place in answered_at if at < place < at + len(answer)]
                for piece in pieces(answer, inside):
                    await peer.send(piece)
                    await asyncio.sleep(0)
                assert await client.read(len(answer)) == answer
                at += len(answer)
            assert seen == expected

    run(test)

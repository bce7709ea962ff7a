"""tuner.fleet.proxy: what comes of each fault, as docs/sidecar-faults.md tells it."""

import json
import socket

import pytest

from tests.tuner.fleet.proxy.wire import (
    PATIENCE,
    STREAM_HEAD,
    Observing,
    Peer,
    PlayedUpstream,
    Steering,
    event,
    line,
    ok,
    post,
    run,
)
from tuner.fleet.proxy import ProxyOptions
from tuner.fleet.types import Asked, Choice, End, Exchange, Upstream

BODY = b'{"messages":[{"role":"user","content":"Hi"}],"stream":true}'
SMALL = b"%x\r\n%b\r\n" % (len(event("1")), event("1"))


async def begun(client: Peer, upstream: PlayedUpstream, first: bytes = STREAM_HEAD + SMALL) -> Peer:
    """A stream of which the client has read the beginning; the upstream's side of it."""
    await client.send(post(BODY))
    peer = await upstream.accepted()
    await peer.until(BODY)
    await peer.send(first)
    assert await client.read(len(first)) == first
    return peer


def error_of(head: bytes, body: bytes) -> tuple[int, dict[str, object]]:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    return int(head[9:12]), error


def test_a_client_that_leaves_is_told_to_the_upstream() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            for leave in (Peer.end, Peer.reset, Peer.half_end):
                client = await proxied.client()
                peer = await begun(client, upstream)
                leave(client)
                await peer.gone()
                exchange = await proxied.sink.next()
                assert (exchange.end, exchange.status) == (End.CANCELLED, 200)
            assert proxied.proxy.state().upstreams[0].failures == 0
            assert proxied.proxy.state().streams == 0

    run(test)


def test_a_client_that_leaves_before_the_answer_is_told_to_the_upstream() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            peer = await upstream.accepted()
            await peer.until(BODY)
            client.end()
            await peer.gone()
            assert (await proxied.sink.next()).end is End.CANCELLED

    run(test)


def test_a_client_that_leaves_at_the_last_event_has_all_it_waited_for() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            piece = event('{"usage":{"completion_tokens":7}}') + event("[DONE]")
            peer = await begun(client, upstream, STREAM_HEAD + b"%x\r\n%b\r\n" % (len(piece), piece))
            client.end()
            await peer.gone()
            exchange = await proxied.sink.next()
            assert (exchange.end, exchange.output_tokens) == (End.DONE, 7)

    run(test)


def test_an_upstream_that_ends_in_mid_stream_leaves_a_stream_that_is_seen_to_be_cut() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            for leave in (Peer.end, Peer.reset):
                client = await proxied.client()
                peer = await begun(client, upstream)
                leave(peer)
                assert await client.rest() == b""  # no last chunk, and no [DONE] that nobody sent
                assert (await proxied.sink.next()).end is End.BROKEN

    run(test)


def test_an_answer_without_a_length_that_breaks_ends_with_a_reset() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            peer = await begun(client, upstream, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            peer.reset()
            with pytest.raises(ConnectionResetError):
                await client.rest()
            assert (await proxied.sink.next()).end is End.BROKEN

    run(test)


def test_an_upstream_that_ends_before_it_answers_is_a_502() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            peer = await upstream.accepted()
            await peer.until(BODY)
            peer.end()
            status, error = error_of(*await client.answer())
            assert (status, error["type"], error["code"]) == (502, "upstream_error", "upstream_broken")
            assert await client.rest() == b""
            assert upstream.connections == 1
            assert (await proxied.sink.next()).end is End.BROKEN

    run(test)


def test_an_answer_that_is_not_http_is_a_502() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            for answer in (b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000):
                client = await proxied.client()
                await client.send(post(BODY))
                peer = await upstream.accepted()
                await peer.until(BODY)
                await peer.send(answer)
                assert error_of(*await client.answer())[0] == 502
                await peer.gone()

    run(test)


def test_a_connection_that_was_closed_in_its_sleep_is_replaced_and_the_request_sent_again() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(b"1"))
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n1")
            await peer.send(ok(b"one"))
            await client.answer()
            await client.send(post(b"2"))
            await peer.until(b"\r\n\r\n2")
            peer.reset()
            other = await upstream.accepted()
            await other.until(b"\r\n\r\n2")
            other.end()  # it is sent again once, not for ever
            assert error_of(*await client.answer())[0] == 502
            assert upstream.connections == 2

    run(test)


def test_what_may_have_changed_something_is_not_sent_again() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(b"1", "/v1/load_lora_adapter"))
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n1")
            await peer.send(ok(b"one"))
            await client.answer()
            await client.send(post(b"2", "/v1/load_lora_adapter"))
            await peer.until(b"\r\n\r\n2")
            peer.reset()
            assert error_of(*await client.answer())[0] == 502
            assert upstream.connections == 1

    run(test)


def test_an_idle_connection_that_the_upstream_closes_is_not_used_again() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            for answer in (ok(b"1", b"Connection: close\r\n"), ok(b"2")):
                await client.send(post(BODY))
                peer = await upstream.accepted()
                await peer.until(BODY)
                await peer.send(answer)
                assert await client.read(len(answer)) == answer
                client = await proxied.client()
            assert upstream.connections == 2

    run(test)


def test_what_an_upstream_sends_behind_its_answer_reaches_nobody() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            peer = await upstream.accepted()
            await peer.until(BODY)
            await peer.send(ok(b"1") + ok(b"of another"))
            assert (await client.answer())[1] == b"1"
            await peer.gone()
            await client.send(post(BODY))
            other = await upstream.accepted()
            await other.until(BODY)
            await other.send(ok(b"2"))
            assert (await client.answer())[1] == b"2"

    run(test)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_an_upstream_that_cannot_be_reached_is_passed_by() -> None:
    async def test() -> None:
        dead = Upstream("dead", f"http://127.0.0.1:{closed_port()}")
        async with PlayedUpstream("b") as upstream, line(dead, upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            peer = await upstream.accepted()
            await peer.until(BODY)
            await peer.send(ok(b"1"))
            assert (await client.answer())[1] == b"1"
            assert (await proxied.sink.next()).upstream == "b"
            state = proxied.proxy.state().upstreams
            assert [one.healthy for one in state] == [False, True]
            assert "dead" in state[0].sentence

    run(test)


def test_a_steered_request_is_chosen_for_again_when_its_upstream_cannot_be_reached() -> None:
    async def test() -> None:
        dead = Upstream("dead", f"http://127.0.0.1:{closed_port()}")
        chooser = Steering(lambda name: Choice(name, lane=name, edits=(("lane", name),)))
        async with PlayedUpstream("b") as upstream, line(dead, upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(b'{"prompt":"x"}'))
            peer = await upstream.accepted()
            await peer.until(b'\r\n\r\n{"lane":"b","prompt":"x"}')
            assert [list(asked.in_flight) for asked in chooser.asked] == [["dead", "b"], ["b"]]
            await peer.send(ok(b"1"))
            await client.answer()
            assert (await proxied.sink.next()).lane == "b"

    run(test)


def test_without_an_upstream_that_can_be_reached_the_answer_is_one_sentence() -> None:
    async def test() -> None:
        dead = Upstream("dead", f"http://127.0.0.1:{closed_port()}")
        async with line(dead) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            status, error = error_of(*await client.answer())
            assert (status, error["code"]) == (502, "upstream_unreachable")
            assert "dead cannot be reached" in str(error["message"])
            exchange = await proxied.sink.next()
            assert (exchange.end, exchange.status) == (End.BROKEN, 0)
        async with line() as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            assert error_of(*await client.answer())[0] == 503

    run(test)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_an_error_of_the_upstream_is_passed_on_unchanged(status: int) -> None:
    async def test() -> None:
        answer = b"HTTP/1.1 %d Oh\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\noops" % status
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            peer = None
            for _ in range(4):  # with one upstream, also when it is thought to be down
                await client.send(post(BODY))
                peer = peer or await upstream.accepted()
                await peer.until(BODY)
                await peer.send(answer)
                assert await client.read(len(answer)) == answer
                exchange = await proxied.sink.next()
                assert exchange.end is (End.UPSTREAM_ERROR if status >= 500 else End.CLIENT_ERROR)
            assert proxied.proxy.state().upstreams[0].healthy is (status < 500)

    run(test)


def test_an_upstream_that_loads_its_model_is_not_ready_and_has_not_failed() -> None:
    body = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'

    async def test() -> None:
        async with (
            PlayedUpstream("a") as loading,
            PlayedUpstream("b") as ready,
            line(loading.upstream, ready.upstream) as proxied,
        ):
            client = await proxied.client()
            await client.send(post(BODY))
            peer = await loading.accepted()
            await peer.until(BODY)
            await peer.send(b"HTTP/1.1 503 No\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert (await client.answer())[1] == body
            state = proxied.proxy.state().upstreams[0]
            assert (state.healthy, state.failures) == (False, 0)
            assert state.sentence == "The upstream a is loading its model."
            await client.send(post(BODY))
            await (await ready.accepted()).until(BODY)

    run(test)


def test_an_upstream_that_was_down_gets_one_request_after_it_said_that_it_is_well() -> None:
    async def test() -> None:
        options = ProxyOptions(retry_seconds=0.05)
        async with (
            PlayedUpstream("a") as shaky,
            PlayedUpstream("b") as steady,
            line(shaky.upstream, steady.upstream, options=options) as proxied,
        ):
            client = await proxied.client()
            peer = None
            for _ in range(3):
                await client.send(post(BODY))
                peer = peer or await shaky.accepted()
                await peer.until(BODY)
                await peer.send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
                await client.answer()
            assert not proxied.proxy.state().upstreams[0].healthy
            asking = await shaky.accepted()
            assert (await asking.until(b"\r\n\r\n")).startswith(b"GET /health HTTP/1.1\r\n")
            await asking.send(ok(b""))
            await asking.gone()
            clients = [await proxied.client() for _ in range(2)]
            for one in clients:
                await one.send(post(BODY))
            trial = peer if peer is not None else asking
            await trial.until(BODY)  # the connection that was kept
            await (await steady.accepted()).until(BODY)  # the other request does not try as well
            await trial.send(ok(b"1"))
            await clients[0].answer()
            await proxied.sink.next()
            assert proxied.proxy.state().upstreams[0].healthy

    run(test)


def test_a_body_that_is_too_long_is_413_whether_it_says_so_or_not() -> None:
    chooser = Steering(Choice)
    body = b'{"prompt":"' + b"x" * 2000 + b'"}'

    async def test() -> None:
        options = ProxyOptions(max_body_bytes=1000)
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser, options=options) as proxied:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            for request in (
                post(body, headers=b"Expect: 100-continue\r\n")[: -len(body)],
                post(body),
                head + b"%x\r\n%b\r\n" % (len(body), body),
            ):
                client = await proxied.client()
                await client.send(request)
                status, error = error_of(*await client.answer())
                assert (status, error["code"]) == (413, "request_too_large")
                assert await client.rest() == b""
                client.end()
                assert (await proxied.sink.next()).end is End.CLIENT_ERROR
            assert upstream.connections == 0

    run(test)


def test_a_client_that_still_sends_gets_its_refusal() -> None:
    async def test() -> None:
        options = ProxyOptions(max_body_bytes=1000)
        chooser = Steering(Choice)
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser, options=options) as proxied:
            client = await proxied.client()
            await client.send(post(b"x" * 5_000_000))
            assert error_of(*await client.answer())[0] == 413

    run(test)


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000, 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
def test_a_bad_head_is_refused_and_reaches_no_upstream(request_head: bytes, status: int) -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(request_head)
            assert error_of(*await client.answer())[0] == status
            assert await client.rest() == b""
            assert upstream.connections == 0

    run(test)


def test_a_body_of_bad_chunks_is_refused_and_its_upstream_left() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
            )
            peer = await upstream.accepted()
            await peer.until(b"1\r\na\r\n")
            await client.send(b"1\na\r\n0\r\n\r\n")
            assert error_of(*await client.answer())[0] == 400
            await peer.gone()

    run(test)


def test_a_head_that_does_not_end_is_408() -> None:
    async def test() -> None:
        options = ProxyOptions(head_seconds=0.1)
        async with PlayedUpstream() as upstream, line(upstream.upstream, options=options) as proxied:
            client = await proxied.client()
            await client.send(b"GET / HT")
            assert error_of(*await client.answer())[0] == 408
            assert await client.rest() == b""

    run(test)


@pytest.mark.parametrize("chooser", [Observing(), Steering(Choice)], ids=["passed on", "read"])
def test_a_body_that_does_not_end_is_408_and_its_upstream_is_left(chooser: Observing | Steering) -> None:
    async def test() -> None:
        options = ProxyOptions(body_seconds=0.1)
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser, options=options) as proxied:
            client = await proxied.client()
            await client.send(post(BODY)[:-1])
            assert error_of(*await client.answer())[0] == 408
            if isinstance(chooser, Observing):
                await (await upstream.accepted()).gone()
            assert proxied.proxy.state().upstreams[0].failures == 0

    run(test)


def test_a_connection_without_a_request_is_closed_after_a_while() -> None:
    async def test() -> None:
        options = ProxyOptions(idle_client_seconds=0.1)
        async with PlayedUpstream() as upstream, line(upstream.upstream, options=options) as proxied:
            client = await proxied.client()
            assert await client.rest() == b""

    run(test)


def test_an_upstream_that_does_not_begin_is_504() -> None:
    async def test() -> None:
        options = ProxyOptions(first_byte_seconds=0.1)
        async with PlayedUpstream() as upstream, line(upstream.upstream, options=options) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            peer = await upstream.accepted()
            status, error = error_of(*await client.answer())
            assert (status, error["code"]) == (504, "upstream_timeout")
            await peer.gone()
            assert (await proxied.sink.next()).end is End.TIMED_OUT

    run(test)


def test_an_upstream_that_stops_in_mid_stream_is_left() -> None:
    async def test() -> None:
        options = ProxyOptions(idle_seconds=0.2)
        async with PlayedUpstream() as upstream, line(upstream.upstream, options=options) as proxied:
            client = await proxied.client()
            peer = await begun(client, upstream)
            assert await client.rest() == b""
            await peer.gone()
            assert (await proxied.sink.next()).end is End.TIMED_OUT

    run(test)


def test_malformed_events_pass_as_they_come_and_teach_nothing() -> None:
    pieces = (
        b"data: {\n\n",
        b'\n\ndata: "usage" [\n\n',
        b"nothing\r\n",
        b'data: {"usage":{"completion_tokens":-1}}\n\n',
        b"x",
    )
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await begun(client, upstream, STREAM_HEAD + body)
            exchange = await proxied.sink.next()
            assert (exchange.end, exchange.output_tokens, exchange.streamed) == (End.DONE, None, True)

    run(test)


def test_chunks_of_a_mebibyte_pass_both_ways() -> None:
    content = bytes(range(256)) * 4096
    body = b"100000\r\n" + content + b"\r\n0\r\n\r\n"

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            head = b"POST /v1/audio HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            await client.send(head + body)
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n")
            assert await peer.read(len(body)) == body
            await peer.send(STREAM_HEAD + body)
            assert await client.read(len(STREAM_HEAD + body)) == STREAM_HEAD + body

    run(test)


def test_a_slow_client_slows_its_upstream_and_takes_no_memory() -> None:
    """The proxy stops to read once its own buffer is full; what the kernel holds is small beside what is sent."""
    total = 64 * 1024 * 1024

    async def test() -> None:
        options = ProxyOptions(write_buffer_bytes=65536)
        async with PlayedUpstream() as upstream, line(upstream.upstream, options=options) as proxied:
            client = await proxied.client()
            await client.send(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n")
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
            sent = await peer.send_until_full(b"x" * 65536, total)
            assert sent < total / 2
            rest = peer.send_soon(b"x" * (total - sent))
            assert len((await client.answer())[1]) == total
            await rest

    run(test)


@pytest.mark.parametrize("kept", [True, False], ids=["over a kept connection", "over a new one"])
def test_a_slow_upstream_slows_its_client_and_takes_no_memory(kept: bool) -> None:
    total = 64 * 1024 * 1024

    async def test() -> None:
        options = ProxyOptions(write_buffer_bytes=65536)
        async with PlayedUpstream() as upstream, line(upstream.upstream, options=options) as proxied:
            client = await proxied.client()
            peer = None
            if kept:
                await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                peer = await upstream.accepted()
                await peer.until(b"\r\n\r\n")
                await peer.send(ok(b""))
                await client.answer()
            await client.send(b"POST /big HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % total)
            sent = await client.send_until_full(b"x" * 65536, total)
            assert sent < total / 2
            peer = peer or await upstream.accepted()
            rest = client.send_soon(b"x" * (total - sent))
            await peer.until(b"\r\n\r\n")
            assert await peer.read(total) == b"x" * total
            await rest

    run(test)


def test_a_client_that_takes_nothing_is_left() -> None:
    async def test() -> None:
        options = ProxyOptions(idle_seconds=0.2)
        async with PlayedUpstream() as upstream, line(upstream.upstream, options=options) as proxied:
            client = await proxied.client()
            peer = await begun(client, upstream)
            await peer.send_until_full(b"10000\r\n" + b"x" * 65536 + b"\r\n", 1 << 30)
            await peer.gone()
            assert (await proxied.sink.next()).end is End.CANCELLED

    run(test)


class Failing:
    """A chooser that fails wherever it is asked."""

    def __init__(self, reads: bool) -> None:
        self._reads = reads

    def reads(self, path: str, route: str | None) -> bool:
        if self._reads:
            return True
        raise RuntimeError("no policy")

    def choose(self, asked: Asked) -> Choice:
        raise RuntimeError("no policy")


class FailingSink:
    def record(self, exchange: Exchange) -> None:
        raise RuntimeError("no room")


@pytest.mark.parametrize("reads", [True, False])
def test_a_fault_of_chooser_and_sink_fails_no_request(reads: bool) -> None:
    async def test() -> None:
        async with (
            PlayedUpstream() as upstream,
            line(upstream.upstream, chooser=Failing(reads), sink=FailingSink()) as proxied,
        ):
            client = await proxied.client()
            for count in (1, 2):
                request = post(BODY, headers=b"x-paceline-route: r\r\n")
                await client.send(request)
                if count == 1:
                    peer = await upstream.accepted()
                expected = request.replace(b"Host: proxy", b"Host: " + upstream.authority)
                assert await peer.read(len(expected)) == expected
                await peer.send(ok(b"1"))
                assert (await client.answer())[1] == b"1"
                state = proxied.proxy.state()
                assert state.dropped == count
                assert state.chooser_faults >= count

    run(test)


def test_a_choice_of_an_upstream_that_is_not_there_is_a_fault_of_the_chooser() -> None:
    async def test() -> None:
        chooser = Steering(lambda name: Choice("elsewhere", edits=(("a", 1),)))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            await (await upstream.accepted()).until(b"\r\n\r\n" + BODY)
            assert proxied.proxy.state().chooser_faults == 1

    run(test)


def test_an_edit_that_has_no_json_is_a_fault_of_the_chooser() -> None:
    async def test() -> None:
        chooser = Steering(lambda name: Choice(name, edits=(("a", float("nan")),)))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(BODY))
            await (await upstream.accepted()).until(b"\r\n\r\n" + BODY)
            assert proxied.proxy.state().chooser_faults == 1

    run(test)


def test_a_proxy_that_drains_ends_its_streams_and_takes_no_more() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            idle, client = await proxied.client(), await proxied.client()
            peer = await begun(client, upstream)
            drained = proxied.drain_soon(PATIENCE)
            assert await idle.rest() == b""
            await peer.send(b"0\r\n\r\n")
            assert await client.rest() == b"0\r\n\r\n"
            await drained
            with pytest.raises(ConnectionError):
                await proxied.client()

    run(test)


def test_a_stream_that_outlasts_the_drain_is_cut() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            peer = await begun(client, upstream)
            await proxied.proxy.drain(0.01)
            await client.gone()
            await peer.gone()

    run(test)


def test_upstreams_may_be_exchanged_while_their_streams_go_on() -> None:
    async def test() -> None:
        async with PlayedUpstream("a") as old, PlayedUpstream("b") as new, line(old.upstream) as proxied:
            client, other = await proxied.client(), await proxied.client()
            peer = await begun(client, old)
            proxied.proxy.set_upstreams([new.upstream])
            await begun(other, new)
            await peer.send(SMALL + b"0\r\n\r\n")
            assert await client.read(len(SMALL) + 5) == SMALL + b"0\r\n\r\n"
            assert [one.name for one in proxied.proxy.state().upstreams] == ["b"]

    run(test)

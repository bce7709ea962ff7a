"""tuner.fleet.proxy: what no client and no engine should say leaves both connections in order and teaches nothing."""

import json
from functools import partial

import pytest

from tests.tuner.fleet.proxy.wire import (
    DECISION,
    STREAM_HEAD,
    PlayedUpstream,
    Steering,
    chunked,
    event,
    line,
    ok,
    post,
    run,
)
from tuner.fleet.proxy import OriginError, ProxyOptions, parse_origin, routing
from tuner.fleet.proxy.counts import Counts, read_counts
from tuner.fleet.proxy.events import Events
from tuner.fleet.proxy.head import parse_answer, with_headers
from tuner.fleet.types import Choice, End

HUGE = "1" + "0" * 400
GARBAGE = {
    "a time without end": f'{{"timings":{{"predicted_n":5,"predicted_ms":{HUGE}}}}}',
    "an infinite time": '{"timings":{"predicted_n":5,"predicted_ms":Infinity}}',
    "no number": '{"timings":{"predicted_n":5,"predicted_ms":NaN}}',
    "a negative time": '{"metrics":{"generation_time_ms":-1},"usage":{"completion_tokens":5}}',
    "counts without end": f'{{"usage":{{"prompt_tokens":{HUGE},"completion_tokens":{HUGE}}}}}',
    "a prompt without end": f'{{"timings":{{"prompt_n":{HUGE}}}}}',
    "too many tokens": '{"usage":{"prompt_tokens":10000001,"completion_tokens":10000001}}',
    "too many in the cache": '{"usage":{"prompt_tokens_details":{"cached_tokens":99999999999}}}',
    "too many drafts": f'{{"timings":{{"draft_n":{HUGE},"draft_n_accepted":{HUGE}}}}}',
    "more digits than Python reads": f'{{"usage":{{"completion_tokens":{"9" * 5000}}}}}',
    "nested too deep": f'{{"usage":{"[" * 100_000}',
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("streamed", [False, True])
def test_counts_that_cannot_be_end_no_connection_and_teach_nothing(said: str, streamed: bool) -> None:
    answer = STREAM_HEAD + chunked(event(said), event("[DONE]")) if streamed else ok(said.encode())

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            for _ in range(2):  # the second one over the same connections
                await peer.until(b"\r\n\r\n{}")
                await peer.send(answer)
                assert await client.read(len(answer)) == answer
                exchange = await proxied.sink.next()
                assert exchange.end is End.DONE
                assert exchange.output_tokens in (None, 5)
                assert (exchange.prompt_tokens, exchange.cached_tokens, exchange.drafts) == (None, None, None)
                assert streamed or exchange.decode_seconds == 0.0
                await client.send(post(b"{}"))
            assert proxied.proxy.state().dropped == 0

    run(test)


def test_the_most_that_can_be_is_counted() -> None:
    told = {"usage": {"completion_tokens": 10_000_000}, "timings": {"predicted_ms": 1e9}}
    assert read_counts(told) == Counts(10_000_000, None, None, None, 1e6)


def test_a_fault_in_reporting_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("no report")

    monkeypatch.setattr(routing, "report", fail)

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            for count in (1, 2):
                await peer.until(b"\r\n\r\n{}")
                await peer.send(ok(b"x"))
                assert (await client.answer())[1] == b"x"
                await client.send(post(b"{}"))
                assert proxied.proxy.state().dropped == count

    run(test)


@pytest.mark.parametrize("member", ["stream_options", "messages"])
def test_a_body_of_any_depth_passes_as_it_came(member: str) -> None:
    """Reading and writing JSON give up at depths of their own; there must be none between at which nobody answers."""

    def asks(name: str, members: dict[str, object]) -> Choice:
        wanted = {"x": members.get("stream_options"), "include_usage": True}
        return Choice(name, decision=DECISION, edits=(("stream_options", wanted),))

    async def test() -> None:
        chooser = Steering(Choice)
        chooser.choice = lambda name: asks(name, dict(chooser.asked[-1].body or {}))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            peer = None
            untouched = 0
            for depth in (1, *range(300, 1000, 20), *range(930, 1005), 20_000):
                deep = "[" * depth + "]" * depth
                given = f'[{{"role":"user","content":{deep}}}]' if member == "messages" else f'{{"a":{deep}}}'
                body = f'{{"{member}":{given}}}'.encode()
                await client.send(post(body))
                peer = peer or await upstream.accepted()
                head = await peer.until(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
                sent = await peer.read(length)
                untouched += sent == body
                assert sent == body or b'"include_usage": true' in sent
                await peer.send(ok(b"x"))
                assert (await client.answer())[1] == b"x"
            assert untouched
            assert proxied.proxy.state().chooser_faults == 0

    run(test)


def test_half_a_character_of_the_clients_own_is_no_fault_of_the_chooser() -> None:
    async def test() -> None:
        chooser = Steering(lambda name: Choice(name, edits=(("stream_options", {"x": "\ud800", "y": "é"}),)))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(b'{"stream_options":{}}'))
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n")
            wanted = b'{"stream_options":{"x": "\\ud800", "y": "\\u00e9"}}'
            assert await peer.read(len(wanted)) == wanted
            assert proxied.proxy.state().chooser_faults == 0

    run(test)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("é", "~c3~a9"),
        ("草稿", "~e8~8d~89~e7~a8~bf"),
        ("a\r\nX: y", "a~0d~0aX: y"),
        ("\ud800", "~ed~a0~80"),
        ("a b~", "a b~"),
    ],
)
def test_a_name_of_any_letters_is_sent_in_a_header(name: str, sent: str) -> None:
    head = parse_answer(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n")
    made = with_headers(head, [("x-paceline-drafter", name)])
    assert made == b"HTTP/1.1 200 OK\r\nA: b\r\nx-paceline-drafter: %b\r\n\r\n" % sent.encode()
    assert parse_answer(made).text(b"x-paceline-drafter") == sent


def test_a_decision_of_our_own_stands_in_place_of_one_from_behind() -> None:
    head = parse_answer(b"HTTP/1.1 200 OK\r\nX-Paceline-Decision: theirs\r\nx-paceline-other: o\r\n\r\n")
    made = with_headers(head, [("x-paceline-decision", "ours")])
    assert made == b"HTTP/1.1 200 OK\r\nx-paceline-other: o\r\nx-paceline-decision: ours\r\n\r\n"


@pytest.mark.parametrize("content_type", ["Text/Event-Stream", "text/event-stream; charset=utf-8", "TEXT/EVENT-STREAM"])
@pytest.mark.parametrize("before", ["", "id: 7\n", "event: message\nid: 7\n", ": a comment\n", "id: 7\r\n"])
def test_usage_is_stripped_whatever_stands_beside_it(content_type: str, before: str) -> None:
    usage = '{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}'
    word = '{"choices":[{"delta":{"content":"a"}}]}'
    head = STREAM_HEAD.replace(b"text/event-stream", content_type.encode())
    kept = [f"{before}data: {one}\n\n".encode() for one in (word, "[DONE]")]
    asked_for = f"{before}data: {usage}\n\n".encode()

    async def test() -> None:
        chooser = Steering(partial(Choice, decision=DECISION, strip_usage=True))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n{}")
            await peer.send(head + chunked(kept[0], asked_for, kept[1]))
            got = await client.until(b"0\r\n\r\n")
            assert b"usage" not in got
            assert all(one in got for one in kept)
            assert got.startswith(head)
            assert (await proxied.sink.next()).output_tokens == 7

    run(test)


def test_data_on_several_lines_is_one_value() -> None:
    events = Events()
    assert events.strip(b'data: {"choices":[],\ndata: "usage":{"completion_tokens":3}}\n\n') == b""
    assert read_counts(events.told()).output_tokens == 3


@pytest.mark.parametrize(
    "begun",
    [
        b"HTTP/1.1 200 OK\n",
        b"HTTP/1.1 200 OK\r\nA: b\n\n",
        b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"H2",
        b"\x15\x03\x03\x00\x02\x02",
        b"<html>",
    ],
)
def test_what_can_be_no_answer_any_more_is_a_502_at_once(begun: bytes) -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n{}")
            await peer.send(begun)
            head, body = await client.answer()
            assert head.startswith(b"HTTP/1.1 502 ")
            sentence = json.loads(body)["error"]["message"]
            assert sentence.endswith(".")
            assert sentence.count("HTTP/1.1") <= 1
            await peer.gone()

    run(test)


def test_a_head_that_comes_byte_by_byte_is_no_fault() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream, options=ProxyOptions()) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\n{}")
            for byte in ok(b"x"):
                await peer.send(bytes((byte,)))
            assert (await client.answer())[1] == b"x"

    run(test)


@pytest.mark.parametrize(
    "url",
    [
        "http://é.example",
        "http://a/é",
        "http://a/…",
        "http://a/b c",
        "http://a/b\r\nX: y",
        "http://a\t.example",
        " http://a",
        "http://a..example",
        f"http://{'a' * 64}.example",
        "http://a:0x50",
        "http://a:99999",
        "ftp://a",
    ],
)
def test_a_url_that_no_request_could_name_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(OriginError, match=r"^The upstream .*\.$"):
        parse_origin(url)

"""tuner.fleet.proxy: what a choice does to a request and its answer, and what an exchange tells."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.fleet.proxy.wire import (
    DECISION,
    STREAM_HEAD,
    Observing,
    PlayedUpstream,
    Steering,
    chunked,
    event,
    line,
    ok,
    post,
    run,
)
from tuner.fleet.proxy import ProxyOptions
from tuner.fleet.proxy.body import edited, read_body
from tuner.fleet.proxy.counts import Counts, read_counts
from tuner.fleet.proxy.events import Events
from tuner.fleet.proxy.head import RequestHead, parse_request
from tuner.fleet.proxy.session import session_key
from tuner.fleet.types import Choice, DraftCounts, End

OURS = b"x-paceline-route: r\r\nX-Paceline-Debug: true\r\n"
USAGE = (
    '{"id":"1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,'
    '"prompt_tokens_details":{"cached_tokens":2}}}'
)
WORD = '{"id":"1","choices":[{"index":0,"delta":{"content":"a"}}]}'


def test_a_choice_that_edits_nothing_leaves_every_byte() -> None:
    async def test() -> None:
        body = b'{"prompt" :"x" , "n":1.0}\n'
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=Steering(Choice)) as proxied:
            for framed in (
                post(body, headers=OURS),
                b"POST /v1/completions HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n"
                + chunked(body[:5], body[5:]),
            ):
                client = await proxied.client()
                await client.send(framed)
                peer = await upstream.accepted()
                expected = framed.replace(b"Host: proxy", b"Host: " + upstream.authority)
                assert await peer.read(len(expected)) == expected
                client.end()
                await peer.gone()

    run(test)


def test_an_edit_puts_a_member_in_front_and_strips_our_headers() -> None:
    async def test() -> None:
        chooser = Steering(lambda name: Choice(name, edits=(("stream_options", {"include_usage": True}),)))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(b'{ "prompt": 1.10 }', headers=OURS + b"A: b\r\n"))
            peer = await upstream.accepted()
            body = b'{ "stream_options":{"include_usage": true},"prompt": 1.10 }'
            head = await peer.until(b"\r\n\r\n")
            assert b"paceline" not in head.lower()
            assert b"A: b\r\n" in head
            assert head.count(b"Content-Length: %d\r\n" % len(body)) == 1
            assert await peer.read(len(body)) == body
            (asked,) = chooser.asked
            assert (asked.route, asked.debug, asked.body) == ("r", True, {"prompt": 1.1})

    run(test)


def test_a_chunked_body_that_is_edited_gets_a_length() -> None:
    async def test() -> None:
        chooser = Steering(lambda name: Choice(name, edits=(("model", "b"),)))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            await client.send(head + chunked(b'{"mod', b'el":"a"}') + head)
            peer = await upstream.accepted()
            assert b"Content-Length: 13\r\n" in (found := await peer.until(b"\r\n\r\n"))
            assert b"ransfer-" not in found
            assert await peer.read(13) == b'{"model":"b"}'

    run(test)


def test_a_decision_without_edits_strips_our_headers_and_keeps_the_body() -> None:
    async def test() -> None:
        chooser = Steering(lambda name: Choice(name, decision=DECISION, lane="a/4", request_key=9))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(b'{"prompt":1}', headers=OURS))
            peer = await upstream.accepted()
            assert b"paceline" not in (await peer.until(b'{"prompt":1}')).lower()
            await peer.send(ok(b'{"usage":{"completion_tokens":7,"prompt_tokens":1}}'))
            await client.answer()
            exchange = await proxied.sink.next()
            assert (exchange.decision, exchange.lane, exchange.request_key) == (DECISION, "a/4", 9)
            assert (exchange.output_tokens, exchange.streamed, exchange.end) == (7, False, End.DONE)

    run(test)


def test_a_body_that_is_no_json_passes_as_it_is() -> None:
    async def test() -> None:
        chooser = Steering(lambda name: Choice(name, edits=(("a", 1),)))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            for body in (b"{", b"[1]", b'{"a":1}x', b"\xff\xfe{", b"{" * 100_000, b'{"a":1,}', b"{'a':1}", b'{"a" 1}'):
                client = await proxied.client()
                await client.send(post(body))
                peer = await upstream.accepted()
                await peer.until(b"\r\n\r\n")
                assert await peer.read(len(body)) == body
                client.end()
                await peer.gone()
            assert all(asked.body is None for asked in chooser.asked)

    run(test)


def test_the_proxy_lets_a_client_go_on_that_waits_for_a_continue() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=Steering(Choice)) as proxied:
            client = await proxied.client()
            await client.send(post(b"body", headers=b"Expect: 100-continue\r\n")[:-4])
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"body")
            peer = await upstream.accepted()
            await peer.until(b"\r\n\r\nbody")
            await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"x"))
            assert await client.answer() == (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", b"x")

    run(test)


def test_headers_of_the_choice_stand_behind_those_of_the_answer() -> None:
    async def test() -> None:
        chooser = Steering(lambda name: Choice(name, answer_headers=(("x-paceline-decision", "1"),)))
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"{}")
            await peer.send(ok(b"x"))
            assert (await client.answer())[0] == (
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nx-paceline-decision: 1\r\n\r\n"
            )

    run(test)


def stripping(name: str) -> Choice:
    return Choice(name, decision=DECISION, strip_usage=True)


def content_of(body: bytes) -> bytes:
    """Of chunks, each of which must be whole."""
    content = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        content += body[:length]
        assert body[length : length + 2] == b"\r\n"
        body = body[length + 2 :]
        if not length:
            assert body == b""
            return content


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["\n\n", "\r\n\r\n"]),
    st.lists(st.integers(1, 400), max_size=8),
    st.lists(st.integers(1, 500), max_size=8),
)
def test_the_usage_that_was_not_asked_for_is_taken_out_however_the_stream_is_cut(
    end: str, chunk_places: list[int], read_places: list[int]
) -> None:
    def made(*events: str) -> bytes:
        return "".join(f"data: {one}{end}" for one in events).encode()

    whole, kept = made(WORD, WORD, USAGE, "[DONE]"), made(WORD, WORD, "[DONE]")

    def cut(data: bytes, places: list[int]) -> list[bytes]:
        at = sorted({place for place in places if place < len(data)})
        return [data[one:other] for one, other in zip([0, *at], [*at, len(data)], strict=True)]

    answer = STREAM_HEAD + chunked(*cut(whole, chunk_places))

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=Steering(stripping)) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"{}")
            for piece in cut(answer, read_places):
                await peer.send(piece)
            assert await client.until(b"\r\n\r\n") == STREAM_HEAD
            assert content_of(await client.until(b"\r\n0\r\n\r\n")) == kept
            exchange = await proxied.sink.next()
            assert (exchange.output_tokens, exchange.prompt_tokens, exchange.cached_tokens) == (7, 5, 2)

    run(test)


def test_a_stripped_stream_keeps_its_chunks_and_trailers_but_for_the_usage() -> None:
    word, usage, done = event(WORD), event(USAGE), event("[DONE]")

    def framed(piece: bytes) -> bytes:
        return b"%X;x\r\n%b\r\n" % (len(piece), piece)

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=Steering(stripping)) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"{}")
            for piece in (STREAM_HEAD, framed(word), framed(done), framed(usage), b"0\r\nx-sum: 1\r\n\r\n"):
                await peer.send(piece)
                if piece != framed(usage):
                    assert await client.read(len(piece)) == piece

    run(test)


def test_a_usage_beside_choices_stays_as_do_events_that_only_speak_of_it() -> None:
    kept = (
        '{"choices":[{"delta":{}}],"usage":{"completion_tokens":1}}',
        '{"choices":[{"delta":{"content":"\\"usage\\""}}],"usage":null}',
        '{"choices":[],"usage":null}',
        '{"error":{"message":"usage"},"usage":{}}',
        '"usage"',
    )

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=Steering(stripping)) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"{}")
            answer = STREAM_HEAD + chunked(*map(event, kept))
            await peer.send(answer)
            assert await client.read(len(answer)) == answer

    run(test)


def test_what_is_held_of_an_event_comes_when_the_stream_breaks() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=Steering(stripping)) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"{}")
            await peer.send(STREAM_HEAD + b"100\r\ndata: {")
            peer.end()
            assert await client.rest() == STREAM_HEAD + b"7\r\ndata: {\r\n"

    run(test)


def test_an_answer_of_a_fixed_length_or_with_a_coding_is_not_stripped() -> None:
    body = event(USAGE)

    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=Steering(stripping)) as proxied:
            for answer in (
                ok(body, b"Content-Type: text/event-stream\r\n"),
                STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: br\r\n\r\n") + chunked(body),
                STREAM_HEAD.replace(b"200 OK", b"500 No") + chunked(body),
                STREAM_HEAD.replace(b"event-stream", b"plain") + chunked(body),
            ):
                client = await proxied.client()
                await client.send(post(b"{}", headers=b"Connection: close\r\n"))
                peer = await upstream.accepted()
                await peer.until(b"{}")
                await peer.send(answer)
                assert await client.read(len(answer)) == answer

    run(test)


@pytest.mark.parametrize("steers", [True, False])
def test_a_silent_stream_gets_comments_only_where_it_is_steered(steers: bool) -> None:
    async def test() -> None:
        options = ProxyOptions(comment_seconds=0.05, idle_seconds=0.5)
        chooser = Steering(lambda name: Choice(name, decision=DECISION)) if steers else Observing()
        async with PlayedUpstream() as upstream, line(upstream.upstream, chooser=chooser, options=options) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"{}")
            begun = STREAM_HEAD + chunked(event("1"))[:-5]
            await peer.send(begun)
            assert await client.read(len(begun)) == begun
            if steers:
                assert await client.read(19) == b"e\r\n: keep-alive\n\n\r\n"
            else:
                assert await client.rest() == b""

    run(test)


def test_load_is_the_mean_over_time_of_the_requests_in_progress() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            one, two = await proxied.client(), await proxied.client()
            peers = []
            for client in (one, two):
                await client.send(post(b"{}"))
                peers.append(await upstream.accepted())
                await peers[-1].until(b"{}")
            assert proxied.proxy.state().streams == 2
            await peers[0].send(ok(b"{}"))
            await one.answer()
            first = await proxied.sink.next()
            await peers[1].send(ok(b"{}"))
            await two.answer()
            second = await proxied.sink.next()
            assert 1.0 < first.load < 2.0
            assert 1.0 < second.load < 2.0
            state = proxied.proxy.state()
            assert state.streams == state.upstreams[0].in_flight == 0
            assert sum(state.overhead_seconds.values()) == 2

    run(test)


def test_times_of_a_stream_are_those_of_its_bytes() -> None:
    async def test() -> None:
        async with PlayedUpstream() as upstream, line(upstream.upstream) as proxied:
            client = await proxied.client()
            await client.send(post(b"{}"))
            peer = await upstream.accepted()
            await peer.until(b"{}")
            answer = STREAM_HEAD + chunked(event(WORD))
            await peer.send(answer[:-5])
            await client.read(len(answer) - 5)
            await peer.send(answer[-5:])
            await client.read(5)
            exchange = await proxied.sink.next()
            assert exchange.first_byte_seconds > 0.0
            assert exchange.decode_seconds > 0.0
            assert exchange.path == "/v1/chat/completions"

    run(test)


def test_what_is_no_generation_goes_to_the_first_upstream_and_is_not_reported() -> None:
    async def test() -> None:
        chooser = Steering(Choice)
        async with (
            PlayedUpstream("a") as first,
            PlayedUpstream("b") as second,
            line(first.upstream, second.upstream, chooser=chooser) as proxied,
        ):
            clients = [await proxied.client() for _ in range(3)]
            for client in clients[:2]:
                await client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                peer = await first.accepted()
                await peer.until(b"\r\n\r\n")
            await clients[2].send(post(b"{}", "/completion"))  # a generation that is not steered takes the free one
            other = await second.accepted()
            await other.until(b"{}")
            await other.send(ok(b'{"timings":{"predicted_n":3,"prompt_n":1,"predicted_ms":2000.0}}'))
            await clients[2].answer()
            exchange = await proxied.sink.next()
            assert (exchange.path, exchange.output_tokens, exchange.decode_seconds) == ("/completion", 3, 2.0)
            assert chooser.asked == []

    run(test)


EDITS = st.integers() | st.text() | st.lists(st.none())
VALUES = ["1", "-0.10", "1e400", "123456789012345678901234567890", "true", "null", r'"\ud800\n"', "[1, {}]"]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(VALUES)), max_size=5),
    st.sampled_from(["", " ", "\n\t"]),
    st.dictionaries(st.sampled_from(["a", "c", "d", "\u00e9"]), EDITS, max_size=3),
)
def test_edits_set_their_members_and_leave_every_other_byte(
    members: list[tuple[str, str]], blank: str, edits: dict[str, object]
) -> None:
    text = "{" + blank + ",".join(f'{blank}"{key}"{blank}:{value}{blank}' for key, value in members) + "}" + blank
    body = read_body(text.encode())
    assert body is not None
    assert body.members == json.loads(text)
    made = edited(body, list(edits.items())).decode()
    assert json.loads(made) == json.loads(text) | edits
    for key, value in members:
        if key not in edits:
            assert f'"{key}"{blank}:{value}{blank}' in made
    if not edits:
        assert made == text


def test_a_member_that_is_there_twice_is_set_twice() -> None:
    body = read_body(b'{"model":"a", "model" : "b"}')
    assert body is not None
    assert edited(body, [("model", "c")]) == b'{"model":"c", "model" : "c"}'


TOLD = {
    "vLLM": (
        {
            "usage": {"prompt_tokens": 9, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 4}},
            "metrics": {
                "generation_time_ms": 500.0,
                "speculative_decoding": {
                    "num_spec_steps": 8,
                    "num_draft_tokens": 32,
                    "num_accepted_draft_tokens": 12,
                },
            },
        },
        Counts(20, 9, 4, DraftCounts(32, 12, 8), 0.5),
    ),
    "llama.cpp": (
        {"timings": {"cache_n": 31, "prompt_n": 1, "predicted_n": 2, "predicted_ms": 22.0}},
        Counts(2, 32, 31, None, 0.022),
    ),
    "llama.cpp that drafted": (
        {"timings": {"predicted_n": 5, "draft_n": 6, "draft_n_accepted": 3}},
        Counts(5, None, None, DraftCounts(6, 3, None), None),
    ),
    "SGLang": (
        {
            "meta_info": {
                "prompt_tokens": 3,
                "completion_tokens": 9,
                "cached_tokens": 1,
                "spec_verify_ct": 4,
                "spec_num_correct_drafts": 5,
                "spec_num_proposed_drafts": 28,
            }
        },
        Counts(9, 3, 1, DraftCounts(None, 5, 4), None),
    ),
    "nobody": ({"choices": []}, Counts()),
    "nonsense": (
        {
            "usage": [],
            "timings": 3,
            "metrics": {"speculative_decoding": None},
            "meta_info": {"completion_tokens": True},
        },
        Counts(),
    ),
}


@pytest.mark.parametrize(("told", "counts"), TOLD.values(), ids=TOLD)
def test_counts_are_read_by_the_words_of_each_engine(told: dict[str, object], counts: Counts) -> None:
    assert read_counts(told) == counts


def test_the_last_event_that_tells_counts_is_read() -> None:
    events = Events()
    for piece in (event(USAGE.replace("7", "1")) + event(WORD), event(USAGE) + b"data: [DO", b"NE]\n\n"):
        events.follow(piece)
    assert read_counts(events.told()).output_tokens == 7


def test_an_endless_event_is_let_go_and_the_next_one_is_read() -> None:
    events = Events()
    for _ in range(40):
        assert events.strip(b"x" * 65536) in (b"", b"x" * 65536 * 17, b"x" * 65536)
    assert not events.at_boundary
    assert events.strip(b"x\n\n" + event(USAGE) + event("1")) == b"x\n\n" + event("1")
    assert read_counts(events.told()).output_tokens == 7
    assert events.rest() == b""


def head_with(headers: bytes) -> RequestHead:
    return parse_request(post(b"", headers=headers))


def test_requests_of_one_conversation_have_one_number() -> None:
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    later = [*said, {"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}]
    plain = head_with(b"")
    assert session_key(plain, {"messages": said}) == session_key(plain, {"messages": later})
    assert session_key(plain, {"messages": said}) != session_key(plain, {"messages": said[1:]})
    assert session_key(plain, {"messages": later, "user": "x"}) == session_key(plain, {"prompt": "p", "user": "x"})
    named = session_key(head_with(b"X-Session-Id: 1\r\n"), {"messages": said})
    assert named == session_key(head_with(b"x-session-id: 1\r\n"), None)
    assert named != session_key(head_with(b"x-conversation-id: 2\r\n"), None)
    untold: list[dict[str, object] | None] = [
        None,
        {"prompt": "p"},
        {"messages": "u"},
        {"messages": [1]},
        {"messages": []},
        {"user": 3},
    ]
    for nothing in untold:
        assert session_key(plain, nothing) is None

"""tuner.fleet.proxy.framing and head: where messages end; llhttp, which most servers use, must see the same ends."""

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.fleet.proxy.framing import Chunked, FramingError, Length, UntilClose, chunk
from tuner.fleet.proxy.head import HeadError, parse_answer, parse_request, refuse_early, rewritten, upstream_head

TAIL = b"GET /smuggled HTTP/1.1\r\n"
GOOD_CHUNKS = (
    b"0\r\n\r\n",
    b"3\r\nabc\r\n0\r\n\r\n",
    b"a;name=value\r\n0123456789\r\n00\r\nx-t: 1\r\n\r\n",
    b"1;a\r\n\n\r\n2\r\n\r\n\r\n0\r\n\r\n",
    b"FF\r\n" + b"x" * 255 + b"\r\n0\r\n\r\n",
)
BAD_CHUNKS = {
    "a bare line feed after the size": b"3\nabc\r\n0\r\n\r\n",
    "a bare line feed in an extension": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a bare carriage return in an extension": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "a size with a sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "a size with 0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a size with an underscore": b"1_0\r\nabc\r\n0\r\n\r\n",
    "a size with a blank in front": b" 3\r\nabc\r\n0\r\n\r\n",
    "a size with a blank behind": b"3 \r\nabc\r\n0\r\n\r\n",
    "an extension with a blank in front": b"3 ;a\r\nabc\r\n0\r\n\r\n",
    "an extension without a name": b"3;\r\nabc\r\n0\r\n\r\n",
    "an extension without a value": b"3;a=\r\nabc\r\n0\r\n\r\n",
    "an extension in quotes": b'3;a="b\r\nabc\r\n0\r\n\r\n',
    "a size of too many digits": b"1" * 17 + b"\r\nabc\r\n0\r\n\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "content longer than its size": b"3\r\nabcd\r\n0\r\n\r\n",
    "content without a carriage return behind it": b"3\r\nabc\n0\r\n\r\n",
    "a carriage return without its line feed": b"3\r\nabc\rx0\r\n\r\n",
    "a bare line feed at the end": b"3\r\nabc\r\n0\r\n\n",
    "a folded trailer": b"0\r\na: b\r\n c\r\n\r\n",
    "a trailer that is no header": b"0\r\nGET / HTTP/1.1\r\n\r\n",
    "a trailer with a blank before its colon": b"0\r\na : b\r\n\r\n",
    "an endless extension": b"3;" + b"a" * 2000 + b"\r\nabc\r\n0\r\n\r\n",
    "an endless extension without an end": b"3;" + b"a" * 2000,
    "endless trailers": b"0\r\n" + b"a: b\r\n" * 4000 + b"\r\n",
}
PLAIN = b"Host: x\r\n"
GOOD_HEADS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/completions?a=b#c HTTP/1.1\r\nhost:x\r\nContent-Length:  12 \r\nX-A:\t\r\n\r\n",
    b"POST /%C3%A9 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: CHUNKED\r\nx: caf\xe9\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
)
BAD_HEADS = {
    "both framings": PLAIN + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "both framings, the other order": PLAIN + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    "two lengths that differ": PLAIN + b"Content-Length: 3\r\nContent-Length: 4\r\n",
    "two lengths, the names in different case": PLAIN + b"Content-Length: 3\r\ncontent-length: 4\r\n",
    "two lengths that agree": PLAIN + b"Content-Length: 3\r\nContent-Length: 3\r\n",
    "two lengths in one": PLAIN + b"Content-Length: 3, 3\r\n",
    "a length with a sign": PLAIN + b"Content-Length: +3\r\n",
    "a length that is hexadecimal": PLAIN + b"Content-Length: 0x3\r\n",
    "a length with an underscore": PLAIN + b"Content-Length: 1_0\r\n",
    "a length of nothing": PLAIN + b"Content-Length:\r\n",
    "a length with a blank inside": PLAIN + b"Content-Length: 1 0\r\n",
    "a length of too many digits": PLAIN + b"Content-Length: 1234567890123456\r\n",
    "two codings": PLAIN + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "another coding": PLAIN + b"Transfer-Encoding: gzip, chunked\r\n",
    "a coding that looks like chunked": PLAIN + b"Transfer-Encoding: xchunked\r\n",
    "a coding in quotes": PLAIN + b'Transfer-Encoding: "chunked"\r\n',
    "identity": PLAIN + b"Transfer-Encoding: identity\r\n",
    "a vertical tab before the coding": PLAIN + b"Transfer-Encoding: \x0bchunked\r\n",
    "a blank before the colon": PLAIN + b"Transfer-Encoding : chunked\r\n",
    "a blank before the colon of the length": PLAIN + b"Content-Length : 3\r\n",
    "a folded header": PLAIN + b"X: a\r\n Content-Length: 3\r\n",
    "a folded header with a tab": PLAIN + b"X: a\r\n\tb\r\n",
    "a folded first header": b" X: a\r\n" + PLAIN,
    "a bare line feed": PLAIN + b"X: a\nContent-Length: 3\r\n",
    "a bare carriage return": PLAIN + b"X: a\rContent-Length: 3\r\n",
    "a zero byte": PLAIN + b"X: a\x00b\r\n",
    "a control character": PLAIN + b"X: a\x7fb\r\n",
    "a name with a control character": PLAIN + b"Content-\x01Length: 3\r\n",
    "a line without a colon": PLAIN + b"X\r\n",
    "a line without a name": PLAIN + b": a\r\n",
    "two hosts": PLAIN + PLAIN,
    "no host": b"X: a\r\n",
}
BAD_LINES = (
    b"GET / HTTP/1.1 \r\n",
    b"GET  / HTTP/1.1\r\n",
    b"GET\t/ HTTP/1.1\r\n",
    b"GET / HTTP/2.0\r\n",
    b"GET / HTTP/1.2\r\n",
    b"GET / http/1.1\r\n",
    b"GET /\r\n",
    b"GET http://other/ HTTP/1.1\r\n",
    b"GET /a b HTTP/1.1\r\n",
    b"GET /\x00 HTTP/1.1\r\n",
    b"GET /\xe9 HTTP/1.1\r\n",
    b"get / HTTP/1.1\r\n",
    b"CONNECT / HTTP/1.1\r\n",
    b" GET / HTTP/1.1\r\n",
    b"GET / HTTP/1.1\n",
)


def consumed(pieces: list[bytes]) -> tuple[int, bytes, bool]:
    """How many bytes of a chunked body there were, its content, and whether it ended."""
    body, count, content = Chunked(), 0, b""
    for piece in pieces:
        if body.done:
            break
        count += body.consume(piece)
        content += b"".join(body.payload)
    return count, content, body.done


class Seen:
    """What llhttp makes of bytes."""

    def __init__(self) -> None:
        self.content = b""
        self.messages = 0
        self.urls: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.urls.append(url)

    def on_body(self, content: bytes) -> None:
        if not self.messages:
            self.content += content

    def on_message_complete(self) -> None:
        self.messages += 1


def seen_by_llhttp(data: bytes) -> Seen:
    seen = Seen()
    httptools.HttpRequestParser(seen).feed_data(data)
    return seen


@pytest.mark.parametrize("body", GOOD_CHUNKS)
def test_a_chunked_body_ends_where_llhttp_says(body: bytes) -> None:
    for cut in range(len(body) + 1):
        count, content, done = consumed([body[:cut], body[cut:] + TAIL])
        assert done
        assert count == len(body)
        seen = seen_by_llhttp(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body + TAIL)
        assert (seen.messages, seen.content) == (1, content)


@pytest.mark.parametrize("body", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
def test_chunks_that_could_be_read_in_two_ways_are_refused_however_they_are_split(body: bytes) -> None:
    for size in (len(body), 7, 1):
        with pytest.raises(FramingError):
            consumed([body[at : at + size] for at in range(0, len(body), size)])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.sampled_from([b"", b";a=b", b";a;b=c"]),
    st.sampled_from([b"", b"x: y\r\n"]),
    st.lists(st.integers(0, 400), max_size=10),
)
def test_any_chunks_in_any_pieces_give_their_content(
    contents: list[bytes], extension: bytes, trailer: bytes, places: list[int]
) -> None:
    body = b"".join(b"%X%b\r\n%b\r\n" % (len(one), extension, one) for one in contents) + b"0\r\n" + trailer + b"\r\n"
    data = body + TAIL
    at = sorted({min(place, len(data)) for place in places})
    pieces = [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]
    assert consumed(pieces) == (len(body), b"".join(contents), True)


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [b"0", b"1", b"2", b"a", b"\r\n", b"\r", b"\n", b";", b" ", b"x:y", b"=", b'"', b"g", b"\r\n\r\n"]
        )
    )
)
def test_what_is_taken_for_a_chunked_body_llhttp_takes_for_the_same(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    try:
        count, content, done = consumed([data])
    except FramingError:
        return
    if done:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        seen = seen_by_llhttp(head + data[:count])
        assert (seen.messages, seen.content) == (1, content)


def test_an_upstream_may_pad_the_sizes_of_its_chunks() -> None:
    assert Chunked(lenient=True).consume(b"1  \r\na\r\n1 ;x\r\nb\r\n0 \r\n\r\nX") == 23


def test_the_ending_of_chunks_is_kept_as_it_came() -> None:
    body = Chunked()
    for piece in (b"1\r\na\r\n0", b";e\r\nx: y\r", b"\n\r\n"):
        body.consume(piece)
    assert body.done
    assert body.ending == b"0;e\r\nx: y\r\n\r\n"


def test_a_body_of_a_length_ends_there() -> None:
    body = Length(5)
    assert body.consume(b"abc") == 3
    assert not body.done
    assert body.consume(b"deXY") == 2
    assert body.done
    assert body.payload == [b"de"]
    assert Length(0).done
    assert not UntilClose().done


def test_a_chunk_of_nothing_is_no_chunk_since_it_would_end_the_body() -> None:
    assert chunk(b"") == b""
    assert chunk(b"abcdefghijklmnop") == b"10\r\nabcdefghijklmnop\r\n"


@pytest.mark.parametrize("head", GOOD_HEADS)
def test_a_good_head_is_read_as_llhttp_reads_it(head: bytes) -> None:
    found = parse_request(head)
    assert found.whole == head
    body = b"0\r\n\r\n" if found.chunked else b"x" * (found.length or 0)
    seen = seen_by_llhttp(head + body)
    assert seen.messages == 1
    assert seen.urls == [found.target]


@pytest.mark.parametrize(
    "place", ["GET /a{}b HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\na{}b: c\r\n\r\n"]
)
def test_what_is_taken_in_a_target_or_a_name_llhttp_takes_too(place: str) -> None:
    for code in range(256):
        head = place.format(chr(code)).encode("latin-1")
        try:
            parse_request(head)
        except HeadError:
            continue
        assert seen_by_llhttp(head).messages == 1


@pytest.mark.parametrize("fields", BAD_HEADS.values(), ids=BAD_HEADS)
def test_a_head_that_could_be_read_in_two_ways_is_refused(fields: bytes) -> None:
    with pytest.raises(HeadError) as refused:
        parse_request(b"POST / HTTP/1.1\r\n" + fields + b"\r\n")
    assert refused.value.status == 400


@pytest.mark.parametrize("start", BAD_LINES)
def test_a_first_line_that_is_not_of_http_1_is_refused(start: bytes) -> None:
    with pytest.raises(HeadError) as refused:
        parse_request(start + b"Host: x\r\n\r\n")
    assert refused.value.status == 400


def test_a_coding_in_http_1_0_is_refused() -> None:
    with pytest.raises(HeadError):
        parse_request(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")


def test_a_bare_line_feed_is_refused_before_the_head_is_whole() -> None:
    with pytest.raises(HeadError) as refused:
        refuse_early(b"GET / HTTP/1.1\nHost: x\n\n", 1000)
    assert refused.value.status == 400
    refuse_early(b"GET / HTTP/1.1\r\nHost: x\r", 1000)


def test_a_long_head_is_refused_with_431() -> None:
    with pytest.raises(HeadError) as refused:
        refuse_early(b"GET / HTTP/1.1\r\nX: " + b"a" * 1000, 1000)
    assert refused.value.status == 431


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
    ],
)
def test_an_answer_with_two_ends_is_refused(answer: bytes) -> None:
    with pytest.raises(HeadError) as refused:
        parse_answer(answer)
    assert refused.value.status == 502


def test_an_answer_needs_no_phrase() -> None:
    assert parse_answer(b"HTTP/1.1 200\r\n\r\n").status == 200


def test_only_hosts_value_and_the_paths_beginning_are_changed_for_an_upstream() -> None:
    head = parse_request(b"GET /v1/models?u=/ HTTP/1.1\r\nx: y\r\nHOST:\t me \r\nz:\r\n\r\n")
    expected = b"GET /p/v1/models?u=/ HTTP/1.1\r\nx: y\r\nHOST:\t up:1 \r\nz:\r\n\r\n"
    assert upstream_head(head, b"up:1", b"/p") == expected
    empty = parse_request(b"GET / HTTP/1.1\r\nHost:\r\n\r\n")
    assert upstream_head(empty, b"up:1", b"") == b"GET / HTTP/1.1\r\nHost:up:1\r\n\r\n"


def test_a_rewritten_head_has_one_length_and_none_of_our_headers() -> None:
    head = parse_request(
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\nX-PACELINE-Route: r\r\nA: b\r\n\r\n"
    )
    new = rewritten(head, 0)
    assert new.whole == b"POST / HTTP/1.1\r\nHost: x\r\nA: b\r\nContent-Length: 0\r\n\r\n"
    assert (new.length, new.chunked) == (0, False)
    kept = rewritten(head, None)
    assert kept.whole == b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\nA: b\r\n\r\n"
    assert kept.chunked

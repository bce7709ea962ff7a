"""Heads of messages: checked strictly, kept as bytes, and edited line by line.

What is let through is passed on as it came, so a client's head must have one reading only. Anything else (bare line
feeds, folded lines, blanks before a colon, two lengths, a length beside a transfer encoding) is refused, since the
upstream's parser might see another end of the message than ours did (request smuggling; RFC 9112, sections 2.2, 5
and 6.3).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIELDS = rb"((?:" + _NAME + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*)\r\n"
_REQUEST = re.compile(rb"([A-Z][A-Z\-]{0,31}) (/[\x21-\x7e]*|\*) HTTP/1\.([01])\r\n" + _FIELDS)
_ANSWER = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?\r\n" + _FIELDS)
_LENGTH = re.compile(rb"[0-9]{1,15}")
_BARE_FEED = re.compile(rb"(?<!\r)\n")
_BARE_RETURN = re.compile(rb"\r(?!\n)")
_FOLD = re.compile(rb"\r\n[ \t]")
_UNSAFE = re.compile(r"[^\x20-\x7e]")
"""What cannot stand in the value of a header."""
_VERSION = b"HTTP/1."
_NO_ANSWER = "The upstream's answer is not HTTP/1.1; look whether its URL is that of the server."
END = b"\r\n\r\n"


class HeadError(Exception):
    """A head that is refused: the status of the answer, and why, as a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request or an answer."""

    start: bytes
    """The first line, with its end."""
    lines: tuple[bytes, ...]
    """Every other line as it came, with its end, without the empty one."""
    fields: dict[bytes, bytes]
    """Values by name in lower case; the last of several."""
    length: int | None
    """From ``Content-Length``."""
    chunked: bool
    keep_alive: bool
    """Whether the connection may be used again, as far as this message has a say."""

    @property
    def whole(self) -> bytes:
        return b"".join((self.start, *self.lines, b"\r\n"))

    def text(self, name: bytes) -> str | None:
        """The value of a header, or None."""
        value = self.fields.get(name)
        return None if value is None else value.decode("latin-1")


@dataclass(frozen=True, slots=True)
class RequestHead(Head):
    method: bytes = b""
    target: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode("latin-1")


@dataclass(frozen=True, slots=True)
class AnswerHead(Head):
    status: int = 0


def refuse_early(begun: bytes, most: int) -> None:
    """Raises: HeadError: `begun`, the beginning of a head, can no longer become a good one."""
    if _BARE_FEED.search(begun):
        raise HeadError(400, "A line of the request's head ends without a carriage return.")
    if len(begun) > most:
        raise HeadError(431, f"The request's head is longer than {most} bytes; send fewer or shorter headers.")


def parse_request(head: bytes) -> RequestHead:
    """Raises: HeadError: there is more than one way to read it, or none."""
    found = _REQUEST.fullmatch(head)
    if found is None:
        raise HeadError(400, _why(head))
    method, target, minor, block = found.groups()
    lines = block.splitlines(keepends=True)
    fields = _fields(lines)
    length, chunked = _framing(fields, lines, one_zero=minor == b"0")
    hosts = _count(lines, b"host:")
    if hosts > 1 or (not hosts and minor == b"1"):
        raise HeadError(400, f"The request has {hosts} Host headers; send one.")
    if method == b"CONNECT":
        raise HeadError(400, "CONNECT is for forward proxies; this is none.")
    start = head[: found.start(4)]
    keep_alive = _keep_alive(fields, minor)
    return RequestHead(start, tuple(lines), fields, length, chunked, keep_alive, method, target)


def refuse_early_answer(begun: bytes) -> None:
    """Raises: HeadError: `begun`, the beginning of an answer, can no longer become one."""
    if begun[: len(_VERSION)] != _VERSION[: len(begun)]:
        raise HeadError(502, _NO_ANSWER)
    if _BARE_FEED.search(begun):
        raise HeadError(502, "A line in the head of the upstream's answer ends without a carriage return.")


def parse_answer(head: bytes) -> AnswerHead:
    """Raises: HeadError: it is no head of HTTP/1; its status is 502."""
    found = _ANSWER.fullmatch(head)
    if found is None:
        raise HeadError(502, _NO_ANSWER)
    minor, status, block = found.groups()
    lines = block.splitlines(keepends=True)
    fields = _fields(lines)
    try:
        length, chunked = _framing(fields, lines, one_zero=False)
    except HeadError as error:
        raise HeadError(502, "The upstream's answer has two lengths, or one that is no number.") from error
    keep_alive = _keep_alive(fields, minor)
    return AnswerHead(head[: found.start(3)], tuple(lines), fields, length, chunked, keep_alive, int(status))


def upstream_head(head: RequestHead, authority: bytes, prefix: bytes) -> bytes:
    """The request's head as that upstream gets it: only the value of ``Host`` and the path's beginning are its own."""
    start = head.start if not prefix or head.target == b"*" else head.start.replace(b" /", b" " + prefix + b"/", 1)
    lines = [_hosted(line, authority) if line[:5].lower() == b"host:" else line for line in head.lines]
    return b"".join((start, *lines, b"\r\n"))


def rewritten(head: RequestHead, length: int | None) -> RequestHead:
    """`head` without our own headers; with a body of `length` bytes unless that is None."""
    lines = [line for line in head.lines if line[:11].lower() != b"x-paceline-"]
    if length is not None:
        framing = (b"content-length:", b"transfer-encoding:", b"trailer:")
        lines = [line for line in lines if not line.lower().startswith(framing)]
        lines.append(b"Content-Length: %d\r\n" % length)
    fields = _fields(lines)
    chunked = head.chunked and length is None
    length = head.length if length is None else length
    return RequestHead(head.start, tuple(lines), fields, length, chunked, head.keep_alive, head.method, head.target)


def with_headers(head: Head, headers: Sequence[tuple[str, str]]) -> bytes:
    """The whole head with `headers` behind its own, in place of those of the same names: a client gets the word of the
    one that it asked, whoever else steers behind it."""
    added = [f"{name}: {_UNSAFE.sub(_escaped, value)}\r\n".encode("ascii") for name, value in headers]
    names = tuple(name.lower().encode("ascii") + b":" for name, _ in headers)
    kept = [line for line in head.lines if not line.lower().startswith(names)]
    return b"".join((head.start, *kept, *added, b"\r\n"))


def _escaped(found: re.Match[str]) -> str:
    """As in the ids of decisions (policies.decision_id): the bytes of UTF-8 in hexadecimal digits."""
    return "".join(f"~{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))


def _hosted(line: bytes, authority: bytes) -> bytes:
    """The ``Host`` line with another value; its name and blanks stay."""
    value = line[5:-2].strip(b" \t")
    at = line.index(value, 5) if value else len(line) - 2
    return line[:at] + authority + line[at + len(value) :]


def _fields(lines: Sequence[bytes]) -> dict[bytes, bytes]:
    fields = {}
    for line in lines:
        name, _, value = line.partition(b":")
        fields[name.lower()] = value.strip(b" \t\r\n")
    return fields


def _count(lines: Sequence[bytes], name: bytes) -> int:
    return sum(line[: len(name)].lower() == name for line in lines)


def _framing(fields: dict[bytes, bytes], lines: Sequence[bytes], one_zero: bool) -> tuple[int | None, bool]:
    """The body's length and whether it is chunked.

    Raises:
        HeadError: there are two of a kind or both kinds, or a coding that is not ``chunked`` alone.
    """
    length = fields.get(b"content-length")
    coding = fields.get(b"transfer-encoding")
    if length is None and coding is None:
        return None, False
    if _count(lines, b"content-length:") + _count(lines, b"transfer-encoding:") > 1:
        both = length is not None and coding is not None
        how = "with Content-Length and Transfer-Encoding" if both else "twice"
        raise HeadError(400, f"The request says {how} how long its body is; send one Content-Length.")
    if length is not None:
        if _LENGTH.fullmatch(length) is None:
            raise HeadError(400, "The request's Content-Length is no number of at most 15 digits.")
        return int(length), False
    if coding is None or coding.lower() != b"chunked" or one_zero:
        raise HeadError(400, "The request's Transfer-Encoding is not chunked, or it is of HTTP/1.0.")
    return None, True


def _keep_alive(fields: dict[bytes, bytes], minor: bytes) -> bool:
    wanted = fields.get(b"connection", b"").lower()
    if minor == b"1":
        return b"close" not in wanted
    return b"keep-alive" in wanted


def _why(head: bytes) -> str:
    """In a sentence, why a request's head is not one."""
    if _BARE_FEED.search(head) or _BARE_RETURN.search(head):
        return "A line of the request's head does not end with a carriage return and a line feed."
    if _FOLD.search(head):
        return "A header of the request goes on in a second line; send it in one."
    if not head.split(b"\r\n", 1)[0].endswith((b" HTTP/1.1", b" HTTP/1.0")):
        return "The request's first line is not of HTTP/1.1."
    return "The request's first line or one of its headers is not as HTTP/1.1 has it."

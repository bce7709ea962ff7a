"""An answer on its way through: where it ends, what is taken out or added, what it tells."""

import json
from collections.abc import Sequence
from typing import Any

from tuner.fleet.proxy.events import Events
from tuner.fleet.proxy.framing import Chunked, Framing, Length, UntilClose, chunk
from tuner.fleet.proxy.head import (
    END,
    AnswerHead,
    HeadError,
    RequestHead,
    parse_answer,
    refuse_early_answer,
    with_headers,
)

_LOADING = b'"unavailable_error"'
"""The type of llama.cpp's 503 while its model is loading (tools/server)."""
_COMMENT = b": keep-alive\n\n"
_EVENT_STREAM = b"text/event-stream"
_WITHOUT_BODY = (204, 304)


class Answer:
    """One answer. Bytes go in as they come, and come out as they may be passed on."""

    def __init__(
        self,
        request: RequestHead,
        max_head_bytes: int,
        tee_bytes: int,
        learns: bool,
        swallows_continue: bool = False,
        headers: Sequence[tuple[str, str]] = (),
        strips: bool = False,
    ) -> None:
        self._request = request
        self._max_head_bytes = max_head_bytes
        self._tee_bytes = tee_bytes
        self._learns = learns
        self._swallows_continue = swallows_continue
        self._headers = headers
        self._strips = strips
        self._begun = b""
        self._framing: Framing | None = None
        self._events: Events | None = None
        self._content: list[bytes] | None = [] if learns else None
        self._content_bytes = 0
        self.untouched = True
        """Whether not a byte of it came."""
        self.passed_on = False
        """Whether its head was passed on, so that no other answer can be given."""
        self.status = 0
        self.keep_alive = False
        """Whether the connection may be used again after it."""
        self.tunnel = False
        """Whether it switched protocols: from here on both sides are passed on as they come."""
        self.first_at = 0.0
        """When the first byte of its body came; 0.0 before."""
        self.last_at = 0.0
        self.surplus = False
        """Whether more came than belongs to it."""

    @property
    def done(self) -> bool:
        return self._framing is not None and self._framing.done

    @property
    def streamed(self) -> bool:
        return self._events is not None

    @property
    def ends_with_connection(self) -> bool:
        return isinstance(self._framing, UntilClose)

    @property
    def finished(self) -> bool:
        """Whether all that a client waits for was passed on: the official one leaves at ``[DONE]``, before the last
        chunk has come."""
        return self.done or (self._events is not None and self._events.finished)

    def comment(self) -> bytes:
        """A comment to put into the stream; empty where none may stand here."""
        framing, events = self._framing, self._events
        if framing is None or events is None or not framing.at_boundary:
            return b""
        if not self._strips and not events.at_boundary:
            return b""
        return chunk(_COMMENT) if isinstance(framing, Chunked) else _COMMENT

    def feed(self, data: bytes, now: float) -> bytes:
        """What to pass on of what came.

        Raises:
            HeadError: it is no answer of HTTP/1.1.
            FramingError: its body is not framed as one; nothing of `data` is passed on.
        """
        framing, events = self._framing, self._events
        if events is not None and framing is not None and not self._strips and not framing.done:
            # Once for each token of a stream, so the shortest way through.
            self.last_at = now
            if not self.first_at:
                self.first_at = now
            end = framing.consume(data)
            for piece in framing.payload:
                events.follow(piece)
            if end == len(data):
                return data
            self.surplus = True
            return data[:end]
        self.untouched = False
        before = b""
        if framing is None:
            before, data = self._feed_head(data)
            framing = self._framing
            if framing is None:
                return before
            if not data:
                self.passed_on = True
                return before
        if not self.first_at:
            self.first_at = now
        self.last_at = now
        was_at_boundary = framing.at_boundary if self._strips else False
        end = framing.consume(data)
        if end != len(data):
            self.surplus = True
            data = data[:end]
        events = self._events
        if events is None:
            if self._content is not None:
                self._collect(framing.payload)
        elif self._strips:
            data = self._stripped(framing, events, data, was_at_boundary)
        else:
            for piece in framing.payload:
                events.follow(piece)
        self.passed_on = True
        return before + data if before else data

    def held(self) -> bytes:
        """What was held back of a stream that ended too early."""
        if not self._strips or self._events is None:
            return b""
        rest = self._events.rest()
        return chunk(rest) if isinstance(self._framing, Chunked) else rest

    def told(self) -> dict[str, Any]:
        """The members of the answer, or of a stream's last event that has counts. Empty where nothing can be read."""
        if self._events is not None:
            return self._events.told()
        try:
            found = json.loads(b"".join(self._content or ()))
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def loading(self) -> bool:
        """Whether it says that the model is still being loaded."""
        return self.status == 503 and _LOADING in b"".join(self._content or ())

    def _feed_head(self, data: bytes) -> tuple[bytes, bytes]:
        """What to pass on of heads, and what came behind the last of them."""
        begun = self._begun + data if self._begun else data
        out = []
        while self._framing is None:
            at = begun.find(END) + len(END)
            if at < len(END):
                refuse_early_answer(begun)
                if len(begun) > self._max_head_bytes:
                    raise HeadError(
                        502, f"The head of the upstream's answer is longer than {self._max_head_bytes} bytes."
                    )
                break
            raw, begun = begun[:at], begun[at:]
            head = parse_answer(raw)
            if 100 <= head.status < 200 and head.status != 101:
                if head.status != 100 or not self._swallows_continue:
                    out.append(raw)
                continue
            self._begin(head)
            out.append(with_headers(head, self._headers) if self._headers else raw)
            self._begun = b""
            return b"".join(out), begun
        self._begun = begun
        return b"".join(out), b""

    def _begin(self, head: AnswerHead) -> None:
        self.status = head.status
        if head.status == 101:
            self.tunnel = True
            self._framing = UntilClose()
        elif self._request.method == b"HEAD" or head.status in _WITHOUT_BODY:
            self._framing = Length(0)
        elif head.chunked:
            self._framing = Chunked(lenient=True)
        else:
            self._framing = UntilClose() if head.length is None else Length(head.length)
        self.keep_alive = head.keep_alive and not self.ends_with_connection
        plain = head.fields.get(b"content-encoding", b"identity").lower() == b"identity"
        if self._learns and plain and head.fields.get(b"content-type", b"").lower().startswith(_EVENT_STREAM):
            # A body of a fixed length must keep it, so nothing can be taken out.
            self._strips = self._strips and head.status == 200 and not isinstance(self._framing, Length)
            self._events = Events()
        else:
            self._strips = False
        if head.status == 503 and self._content is None:
            self._content = []

    def _collect(self, payload: Sequence[bytes]) -> None:
        if self._content is None:
            return
        self._content_bytes += sum(map(len, payload))
        if self._content_bytes > self._tee_bytes:
            self._content = None
        else:
            self._content += payload

    def _stripped(self, framing: Framing, events: Events, data: bytes, was_at_boundary: bool) -> bytes:
        """`data` itself where nothing is taken out or held back and it has whole chunks; else chunks of our own."""
        whole = was_at_boundary and events.at_boundary and (framing.at_boundary or framing.done)
        if whole and events.passes(framing.payload):
            return data
        payload = b"".join(framing.payload)
        kept = events.strip(payload)
        if not isinstance(framing, Chunked):
            return kept
        if whole and kept == payload:
            return data
        if framing.done:
            return chunk(kept) + chunk(events.rest()) + framing.ending
        return chunk(kept)

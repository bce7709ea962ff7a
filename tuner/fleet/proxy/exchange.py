"""One request and its answer: where it goes, what is edited, how it ends, what is reported."""

import asyncio
from collections.abc import Sequence
from time import monotonic, time

from tuner.fleet.proxy.answer import Answer
from tuner.fleet.proxy.body import edited, read_body
from tuner.fleet.proxy.endpoint import CONNECT_ERRORS, Endpoint, UpstreamConnection, unreachable
from tuner.fleet.proxy.framing import FramingError
from tuner.fleet.proxy.generation import Kind, asked, kind_of, route_of
from tuner.fleet.proxy.head import HeadError, RequestHead, rewritten, upstream_head
from tuner.fleet.proxy.outcome import Sent, judge
from tuner.fleet.proxy.routing import Routing
from tuner.fleet.proxy.sides import Client
from tuner.fleet.types import Choice, End

_IDEMPOTENT = (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE")
"""RFC 9110, section 9.2.2: may be sent again after a connection was lost; a generation may, too: it leaves nothing."""
_NO_CHOICE = Choice("")


class ProxiedExchange:
    """From a request's head to the last byte of its answer."""

    def __init__(self, routing: Routing, client: Client, head: RequestHead, now: float) -> None:
        self._routing = routing
        self._options = routing.options
        self._client = client
        self._head = head
        self._kind = kind_of(head)
        steered = self._kind is Kind.STEERED
        self._reads = steered and routing.reads(head.path, route_of(head))
        self._started = False
        self._choice = _NO_CHOICE
        self._arrived_at = time()
        self._received_at = now
        """When the last byte of the request came so far."""
        self._received = head.length in (None, 0) and not head.chunked
        self._tee: list[bytes] | None = [] if steered else None
        """The content of a body that is wanted."""
        self._content_bytes = 0
        self._edited: bytes | None = None
        self._pieces: list[bytes] | None = []
        """The body to send, as long as it may have to be sent again; None when it grew too large for that."""
        self._pieces_bytes = 0
        self._tried: set[str] = set()
        self._unreachable = ""
        """Why the last attempt found nobody."""
        self._endpoint: Endpoint | None = None
        self._began_area = self._began_at = 0.0
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._continued = False
        self._overhead: float | None = None
        self._sent_at = self._commented_at = now
        self._answer = self._new_answer()
        self._over = False
        self._client_slow_since: float | None = None
        routing.exchanges += 1

    def start(self) -> None:
        """Its head came, and what came with it was received: most requests then go out in one piece."""
        self._started = True
        head, most = self._head, self._options.max_body_bytes
        if not self._reads:
            self._dispatch_unread()
        elif (head.length or 0) > most or self._content_bytes > most:
            self._too_large()
        elif self._received:
            self._choose()
        elif head.fields.get(b"expect", b"").lower() == b"100-continue":
            self._continued = True
            self._client.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def body_received(self, raw: bytes, payload: Sequence[bytes], done: bool, now: float) -> None:
        """A part of its body came."""
        if self._over:
            return
        self._received_at = now
        self._received = done
        if self._tee is not None:
            self._content_bytes += sum(map(len, payload))
            if self._content_bytes <= (self._options.max_body_bytes if self._reads else self._options.tee_bytes):
                self._tee += payload
            elif self._reads:
                if self._started:
                    self._too_large()
                return
            else:
                self._tee = None
        if self._pieces is not None:
            self._pieces.append(raw)
            self._pieces_bytes += len(raw)
        if not self._started:
            return
        if self._reads:
            if done:
                self._choose()
            return
        if self._connection is not None:
            self._connection.transport.write(raw)
            if self._pieces_bytes > self._options.tee_bytes:
                self._pieces = None
        elif self._pieces_bytes > self._options.write_buffer_bytes:
            self._client.read(False)
        if done and self._connection is not None:
            self._routing.loop.call_soon(self._note)

    def tunnelled(self, data: bytes) -> None:
        """What the client sends after its protocol was switched."""
        if self._connection is not None:
            self._connection.transport.write(data)

    @property
    def tunnel(self) -> bool:
        return self._answer.tunnel

    def client_left(self, end: End = End.CANCELLED) -> None:
        """There is nobody to answer; the upstream is told by the end of its connection."""
        if self._over:
            return
        if self._connecting is not None:
            self._connecting.cancel()
        self._finish(End.DONE if self._answer.finished else end)

    def client_writable(self, writable: bool, now: float) -> None:
        """A slow client takes no more, or takes again."""
        self._client_slow_since = None if writable else now
        connection = self._connection
        if connection is None or connection.transport.is_closing():
            return
        if writable:
            self._answer.last_at = now if self._answer.first_at else 0.0
            connection.transport.resume_reading()
        else:
            connection.transport.pause_reading()

    def upstream_writable(self, writable: bool) -> None:
        self._client.read(writable)

    def answer_received(self, data: bytes) -> None:
        """The upstream sent something."""
        answer = self._answer
        try:
            passed_on = answer.feed(data, monotonic())
        except HeadError as error:
            self._broken(error.sentence)
            return
        except FramingError as error:
            self._broken(f"The body of the upstream's answer is not framed as HTTP/1.1 has it: {error}.")
            return
        if passed_on:
            self._client.transport.write(passed_on)
        if answer.done:
            self._answered()

    def upstream_lost(self, error: Exception | None) -> None:
        """The connection to the upstream ended."""
        connection, self._connection = self._connection, None
        if self._over or connection is None:
            return
        answer = self._answer
        if answer.ends_with_connection and error is None:
            if held := answer.held():
                self._client.transport.write(held)
            self._answered()
        elif answer.untouched and connection.reused and self._pieces is not None and self._repeatable:
            endpoint = self._endpoint
            self._leave_endpoint()
            self._dispatch(endpoint, fresh=True)
        else:
            self._broken("The upstream ended the connection before its answer was whole.")

    def check(self, now: float) -> None:
        """Look at the limits of time."""
        answer = self._answer
        if self._over or self._connection is None or self._client_slow_since is not None or answer.tunnel:
            return
        last = max(answer.last_at, self._sent_at, self._received_at)
        if not answer.first_at:
            if self._received and now - last > self._options.first_byte_seconds:
                self._broken("The upstream did not begin to answer in time.", End.TIMED_OUT)
        elif now - last > self._options.idle_seconds:
            self._broken("The upstream stopped in the middle of its answer.", End.TIMED_OUT)
        elif self._options.comment_seconds is not None and now - last > self._options.comment_seconds:
            self._comment(now)

    @property
    def _steers(self) -> bool:
        """Whether the request or its answer is more than passed on."""
        return self._reads and (bool(self._choice.edits) or self._choice.decision is not None)

    @property
    def _repeatable(self) -> bool:
        return self._kind is not Kind.OTHER or self._head.method in _IDEMPOTENT

    def _new_answer(self) -> Answer:
        choice, options = (self._choice if self._reads else _NO_CHOICE), self._options
        learns = self._kind is not Kind.OTHER
        return Answer(
            self._head,
            options.max_head_bytes,
            options.tee_bytes,
            learns,
            self._continued,
            choice.answer_headers,
            choice.strip_usage,
        )

    def _dispatch_unread(self) -> None:
        routing = self._routing
        pick = routing.first if self._kind is Kind.OTHER else routing.least_loaded
        self._dispatch(pick(self._tried))

    def _choose(self) -> None:
        """The whole body is here: ask where it goes, edit it, and send it there."""
        routing = self._routing
        open_endpoints = routing.open_endpoints(self._tried)
        content = b"".join(self._tee or ())
        body = read_body(content)
        self._edited, self._choice, endpoint = None, _NO_CHOICE, None
        if open_endpoints:
            in_flight = {name: one.in_flight for name, one in open_endpoints.items()}
            members = None if body is None else body.members
            choice = routing.choose(asked(self._head, members, len(content), in_flight, self._arrived_at))
            endpoint = routing.least_loaded(self._tried) if choice is None else open_endpoints[choice.upstream]
            self._choice = choice or _NO_CHOICE
        if body is not None and self._choice.edits:
            try:
                self._edited = edited(body, self._choice.edits)
            except RecursionError:  # the client's own members, nested too deep to be written: for the upstream to judge
                self._choice = Choice(self._choice.upstream)
            except (ValueError, TypeError) as error:
                routing.chooser_fault(f"an edit has no JSON: {error}")
                self._choice = Choice(self._choice.upstream)
        self._dispatch(endpoint)

    def _note(self) -> None:
        """Tell the chooser of a request that was passed on unread; after its bytes have left, since this takes time."""
        tee, self._tee = self._tee, None
        endpoint = self._endpoint
        if self._reads or tee is None or endpoint is None:
            return
        content = b"".join(tee)
        body = read_body(content)
        members = None if body is None else body.members
        in_flight = {endpoint.name: max(0, endpoint.in_flight - 1)}
        noted = asked(self._head, members, len(content), in_flight, self._arrived_at, endpoint.name)
        self._choice = self._routing.choose(noted) or _NO_CHOICE

    def _dispatch(self, endpoint: Endpoint | None, fresh: bool = False) -> None:
        """Send it there, over a new connection if `fresh`."""
        if endpoint is None:
            sentence = self._unreachable or "The proxy has no upstream; configure one."
            self._refuse(502 if self._unreachable else 503, sentence, "upstream_unreachable", End.BROKEN)
            return
        self._endpoint = endpoint
        self._began_at = monotonic()
        self._began_area = endpoint.began(self._began_at)
        connection = None if fresh else endpoint.take()
        if connection is None:
            self._connecting = self._routing.loop.create_task(self._connect(endpoint))
        else:
            self._send(endpoint, connection)

    async def _connect(self, endpoint: Endpoint) -> None:
        try:
            connection = await endpoint.connect()
        except CONNECT_ERRORS as error:
            self._connecting = None
            self._unreachable = unreachable(endpoint.name, error)
            endpoint.health.failed(self._unreachable, monotonic(), at_once=True)
            self._leave_endpoint()
            self._tried.add(endpoint.name)
            if self._reads:
                self._choose()
            else:
                self._dispatch_unread()
        else:
            self._connecting = None
            self._send(endpoint, connection)

    def _send(self, endpoint: Endpoint, connection: UpstreamConnection) -> None:
        """Everything of the request that is here goes out."""
        self._connection = connection
        connection.exchange = self
        self._answer = self._new_answer()
        head, edit = self._head, self._edited
        if self._steers:
            head = rewritten(head, None if edit is None else len(edit))
        body = self._pieces or [] if edit is None else [edit]
        origin = endpoint.origin
        if not self._reads:
            self._client.read(True)  # before the write, which may find that the upstream takes no more
        connection.transport.write(b"".join((upstream_head(head, origin.authority, origin.prefix), *body)))
        self._sent_at = monotonic()
        if self._overhead is None:
            self._overhead = self._sent_at - self._received_at
        if self._client_slow_since is not None:
            connection.transport.pause_reading()
        if self._received:
            self._routing.loop.call_soon(self._note)

    def _answered(self) -> None:
        answer, connection = self._answer, self._connection
        status = answer.status
        end = End.UPSTREAM_ERROR if status >= 500 else End.CLIENT_ERROR if status >= 400 else End.DONE
        keep_alive = answer.keep_alive and self._head.keep_alive
        if connection is not None and keep_alive and self._received and not answer.surplus:
            transport = connection.transport
            if not transport.is_closing() and not transport.get_write_buffer_size():
                self._connection = connection.exchange = None
                if self._client_slow_since is not None:
                    transport.resume_reading()
                self._give_back(connection)
        self._finish(end)
        self._client.answered(keep_alive)

    def _give_back(self, connection: UpstreamConnection) -> None:
        if self._endpoint is not None:
            self._endpoint.give_back(connection, monotonic())

    def _broken(self, sentence: str, end: End = End.BROKEN) -> None:
        """The answer will not become whole. What came of it is passed on, and that it ends too early can be seen."""
        answer = self._answer
        self._finish(end, sentence)
        if not answer.passed_on:
            timed_out = end is End.TIMED_OUT
            code = "upstream_timeout" if timed_out else "upstream_broken"
            self._client.refuse(504 if timed_out else 502, sentence, code)
            return
        if held := answer.held():
            self._client.transport.write(held)
        self._client.cut(visibly=answer.ends_with_connection)

    def _too_large(self) -> None:
        most = self._options.max_body_bytes
        sentence = f"The request's body is longer than {most} bytes; send a shorter prompt."
        self._refuse(413, sentence, "request_too_large", End.CLIENT_ERROR)

    def _refuse(self, status: int, sentence: str, code: str, end: End) -> None:
        self._finish(end, sentence)
        self._client.refuse(status, sentence, code)

    def _finish(self, end: End, sentence: str = "") -> None:
        """Leave the upstream, judge it, and report."""
        self._over = True
        self._routing.exchanges -= 1
        self._note()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.exchange = None
            connection.transport.abort()
        endpoint, now = self._endpoint, monotonic()
        load = 0.0
        if endpoint is not None:
            load = endpoint.ended(self._began_area, self._began_at, now)
            judge(endpoint, self._kind, end, self._answer, sentence, now)
        if self._kind is Kind.OTHER:
            return
        request = Sent(
            path=self._head.path,
            upstream="" if endpoint is None else endpoint.name,
            choice=self._choice,
            arrived_at=self._arrived_at,
            received_at=self._received_at,
            overhead_seconds=self._overhead or 0.0,
            load=load,
        )
        self._routing.record(request, self._answer, end)

    def _leave_endpoint(self) -> None:
        """Another attempt follows."""
        if self._endpoint is not None:
            self._endpoint.ended(self._began_area, self._began_at, monotonic())
            self._endpoint.health.said_nothing()
            self._endpoint = None

    def _comment(self, now: float) -> None:
        """Hold the connection of a silent stream open; only where its answer was not to stay as it is."""
        silence = self._options.comment_seconds
        if silence is not None and self._steers and now - self._commented_at > silence:
            self._commented_at = now
            self._client.transport.write(self._answer.comment())

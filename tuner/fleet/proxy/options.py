"""What the data path holds to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Limits of the data path. There is no limit on the whole of an answer: a stream may last."""

    max_head_bytes: int = 64 * 1024
    """Of a request's or an answer's head; a longer one of a client is answered 431."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Of a generation that is read before it is passed on; a longer one is answered 413."""
    tee_bytes: int = 256 * 1024
    """Of a body that is passed on unread, and of an answer in one piece: longer ones teach nothing."""
    write_buffer_bytes: int = 256 * 1024
    """What may wait for a slow reader before the other side is no longer read."""
    head_seconds: float = 30.0
    """From a request's first byte to the end of its head."""
    body_seconds: float = 30.0
    """For a request's body, and a second more for every `body_bytes_per_second` that came."""
    body_bytes_per_second: int = 500
    """As Apache's mod_reqtimeout has it (``body=20,MinRate=500``)."""
    idle_client_seconds: float = 75.0
    """Between two requests of a connection."""
    connect_seconds: float = 5.0
    first_byte_seconds: float = 600.0
    """From the request's end to the answer's first byte: a queue and a prefill may take long."""
    idle_seconds: float = 300.0
    """Between two bytes of an answer, on either side."""
    linger_seconds: float = 2.0
    """For which a client that is still sending after its answer is read, so that the answer reaches it."""
    idle_upstream_seconds: float = 4.0
    """For which an unused connection is kept; llama.cpp closes its own after 5."""
    idle_upstream_connections: int = 64
    """Unused connections that are kept for each upstream."""
    failures_to_unhealthy: int = 3
    """Failures in a row after which an upstream gets no more requests; one refused connection is enough."""
    retry_seconds: float = 1.0
    """Before an unhealthy upstream is asked again; doubled each time."""
    max_retry_seconds: float = 30.0
    comment_seconds: float | None = None
    """Silence of a steered stream after which a comment is sent to hold its connection open; None: never."""

    @property
    def tick_seconds(self) -> float:
        """How often the limits of time are looked at."""
        shortest = min(
            self.head_seconds,
            self.body_seconds,
            self.idle_client_seconds,
            self.first_byte_seconds,
            self.idle_seconds,
            self.linger_seconds,
            self.idle_upstream_seconds,
            self.retry_seconds,
            self.comment_seconds or self.idle_seconds,
        )
        return min(1.0, shortest / 4.0)

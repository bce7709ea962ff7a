"""What an exchange tells when it is over: of its upstream's health, and to whoever learns."""

from dataclasses import dataclass

from tuner.fleet.proxy.answer import Answer
from tuner.fleet.proxy.counts import read_counts
from tuner.fleet.proxy.endpoint import Endpoint
from tuner.fleet.proxy.generation import Kind
from tuner.fleet.types import Choice, End, Exchange

_UNWELL = (500, 502, 503, 504)
"""Of a generation, evidence against the upstream. 501 says only that a build lacks something."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What is told of a request. Times by the monotonic clock, but for `arrived_at`."""

    path: str
    upstream: str
    """Empty where none was found."""
    choice: Choice
    arrived_at: float
    """Unix seconds."""
    received_at: float
    """When its last byte came."""
    overhead_seconds: float
    load: float


def judge(endpoint: Endpoint, kind: Kind, end: End, answer: Answer, sentence: str, now: float) -> None:
    """Hold the exchange against the upstream, or for it. `sentence`: why its answer did not become whole."""
    health = endpoint.health
    generation = kind is not Kind.OTHER
    if end in (End.BROKEN, End.TIMED_OUT):
        health.failed(sentence, now)
    elif end is End.UPSTREAM_ERROR and answer.loading:
        health.not_ready(f"The upstream {endpoint.name} is loading its model.", now)
    elif end is End.UPSTREAM_ERROR and answer.status in _UNWELL and generation:
        health.failed(f"The upstream {endpoint.name} answered {answer.status}.", now)
    elif end is End.DONE and generation:
        health.succeeded()
    else:
        health.said_nothing()


def report(sent: Sent, answer: Answer, end: End) -> Exchange:
    """The exchange in counts and times."""
    counts = read_counts(answer.told())
    streamed = answer.last_at - answer.first_at
    return Exchange(
        request_key=sent.choice.request_key,
        upstream=sent.upstream,
        lane=sent.choice.lane,
        decision=sent.choice.decision,
        path=sent.path,
        status=answer.status,
        end=end,
        streamed=answer.streamed,
        arrived_at=sent.arrived_at,
        first_byte_seconds=max(0.0, answer.first_at - sent.received_at) if answer.first_at else 0.0,
        decode_seconds=streamed if answer.streamed else counts.decode_seconds or 0.0,
        output_tokens=counts.output_tokens,
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        load=sent.load,
        drafts=counts.drafts,
        overhead_seconds=sent.overhead_seconds,
    )

"""tuner.fleet.link: messages between two processes' ends, here both in one."""

import multiprocessing
import threading
from collections.abc import Iterator

import pytest

from tuner.fleet.link import LIMIT, Link, Stop, Told
from tuner.fleet.types import ProxyState


class End:
    """What one end got, and whether the other one is gone."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self.came = threading.Condition()
        self.ended = threading.Event()

    def take(self, message: object) -> None:
        with self.came:
            self.messages.append(message)
            self.came.notify_all()

    def wait_for(self, count: int) -> list[object]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.messages) >= count, timeout=30)
            return self.messages


Ends = tuple[Link, End, Link, End]


@pytest.fixture
def ends() -> Iterator[Ends]:
    near_pipe, far_pipe = multiprocessing.Pipe()
    near, far = End(), End()
    links = Link(near_pipe, near.take, near.ended.set), Link(far_pipe, far.take, far.ended.set)
    for link in links:
        link.start()
    yield links[0], near, links[1], far
    for link in links:
        link.close()


def test_messages_arrive_whole_and_in_order_in_both_directions(ends: Ends) -> None:
    near_link, near, far_link, far = ends
    told = [Told(ProxyState((), streams)) for streams in range(500)]
    assert all(near_link.send(message) for message in told)
    assert far_link.send(Stop())
    assert far.wait_for(500) == told
    assert near.wait_for(1) == [Stop()]


def test_an_end_that_closes_writes_what_waits_and_is_seen_to_be_gone(ends: Ends) -> None:
    near_link, near, _, far = ends
    for streams in range(50):
        near_link.send(Told(ProxyState((), streams)))
    near_link.close()
    assert len(far.wait_for(50)) == 50
    assert far.ended.wait(30)
    assert near.ended.wait(30)
    assert not near_link.send(Stop())


def test_an_end_that_nobody_reads_gives_back_what_was_not_written_and_never_waits() -> None:
    near_pipe, far_pipe = multiprocessing.Pipe()
    end = End()
    link = Link(near_pipe, end.take, end.ended.set)
    link.start()
    message = Told(ProxyState((), 0, {float(bound): bound for bound in range(50_000)}))
    sent = sum(link.send(message) for _ in range(LIMIT + 100))
    assert LIMIT <= sent < LIMIT + 100
    far_pipe.close()
    assert end.ended.wait(30)
    assert link.close() == [message] * sent
    assert link.close() == []


def test_a_message_that_is_not_taken_does_not_end_the_reading(caplog: pytest.LogCaptureFixture) -> None:
    near_pipe, far_pipe = multiprocessing.Pipe()
    end = End()

    def take(message: object) -> None:
        if message == Stop():
            raise ValueError("not today")
        end.take(message)

    near, far = Link(near_pipe, take, end.ended.set), Link(far_pipe, end.take, end.ended.set)
    near.start()
    far.start()
    far.send(Stop())
    far.send(Told(ProxyState((), 7)))
    assert end.wait_for(1) == [Told(ProxyState((), 7))]
    assert "was not taken" in caplog.text
    near.close()
    far.close()

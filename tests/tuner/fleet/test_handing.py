"""tuner.fleet.handing: exchanges wait for the control process, up to a bound, and are counted beyond it."""

import multiprocessing
import threading
from dataclasses import replace

import pytest

from tests.tuner.fleet.fleet_examples import exchange
from tuner.fleet import handing
from tuner.fleet.handing import Handing
from tuner.fleet.link import Exchanges, Link
from tuner.fleet.types import Exchange


def numbered(count: int) -> list[Exchange]:
    return [replace(exchange(), request_key=number) for number in range(count)]


class Far:
    """The other end of a link; ends when it has what it waits for."""

    def __init__(self, count: int) -> None:
        near, far = multiprocessing.Pipe()
        self.got: list[Exchange] = []
        self._count = count
        self._there = threading.Event()
        self.link = Link(near, print, self._there.clear)
        self._far = Link(far, self._take, self._there.clear)

    def _take(self, message: object) -> None:
        assert isinstance(message, Exchanges)
        self.got += message.exchanges
        if len(self.got) >= self._count:
            self._there.set()

    def all_came(self) -> bool:
        return self._there.wait(30)

    def start(self) -> None:
        self.link.start()
        self._far.start()

    def close(self) -> None:
        self.link.close()
        self._far.close()


def test_what_was_measured_without_a_control_process_waits_for_the_next_one() -> None:
    measured, handed = numbered(450), Handing()
    for one in measured:
        handed.record(one)
        assert not handed.flush(None)
    far = Far(len(measured))
    far.start()
    while handed.flush(far.link):
        pass
    assert far.all_came()
    assert (far.got, handed.dropped) == (measured, 0)
    far.close()


def test_what_a_link_did_not_take_waits_too() -> None:
    measured, handed = numbered(3), Handing()
    ended = Far(0)
    ended.start()
    ended.close()
    for one in measured:
        handed.record(one)
    assert not handed.flush(ended.link)
    far = Far(len(measured))
    far.start()
    assert handed.flush(far.link)
    assert far.all_came()
    assert far.got == measured
    far.close()


def test_what_a_control_process_that_ended_did_not_get_comes_first() -> None:
    measured, handed = numbered(4), Handing()
    for one in measured[2:]:
        handed.record(one)
    handed.take_back([Exchanges(tuple(measured[:2])), "another word"])
    far = Far(len(measured))
    far.start()
    assert handed.flush(far.link)
    assert far.all_came()
    assert far.got == measured
    far.close()


def test_beyond_the_bound_each_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "KEPT", 3)
    handed = Handing()
    for one in numbered(5):
        handed.record(one)
    assert handed.dropped == 2
    handed.take_back([Exchanges(tuple(numbered(2)))])
    assert handed.dropped == 4

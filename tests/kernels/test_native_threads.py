"""How the native threads share the items of one piece of work."""

import ctypes
from collections.abc import Iterator
from threading import Event, Lock

import pytest

from engine.model_fetch import cache_folder
from kernels.native_threads import NativeThreads

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
ITEMS = 11
DEADLINE = 30.0
"""Seconds after which a thread that waits for another gives up, so that a fault fails rather than hangs."""


@pytest.fixture
def native() -> Iterator[NativeThreads]:
    threads = NativeThreads(cache_folder() / "kernels", 2)
    yield threads
    threads.resize(1)


def run(native: NativeThreads, work: "ctypes._CFunctionType", items: int, grain: int) -> None:
    function = native.library.threads_run
    function.restype = None
    function.argtypes = (ctypes.c_void_p, WORK, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    function(native.handle, work, None, items, grain)


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_thread_that_is_stopped_holds_up_only_the_grain_that_it_took(native: NativeThreads, stopped: int) -> None:
    """The other thread does the rest of both shares while it stands in its first item."""
    began, rest_done, lock = Event(), Event(), Lock()
    done: list[tuple[int, int]] = []
    met: list[bool] = []

    def work(_: object, first: int, last: int, worker: int) -> None:
        if worker == stopped and not began.is_set():
            began.set()
            met.append(rest_done.wait(DEADLINE))
        elif not began.is_set():
            met.append(began.wait(DEADLINE))
        with lock:
            done.extend((item, worker) for item in range(first, last))
            if len(done) == ITEMS - 1:
                rest_done.set()

    run(native, WORK(work), ITEMS, 1)
    assert met
    assert all(met)
    assert sorted(item for item, _ in done) == list(range(ITEMS))
    assert sum(worker == stopped for _, worker in done) == 1


@pytest.mark.parametrize("grain", [1, 2, 4])
@pytest.mark.parametrize("items", [1, 2, 5, 30])
def test_every_item_is_done_once(native: NativeThreads, items: int, grain: int) -> None:
    done: list[int] = []
    lock = Lock()

    def work(_: object, first: int, last: int, worker: int) -> None:
        with lock:
            done.extend(range(first, last))

    run(native, WORK(work), items, grain)
    assert sorted(done) == list(range(items))

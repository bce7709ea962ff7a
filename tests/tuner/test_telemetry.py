"""The telemetry queue: in order, bounded, and what does not fit is counted."""

import threading

from policies.stats import CycleStats, RequestStats
from tests.tuner.telemetry_examples import cycle, request
from tuner.telemetry import TelemetryQueue


class Log:
    """A consumer that keeps what it was given."""

    def __init__(self) -> None:
        self.events: list[CycleStats | RequestStats] = []

    def fold_cycle(self, stats: CycleStats) -> None:
        self.events.append(stats)

    def fold_request(self, stats: RequestStats) -> None:
        self.events.append(stats)


def test_every_consumer_gets_every_event_once_in_order() -> None:
    queue, first, second = TelemetryQueue(), Log(), Log()
    events: list[CycleStats | RequestStats] = [cycle(), request(), cycle(), request("story")]
    for event in events:
        if isinstance(event, CycleStats):
            queue.record_cycle(event)
        else:
            queue.record_request(event)
    assert queue.drain((first, second)) == 4
    assert first.events == second.events == events
    assert queue.drain((first, second)) == 0
    assert first.events == events


def test_what_does_not_fit_is_dropped_newest_first_and_counted() -> None:
    queue, log = TelemetryQueue(limit=2), Log()
    kept = [request("code-edit"), request("chat")]
    for stats in [*kept, request("story"), request("extract")]:
        queue.record_request(stats)
    queue.record_cycle(cycle())
    assert queue.dropped == 3
    assert queue.drain((log,)) == 2
    assert log.events == kept
    queue.record_cycle(cycle())
    assert queue.drain((log,)) == 1
    assert queue.dropped == 3


def test_threads_that_record_while_one_drains_lose_nothing() -> None:
    queue, log = TelemetryQueue(), Log()

    def record() -> None:
        for _ in range(500):
            queue.record_request(request())

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        queue.drain((log,))
    for thread in threads:
        thread.join()
    queue.drain((log,))
    assert (len(log.events), queue.dropped) == (2000, 0)

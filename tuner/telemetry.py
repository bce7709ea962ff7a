"""The telemetry queue: from any thread that measures to the one that folds."""

import threading
from collections import deque
from typing import Protocol

from policies.stats import CycleStats, RequestStats


class Consumer(Protocol):
    """Folds telemetry into counts. Called from one thread only, in the order of arrival."""

    def fold_cycle(self, stats: CycleStats) -> None: ...

    def fold_request(self, stats: RequestStats) -> None: ...


class TelemetryQueue:
    """A bounded `policies.TelemetrySink`. Recording never blocks for long and never raises: what does not fit is
    dropped, newest first, and counted."""

    def __init__(self, limit: int = 65_536) -> None:
        self._limit = limit
        self._events: deque[CycleStats | RequestStats] = deque()
        self._lock = threading.Lock()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Events dropped since the start."""
        return self._dropped

    def record_cycle(self, stats: CycleStats) -> None:
        self._record(stats)

    def record_request(self, stats: RequestStats) -> None:
        self._record(stats)

    def _record(self, stats: CycleStats | RequestStats) -> None:
        with self._lock:
            if len(self._events) >= self._limit:
                self._dropped += 1
            else:
                self._events.append(stats)

    def drain(self, consumers: tuple[Consumer, ...]) -> int:
        """Give everything queued so far to each consumer; returns the number of events."""
        with self._lock:
            events, self._events = self._events, deque()
        for event in events:
            for consumer in consumers:
                if isinstance(event, CycleStats):
                    consumer.fold_cycle(event)
                else:
                    consumer.fold_request(event)
        return len(events)

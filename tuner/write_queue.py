"""The rows that wait for the store: bounded, and what people did outlives what was measured."""

from collections import Counter, deque
from collections.abc import Sequence

from policies.records import Posterior, RequestWindow, Row, SampledDecision, TelemetryWindow


class WriteQueue:
    """Not safe for several threads: its owner holds a lock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: deque[Row] = deque()
        """What people did and what changed: dropped only when nothing else is left to drop."""
        self._telemetry: deque[Row] = deque()
        self._posterior: Posterior | None = None
        self.dropped = 0
        """Rows that were dropped since the start."""

    def __len__(self) -> int:
        """Rows that wait, the posterior not counted."""
        return len(self._kept) + len(self._telemetry)

    def add(self, row: Row) -> None:
        """Queue a row; beyond the limit the oldest telemetry goes first, then the oldest of the rest.

        A newer posterior replaces one that waits.
        """
        if isinstance(row, Posterior):
            self._posterior = row
        else:
            self._part(row).append(row)
            self._trim()

    def take(self, rows: int) -> list[Row]:
        """At most so many rows, in order, telemetry after the rest; the posterior comes on top."""
        taken: list[Row] = []
        for queue in (self._kept, self._telemetry):
            while queue and len(taken) < rows:
                taken.append(queue.popleft())
        if self._posterior is not None:
            taken.append(self._posterior)
            self._posterior = None
        return taken

    def put_back(self, rows: Sequence[Row]) -> None:
        """Return what was taken and not written, to the front."""
        for row in reversed(rows):
            if isinstance(row, Posterior):
                self._posterior = self._posterior or row
            else:
                self._part(row).appendleft(row)
        self._trim()

    def drop_all(self) -> Counter[str]:
        """Drop everything, count it, and say how many rows of each kind it was, the posterior among them."""
        self.dropped += len(self)
        return Counter(type(row).__name__ for row in self.take(len(self)))

    def _part(self, row: Row) -> deque[Row]:
        return self._telemetry if isinstance(row, TelemetryWindow | RequestWindow | SampledDecision) else self._kept

    def _trim(self) -> None:
        while len(self) > self._limit:
            (self._telemetry or self._kept).popleft()
            self.dropped += 1

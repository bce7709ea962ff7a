"""Test doubles, beside the protocols that they stand for."""

from collections.abc import Callable, Sequence

from policies.stats import CycleStats, RequestStats
from policies.types import Context, Decision, RequestFeatures


class ScriptedSource:
    """A `DecisionSource` that answers from a function and remembers what it was asked."""

    def __init__(self, answer: Callable[[Context, RequestFeatures], Decision]) -> None:
        self._answer = answer
        self.asked: list[tuple[Context, RequestFeatures]] = []

    def decide(self, context: Context, features: RequestFeatures) -> Decision:
        self.asked.append((context, features))
        return self._answer(context, features)


class ListSink:
    """A `TelemetrySink` that keeps everything."""

    def __init__(self) -> None:
        self.cycles: list[CycleStats] = []
        self.requests: list[RequestStats] = []

    def record_cycle(self, stats: CycleStats) -> None:
        self.cycles.append(stats)

    def record_request(self, stats: RequestStats) -> None:
        self.requests.append(stats)


class FakeClock:
    """A clock that moves when it is told to; pass it where `time.monotonic` or `time.time` is taken."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def total_emitted(cycles: Sequence[CycleStats]) -> int:
    """Tokens emitted over `cycles`."""
    return sum(sequence.emitted for stats in cycles for sequence in stats.sequences)

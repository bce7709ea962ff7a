"""The cost of a pass as straight pieces over the rows that are added to it."""

from bisect import bisect_right

from policies.cycle_policy import PassCost

Segment = tuple[float, float, float, float]
"""(low, high, seconds, slope): with `low` to `high` added rows a pass takes ``seconds + slope * (added - low)``."""


def segments_from(cost: PassCost, rows: float, most: float, fixed_seconds: float) -> list[Segment]:
    """The pieces over 0 to `most` rows added to `rows`, in rising order; at least one.

    `fixed_seconds` is what does not depend on rows. The pieces repeat `PassCost.seconds`, which looks for its place
    among the knots each time.
    """
    knots, values = cost.token_knots, cost.knot_seconds
    last = len(knots) - 1
    upper = bisect_right(knots, rows)
    segments: list[Segment] = []
    low: float = 0
    if last == 0 or upper == 0:
        low = most if last == 0 else min(most, knots[0] - rows)
        segments.append((0, low, values[0] + fixed_seconds, 0.0))
        upper = 1
    upper = min(upper, last)
    while low < most or not segments:
        left, value = knots[upper - 1], values[upper - 1]
        slope = (values[upper] - value) / (knots[upper] - left)
        high = most if upper == last else min(most, knots[upper] - rows)
        segments.append((low, high, value + slope * (rows + low - left) + fixed_seconds, slope))
        low = high
        upper += 1
    return segments


class Envelope:
    """The largest convex function below the cost of a pass that rows are added to: pieces with rising slopes.

    Where rows are expected and not counted yet, the cost of their expected number is not what they will cost: they come
    to more or fewer, and `policies.allocate` then verifies up to the edge of a step, not just beyond it.
    """

    __slots__ = ("corners", "seconds", "slopes")

    def __init__(self, cost: PassCost, rows: float, most: float) -> None:
        """Of 0 to `most` rows added to `rows`; what depends on neither is left out."""
        self.corners = [0.0]
        """Added rows between which the slopes are: one more than `slopes`."""
        self.seconds: list[float] = []
        """At the corners."""
        self.slopes: list[float] = []
        for low, high, seconds, slope in segments_from(cost, rows, most, 0.0):
            if not self.seconds:
                self.seconds.append(seconds)
            at, value, rise = high, seconds + slope * (high - low), slope
            while self.slopes and self.slopes[-1] >= rise:
                self.slopes.pop()
                self.corners.pop()
                self.seconds.pop()
                rise = (value - self.seconds[-1]) / (at - self.corners[-1])
            self.corners.append(at)
            self.seconds.append(value)
            self.slopes.append(rise)

    def place(self, added: float) -> int:
        """Which piece `added` rows lie on; the last one beyond all."""
        return bisect_right(self.corners, added, 1, len(self.slopes)) - 1

    def on(self, place: int, added: float) -> float:
        """Seconds with `added` rows, which lie on piece `place`."""
        return self.seconds[place] + self.slopes[place] * (added - self.corners[place])

    def at(self, added: float) -> float:
        """Seconds with `added` rows."""
        return self.on(self.place(added), added)

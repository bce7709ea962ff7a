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

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


def seconds_at(segments: list[Segment], added: float) -> float:
    """Seconds with `added` rows, which lie within the segments."""
    for low, high, seconds, slope in segments:
        if added <= high:
            return seconds + slope * (added - low)
    low, _, seconds, slope = segments[-1]
    return seconds + slope * (added - low)


def envelope_of(segments: list[Segment]) -> list[tuple[float, float, float]]:
    """The pieces (low, high, slope) of the largest convex function below the cost, their slopes rising.

    Where tokens rise ever more slowly with rows, what is best at some price of a second lies on it.
    """
    corners = [(0.0, segments[0][2])]
    slopes: list[float] = []
    for low, high, seconds, slope in segments:
        if high <= low:
            continue
        corner = high, seconds + slope * (high - low)
        rise = slope
        while slopes and slopes[-1] >= rise:
            slopes.pop()
            corners.pop()
            rise = (corner[1] - corners[-1][1]) / (corner[0] - corners[-1][0])
        corners.append(corner)
        slopes.append(rise)
    return [(left[0], right[0], slope) for left, right, slope in zip(corners, corners[1:], slopes, strict=False)]

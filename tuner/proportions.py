"""Shares of bad requests: their intervals, and whether they are above a bar or above another share."""

import math

from policies.types import Interval

_Z = 1.959964


def interval(bad: int, count: int) -> Interval:
    """A share with its 95 % interval (Wilson 1927), for `count` above 0."""
    share = bad / count
    centre = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    width = _Z / (1 + _Z**2 / count) * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return Interval(share, max(0.0, centre - width), min(1.0, centre + width))


def chance_above_bar(bad: int, count: int, bar: float) -> float:
    """The chance of so many bad ones or more if each were bad with probability `bar`: the exact binomial tail."""
    if bad == 0 or bar >= 1.0:
        return 1.0
    if bar <= 0.0:
        return 0.0
    return sum(
        math.exp(_choose(count, found) + found * math.log(bar) + (count - found) * math.log1p(-bar))
        for found in range(bad, count + 1)
    )


def chance_above_other(bad: int, count: int, other_bad: int, other_count: int) -> float:
    """The chance of so many bad ones or more among the first if both shares were the same (Fisher's exact test)."""
    all_bad, everything = bad + other_bad, count + other_count
    whole = _choose(everything, all_bad)
    return sum(
        math.exp(_choose(count, found) + _choose(other_count, all_bad - found) - whole)
        for found in range(bad, min(count, all_bad) + 1)
        if all_bad - found <= other_count
    )


def _choose(count: int, taken: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(taken + 1) - math.lgamma(count - taken + 1)

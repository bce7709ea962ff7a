"""Ratios and differences of paired measurements with their 95 % interval."""

import math
import statistics
from collections.abc import Sequence

from policies.types import Interval

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 % for 1, 2, ... degrees of freedom (the standard table); beyond them 2.131 errs on the wide
side."""


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """Geometric mean of the pairs' ratios, with Student's interval on their logarithms.

    Pairs are rounds of the same work under two arms, so that what slows a whole round cancels. One pair gives no
    interval: then it reaches from 0 to infinity.
    """
    logarithms = [math.log(above / below) for above, below in zip(numerators, denominators, strict=True)]
    count = len(logarithms)
    centre = statistics.fmean(logarithms)
    if count < 2:
        return Interval(math.exp(centre), 0.0, math.inf)
    half = T_975[min(count - 2, len(T_975) - 1)] * statistics.stdev(logarithms) / math.sqrt(count)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def paired_difference(minuends: Sequence[float], subtrahends: Sequence[float]) -> Interval:
    """Mean of the pairs' differences, with Student's interval; see `paired_ratio`."""
    differences = [one - other for one, other in zip(minuends, subtrahends, strict=True)]
    count = len(differences)
    centre = statistics.fmean(differences)
    if count < 2:
        return Interval(centre, -math.inf, math.inf)
    half = T_975[min(count - 2, len(T_975) - 1)] * statistics.stdev(differences) / math.sqrt(count)
    return Interval(centre, centre - half, centre + half)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie, by linear interpolation; `values` is not empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

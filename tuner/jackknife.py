"""A 95 % interval for a ratio from its values with one cluster left out at a time.

The delete-one jackknife of the logarithm: it takes in whatever the estimate is made of (means by load, slopes, ratios
of ratios), it needs no formula for any of it, and with few or unequal clusters it errs to the wide side where the
plain sandwich errs to the narrow one (Efron and Stein 1981; MacKinnon, Nielsen and Webb 2023, who call it CV3).
"""

import math
from collections.abc import Sequence

from policies.types import Interval

_LEAST_FREEDOM = 2.0
"""With less, Student's t is so wide that the interval says nothing."""


def freedom(weights: Sequence[float]) -> float:
    """Degrees of freedom of a variance estimated from clusters that weigh so much; unequal ones leave fewer."""
    squares = sum(weight * weight for weight in weights)
    return sum(weights) ** 2 / squares - 1.0 if squares > 0.0 else 0.0


def variance(estimate: float, left_out: Sequence[float]) -> float:
    """Of the logarithm, from the values without each cluster in turn."""
    count = len(left_out)
    return (count - 1) / count * sum(math.log(value / estimate) ** 2 for value in left_out)


def welch(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    """Degrees of freedom of a sum of variances (Welch 1947)."""
    below = sum(each**2 / max(freedom, 0.1) for each, freedom in zip(variances, freedoms, strict=True))
    return sum(variances) ** 2 / below if below > 0.0 else math.inf


def ratio_interval(estimate: float, left_out: Sequence[float], freedom: float) -> Interval | None:
    """`estimate` with its interval, which is symmetric in the logarithm, so that it stays positive.

    Args:
        estimate: over all clusters, positive.
        left_out: the same without each of the clusters in turn, positive.
        freedom: degrees of freedom.

    Returns:
        None while there are too few clusters for an interval that means something.
    """
    if freedom < _LEAST_FREEDOM:
        return None
    width = student_t(freedom) * math.sqrt(variance(estimate, left_out))
    return Interval(estimate, estimate * math.exp(-width), estimate * math.exp(width))


def student_t(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, by its expansion around the normal one (Abramowitz and Stegun 26.7.5)."""
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3

"""Whether a series of residuals moved: a generalised likelihood ratio test (Willsky and Jones 1976).

The statistic of a split is n1 n2 / (n1 + n2) (m1 - m2)^2 / (2 sigma^2), its bar log(3 t^1.5 / delta) (Kaufmann and
Koolen 2021). The noise is taken from how much neighbours in the series differ, requests weighted: stretches of time
vary by more than their requests do, and what varies all the time is no change.
"""

import math

import numpy as np

from tuner.fleet.pools.rows import Floats

_FALSE_ALARMS = 0.001
LEAST_CHANGE = math.log(1.1)
"""Smaller ones are left to what is forgotten with time."""
_LEAST_REQUESTS = 4.0
_MEDIAN_OF_CHI_SQUARED = 0.4549


def changed_at(means: Floats, requests: Floats, noise: float) -> int | None:
    """The place in the series at which it last moved to where it is; None if it did not.

    Args:
        means: mean residual of each stretch, in order of time.
        requests: on which each rests.
        noise: variance of one request's residual, at least.
    """
    noise = max(noise, _noise(means, requests))
    first: int | None = None
    while True:
        split = _split(means[first or 0 :], requests[first or 0 :], noise)
        if split is None:
            return first
        first = (first or 0) + split


def _split(means: Floats, requests: Floats, noise: float) -> int | None:
    if len(means) < 2:
        return None
    counts, sums = np.cumsum(requests), np.cumsum(requests * means)
    before, after = counts[:-1], counts[-1] - counts[:-1]
    usable = (before >= _LEAST_REQUESTS) & (after >= _LEAST_REQUESTS)
    if not usable.any():
        return None
    gap = sums[:-1] / np.maximum(before, 1e-9) - (sums[-1] - sums[:-1]) / np.maximum(after, 1e-9)
    statistic = np.where(usable, before * after / counts[-1] * gap**2 / (2.0 * noise), 0.0)
    best = int(np.argmax(statistic))
    bar = math.log(3.0 * max(float(counts[-1]), 1.0) ** 1.5 / _FALSE_ALARMS)
    return best + 1 if statistic[best] > bar and abs(gap[best]) > LEAST_CHANGE else None


def _noise(means: Floats, requests: Floats) -> float:
    """Variance of one request, as the steps of the series show it; their median, so that one jump does not count."""
    if len(means) < 4:
        return 0.0
    weight = requests[1:] * requests[:-1] / np.maximum(requests[1:] + requests[:-1], 1e-9)
    return float(np.median(np.diff(means) ** 2 * weight)) / _MEDIAN_OF_CHI_SQUARED

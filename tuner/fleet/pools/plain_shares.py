"""How many sessions are held plain, so that the baseline is measured and not remembered.

The share falls with the variance of the gain, from where it starts to its floor. A context of which little is known
relies on its route, and a route on everything, each a little less surely.
"""

import math
from collections.abc import Callable, Mapping

from policies.ladder import ANY
from policies.types import Interval, Policy
from tuner.known_contexts import Key

_TARGET_ERROR = 0.02
"""Standard error of a gain's logarithm down to which the share stays as it starts."""
_BORROWED = 1.5
"""By so much a gain is less sure where only that of the route, or of everything, is known."""


def plain_shares(
    start: float, floor: float, policies: Mapping[Key, Policy], route_gain: Callable[[str], Interval | None]
) -> tuple[dict[Key, float], float]:
    """By context, and the share of contexts that are new; `route_gain` is asked with ``*`` for everything."""

    def share(error: float) -> float:
        return max(start * min(1.0, (error / _TARGET_ERROR) ** 2), min(floor, start))

    of_all = _BORROWED * _error(route_gain(ANY))
    shares = {}
    for key, policy in policies.items():
        of_route = min(_BORROWED * _error(route_gain(key[0])), _BORROWED * of_all)
        shares[key] = share(min(_error(policy.evidence.speedup), of_route))
    return shares, share(of_all)


def _error(gain: Interval | None) -> float:
    """The standard error of a gain's logarithm; infinite while it is unknown."""
    return math.inf if gain is None else math.log(gain.high / gain.low) / (2 * 1.96)

"""Which drafters are tried on requests: each as often as it may be the best one, as far as anything is known.

That is Thompson sampling (1933) with the chances worked out before the requests come, so that each decision can say
with what probability it was made. What is known of a drafter's rate is taken as normal, with the interval of its curve.
A drafter of which enough is known is drawn always or never, so trials end by themselves.
"""

import random

from tuner.choice import Menu

_DRAWS = 24
_LEAST = 0.08
"""A drafter that is the best in a smaller share of draws is not tried."""
_WIDTH = 2 * 1.959964
"""Standard deviations in a 95 % interval."""
_SAME = 0.005
"""A drafter must be better than the one that serves by this share to be the best of a draw."""


def trials(menu: Menu, place: int, serving: str, generator: random.Random) -> tuple[tuple[str, float], ...]:
    """(drafter, probability) of those that may be the best at the load in `place`; nothing where one is known to be."""
    known = []
    for drafter, bounds in menu.bounds.items():
        low, high = bounds[place]
        bonus = 1.0 + _SAME if drafter == serving else 1.0
        known.append((drafter, menu.worth[drafter][place] * bonus, (high - low) / _WIDTH, high))
    floor = max((mean for _, mean, _, _ in known), default=0.0)
    contenders = [(drafter, mean, spread) for drafter, mean, spread, high in known if high >= floor]
    if len(contenders) < 2:
        return ()
    wins = dict.fromkeys((drafter for drafter, _, _ in contenders), 0)
    for _ in range(_DRAWS):
        wins[max(contenders, key=lambda one: generator.gauss(one[1], one[2]))[0]] += 1
    kept = {drafter: count for drafter, count in wins.items() if count >= _LEAST * _DRAWS}
    if len(kept) < 2:
        return ()
    total = sum(kept.values())
    return tuple((drafter, count / total) for drafter, count in kept.items())

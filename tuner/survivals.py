"""What cycles read of the curves: none for contexts in which an order forbids speculation."""

from collections.abc import Iterable, Mapping

from policies.cycle_policy import Survival
from policies.ladder import kill_for, pin_for
from policies.types import PLAIN
from tuner.acceptance import Curve
from tuner.orders import Orders
from tuner.policy_book import Key

_NOTHING = Survival(())


def published_survivals(
    drafter: str, curves: Mapping[Key, Curve], contexts: Iterable[Key], orders: Orders, now: float
) -> dict[tuple[str, str, str], Survival]:
    """`CyclePolicy.survivals`: the curves, but nothing in those of `contexts` that are killed or pinned plain.

    So running requests stop in the cycle that sees the order first. Those that an earlier pin forces are not weighed:
    only a kill switch, through `CyclePolicy.kill` and `killed_routes`, stops them.
    """
    survivals = {(drafter, *key): rounded(curve) for key, curve in curves.items()}
    for route, language in contexts:
        pin = pin_for(orders.pins, route, language, now)
        pinned_plain = pin is not None and (pin.block_length == 0 or pin.drafter == PLAIN)
        if pinned_plain or kill_for(orders.kill_switches, route, now) is not None:
            survivals[drafter, route, language] = _NOTHING
    return survivals


def rounded(curve: Curve) -> Survival:
    """Rounded, so that a change too small to matter is none."""
    return Survival(tuple(tuple(round(value, 4) for value in row) for row in curve.survival.by_confidence))

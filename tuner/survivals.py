"""What cycles read of the curves, kept as it is until it changed by enough to matter: it crosses to another process."""

from collections.abc import Iterable, Sequence

from policies.cycle_policy import DraftCost, Outlook, PassCost, Survival
from policies.ladder import kill_for, pin_for
from policies.types import PLAIN
from tuner.acceptance import Curve
from tuner.known_contexts import Key
from tuner.orders import Orders

NOTHING = Survival(())
NO_OUTLOOK = Outlook((), ())
_MATTERS = 0.004
"""Of a survival."""
_COST_MATTERS = 0.003
"""Of a predicted time, relative."""
_MANY, _CONTEXT = 16, 256
"""Sequences, and tokens of context of each, for which times are compared."""


class Published:
    """The survival and outlook of each drafter and context as they were last published; not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], tuple[Curve, Survival, Outlook]] = {}

    def of(self, drafter: str, key: Key, curve: Curve) -> tuple[Survival, Outlook]:
        """Those of `curve`, or those published before if they are near enough."""
        name = (drafter, *key)
        known = self._known.get(name)
        if known is not None and known[0] is curve:
            return known[1], known[2]
        survival, outlook = rounded(curve), _rounded_outlook(curve)
        if known is not None:
            if _near_rows(known[1].by_confidence, survival.by_confidence):
                survival = known[1]
            if _near(known[2].survival, outlook.survival) and _near(known[2].offered, outlook.offered):
                outlook = known[2]
        self._known[name] = curve, survival, outlook
        return survival, outlook


def barred(keys: Iterable[Key], orders: Orders, now: float) -> set[Key]:
    """The contexts that are killed or pinned plain at `now` (Unix seconds).

    Cycles read nothing of their curves, so running requests stop in the cycle that sees the order first. Those that an
    earlier pin forces are not weighed: only a kill switch, through `CyclePolicy.kill` and `killed_routes`, stops them.
    """
    if not orders.pins and not orders.kill_switches:
        return set()
    found: set[Key] = set()
    for route, language in keys:
        pin = pin_for(orders.pins, route, language, now)
        pinned_plain = pin is not None and (pin.block_length == 0 or pin.drafter == PLAIN)
        if pinned_plain or kill_for(orders.kill_switches, route, now) is not None:
            found.add((route, language))
    return found


def rounded(curve: Curve) -> Survival:
    """Rounded, so that a change too small to matter is none."""
    return Survival(tuple(tuple(round(value, 4) for value in row) for row in curve.survival.by_confidence))


def _rounded_outlook(curve: Curve) -> Outlook:
    outlook = curve.outlook()
    return Outlook(
        tuple(round(value, 4) for value in outlook.survival), tuple(round(value, 4) for value in outlook.offered)
    )


def same_drafting(left: DraftCost, right: DraftCost, cycle_seconds: float) -> bool:
    """Whether both predict the same times, within `_COST_MATTERS` of a cycle, for one sequence and for many."""
    return all(
        abs(left.seconds(*call) - right.seconds(*call)) <= _COST_MATTERS * cycle_seconds
        for call in ((1, 1, 1), (1, 8, 8), (_MANY, 1, _MANY), (_MANY, 8, 8 * _MANY))
    )


def _near_rows(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> bool:
    return len(left) == len(right) and all(_near(*rows) for rows in zip(left, right, strict=True))


def _near(left: Sequence[float], right: Sequence[float]) -> bool:
    return len(left) == len(right) and all(abs(a - b) < _MATTERS for a, b in zip(left, right, strict=True))


def same_cost(left: PassCost, right: PassCost) -> bool:
    """Whether both predict the same times, within `_COST_MATTERS`, where the tables have knots."""
    for tokens in dict.fromkeys((*left.token_knots, *right.token_knots)):
        for load in {1, min(tokens, _MANY)}:
            seconds = left.seconds(tokens, load, load * _CONTEXT)
            if abs(right.seconds(tokens, load, load * _CONTEXT) - seconds) > _COST_MATTERS * seconds:
                return False
    return True

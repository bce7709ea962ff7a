"""What cycles read of the curves, kept as it is until it changed by enough to matter: it crosses to another process."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
_MANY, _CONTEXT = 16, 256
"""Sequences, and tokens of context of each, for which times are compared."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What cycles read of one curve."""

    survival: Survival
    outlook: Outlook
    emitted: tuple[float, ...]
    """Of the curve that `outlook` was made of."""


class Published:
    """What is read of each drafter and context, as it was last published; not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], tuple[Curve, Reading]] = {}

    def of(self, drafter: str, key: Key, curve: Curve) -> Reading:
        """That of `curve`, or the parts published before that are near enough."""
        name = (drafter, *key)
        known = self._known.get(name)
        if known is not None and known[0] is curve:
            return known[1]
        reading = _read(curve, None if known is None else known[1])
        self._known[name] = curve, reading
        return reading


def _read(curve: Curve, before: Reading | None) -> Reading:
    if before is None:
        return Reading(curve.survival, curve.outlook(), curve.emitted)
    outlook, emitted = before.outlook, before.emitted
    survival = _with_near(curve.survival, before.survival)
    # An outlook's survivals come no further apart than the steps of what is emitted: pooling only averages them.
    if not (_near(outlook.offered, curve.offered) and _near(_steps(emitted), _steps(curve.emitted))):
        outlook, emitted = curve.outlook(), curve.emitted
    if survival is before.survival and outlook is before.outlook:
        return before
    return Reading(survival, outlook, emitted)


def _steps(emitted: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(emitted)]


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


def same_drafting(left: DraftCost, right: DraftCost, cycle_seconds: float, share: float) -> bool:
    """Whether both predict the same times, within `share` of a cycle with them, for one sequence and many."""
    return all(
        abs(left.seconds(*call) - right.seconds(*call)) <= share * (cycle_seconds + left.seconds(*call))
        for call in ((1, 1, 1), (1, 8, 8), (_MANY, 1, _MANY), (_MANY, 8, 8 * _MANY))
    )


def _with_near(new: Survival, before: Survival) -> Survival:
    """`new` with the rows published before where they are near enough; `before` where all of them are."""
    rows = before.by_confidence
    kept = [row if _near(row, other) else other for row, other in zip(rows, new.by_confidence, strict=False)]
    if len(rows) == len(new.by_confidence) and all(one is other for one, other in zip(kept, rows, strict=True)):
        return before
    return Survival((*kept, *new.by_confidence[len(kept) :]))


def _near(left: Sequence[float], right: Sequence[float]) -> bool:
    if len(left) != len(right):
        return False
    return all(-_MATTERS < one - other < _MATTERS for one, other in zip(left, right, strict=True))


def same_cost(left: PassCost, right: PassCost, share: float) -> bool:
    """Whether both have the same knots, and predict the same times there within `share`."""
    if left.token_knots != right.token_knots:
        return False
    own = left.sequence_seconds + _CONTEXT * left.kv_token_seconds
    other = right.sequence_seconds + _CONTEXT * right.kv_token_seconds
    for tokens, one, two in zip(left.token_knots, left.knot_seconds, right.knot_seconds, strict=True):
        for load in (1, min(tokens, _MANY)):
            seconds = one + load * own
            if abs(two + load * other - seconds) > share * seconds:
                return False
    return True

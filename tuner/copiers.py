"""Which drafter proposes first in a context, by copying, and up to which load that is worth its time."""

from collections.abc import Iterable, Mapping

from policies.copying import CopyingChoice
from policies.cycle_policy import Copier, DraftCost, Outlook, PassCost, Survival
from policies.types import MAX_BLOCK_LENGTH
from tuner.acceptance import Curve
from tuner.choice import Worth
from tuner.known_contexts import Key
from tuner.survivals import Published, Reading

_NEXT_TO_NOTHING = 0.03
"""A drafter copies if a block takes no more than this share of a plain cycle of one sequence."""
_OTHERS_WAIT = 4.0
"""What a proposal's own time counts for where others run, most of whom have nothing to copy and may not wait long."""
_CONTEXT = 256


def copying(names: Iterable[str], cost: PassCost, draft_costs: Mapping[str, DraftCost]) -> frozenset[str]:
    """Those of `names` that take so little time that they can only copy."""
    limit = _NEXT_TO_NOTHING * cost.seconds(1, 1, _CONTEXT)
    return frozenset(
        name
        for name in names
        if name in draft_costs and draft_costs[name].seconds(1, MAX_BLOCK_LENGTH, MAX_BLOCK_LENGTH) <= limit
    )


class Copiers:
    """Makes them, and keeps each while what it rests on stays; not thread-safe."""

    def __init__(self, published: Published) -> None:
        self._published = published
        self._outlooks: dict[tuple[str, Key], tuple[Outlook, ...]] = {}
        self._known: dict[Key, tuple[_Basis, Copier | None]] = {}

    def of(self, key: Key, curves: Mapping[str, Curve], worth: Worth) -> Copier | None:
        """The copier of a context; None where none is worth its time at any load, or there is nothing beside it.

        `curves` are those of this context, by drafter; only those that may be weighed.
        """
        basis = worth, {name: self._published.of(name, key, curve) for name, curve in curves.items()}
        known = self._known.get(key)
        if known is None or known[0] != basis:
            known = self._known[key] = basis, self._made(key, curves, basis)
        return known[1]

    def _made(self, key: Key, curves: Mapping[str, Curve], basis: "_Basis") -> Copier | None:
        worth, readings = basis
        draft_costs = worth.draft_costs
        before = copying(curves, worth.cost, draft_costs)
        others = [name for name in curves if name not in before]
        if not others:
            return None
        for load in reversed(worth.loads):
            choice = CopyingChoice(worth.cost, load, round(worth.kv_each * load))
            other = max(
                choice.other(readings[name].outlook, MAX_BLOCK_LENGTH, draft_costs.get(name)) for name in others
            )
            gains = {
                name: sum(
                    share * max(0.0, choice.copied(outlook, MAX_BLOCK_LENGTH) - max(other, 0.0))
                    for share, outlook in zip(
                        curves[name].shares, self._outlooks_of(name, key, readings[name].survival), strict=False
                    )
                )
                - (_OTHERS_WAIT if load > 1 else 1.0) * choice.price(draft_costs[name])
                for name in before
            }
            best = max(sorted(gains), key=gains.__getitem__, default="")
            if best and gains[best] > 0.0:
                return Copier(best, load, self._outlooks_of(best, key, readings[best].survival))
        return None

    def _outlooks_of(self, name: str, key: Key, survival: Survival) -> tuple[Outlook, ...]:
        known = self._outlooks.get((name, key), ())
        if tuple(one.survival for one in known) != survival.by_confidence:
            of_row = {id(one.survival): one for one in known}
            known = self._outlooks[name, key] = tuple(
                of_row.get(id(row)) or Outlook(row, (1.0,) * len(row)) for row in survival.by_confidence
            )
        return known


_Basis = tuple[Worth, Mapping[str, Reading]]
"""What a copier follows from."""

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
        self._outlooks: dict[tuple[str, Key], tuple[Survival, tuple[Outlook, ...]]] = {}
        self._choices: tuple[Worth | None, list[tuple[int, CopyingChoice]]] = None, []
        """At each load from the largest on."""
        self._known: dict[Key, tuple[_Basis, Copier | None]] = {}

    def of(self, key: Key, curves: Mapping[str, Curve], worth: Worth) -> Copier | None:
        """The copier of a context; None where none is worth its time at any load, or there is nothing beside it.

        `curves` are those of this context, by drafter; only those that may be weighed.
        """
        basis = worth, {name: self._published.of(name, key, curve) for name, curve in curves.items()}
        known = self._known.get(key)
        if known is None or known[0][0] is not worth or not _are_same(known[0][1], basis[1]):
            known = self._known[key] = basis, self._made(key, curves, basis)
        return known[1]

    def _made(self, key: Key, curves: Mapping[str, Curve], basis: "_Basis") -> Copier | None:
        worth, readings = basis
        draft_costs = worth.draft_costs
        before = copying(curves, worth.cost, draft_costs)
        others = [name for name in curves if name not in before]
        if not others:
            return None
        shares = {
            name: [*zip(curves[name].shares, self._outlooks_of(name, key, readings[name].survival), strict=False)]
            for name in sorted(before)
        }
        for load, choice in self._choices_of(worth):
            other = max(
                0.0,
                *(choice.other(readings[name].outlook, MAX_BLOCK_LENGTH, draft_costs.get(name)) for name in others),
            )
            waits = _OTHERS_WAIT if load > 1 else 1.0
            gains = {
                name: sum([share * max(0.0, choice.copied(outlook, MAX_BLOCK_LENGTH) - other) for share, outlook in of])
                - waits * choice.price(draft_costs[name])
                for name, of in shares.items()
            }
            best = max(gains, key=gains.__getitem__, default="")
            if best and gains[best] > 0.0:
                return Copier(best, load, self._outlooks_of(best, key, readings[best].survival))
        return None

    def _choices_of(self, worth: Worth) -> list[tuple[int, CopyingChoice]]:
        if self._choices[0] is not worth:
            choices = [
                (load, CopyingChoice(worth.cost, load, round(worth.kv_each * load))) for load in reversed(worth.loads)
            ]
            self._choices = worth, choices
        return self._choices[1]

    def _outlooks_of(self, name: str, key: Key, survival: Survival) -> tuple[Outlook, ...]:
        known = self._outlooks.get((name, key))
        if known is None or known[0] is not survival:
            of_row = {} if known is None else {id(one.survival): one for one in known[1]}
            outlooks = tuple([of_row.get(id(row)) or Outlook(row, (1.0,) * len(row)) for row in survival.by_confidence])
            known = self._outlooks[name, key] = survival, outlooks
        return known[1]


def _are_same(left: Mapping[str, Reading], right: Mapping[str, Reading]) -> bool:
    return left.keys() == right.keys() and all(left[name] is reading for name, reading in right.items())


_Basis = tuple[Worth, Mapping[str, Reading]]
"""What a copier follows from."""

"""Which drafter serves a context at each load, and how far it drafts there.

For every drafter the expected tokens per second are known at every block length (`tuner.cost.rates`), drafting priced.
The drafter with the most serves, but a challenger must beat the one that serves by `_BETTER`: two drafters that are
equally good would take turns for ever. A block length stays while it is within `_STAYS` of the best one.

A drafter is named also at loads at which no block length beats plain: cycles weigh each proposal by its confidence, and
one that is surer than usual may pay where the usual one does not.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from policies.cycle_policy import DraftCost, PassCost
from policies.types import PLAIN_ARM, Arm, LoadStep
from tuner.acceptance import Curve
from tuner.cost.rates import preceded, profiles, rates
from tuner.known_contexts import Key

_BETTER = 0.01
_NEAR = 0.98
_STAYS = 0.96


@dataclass(frozen=True, slots=True)
class Option:
    """One drafter at one load; tokens per second."""

    best: float
    """When only what is likely enough is verified."""
    fixed: tuple[float, ...]
    """By block length, when all that is offered is verified; the first is plain."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What turns curves into tokens per second."""

    cap: int
    """Largest block length."""
    loads: tuple[int, ...]
    """At which menus are made."""
    cost: PassCost
    draft_costs: Mapping[str, DraftCost]
    """By drafter; one without an entry is free."""
    kv_each: float
    """Mean context of a sequence, in tokens."""


@dataclass(frozen=True, slots=True)
class Menu:
    """What may be chosen in one context; not edited once it is made."""

    loads: tuple[int, ...]
    options: dict[str, tuple[Option, ...]]
    """By drafter, at each of `loads`."""
    worth: dict[str, tuple[float, ...]]
    """By drafter, at each of `loads`: its tokens per second over those of plain, if all that runs is alike."""
    bounds: dict[str, tuple[tuple[float, float], ...]]
    """By drafter, at each of `loads`: `worth` at the lower and the upper end of what is known."""
    first: dict[str, str] = field(default_factory=dict)
    """By drafter: the one that proposes before it by copying, and is in its figures; without an entry it is alone."""

    def place(self, load: int) -> int:
        """Where the largest of `loads` that is not above `load` stands."""
        return place_of(load, self.loads)

    def plain(self, place: int) -> float:
        """Tokens per second of plain."""
        return next(iter(self.options.values()))[place].fixed[0]

    def gain(self, drafter: str, load: int) -> float:
        """Predicted tokens per second over those of plain."""
        place = self.place(load)
        return self.options[drafter][place].best / self.plain(place)


def menus(
    keys: Sequence[Key],
    curves: Mapping[str, Mapping[Key, Curve]],
    worth: Worth,
    copied: Mapping[Key, Curve],
    copying: Collection[str],
) -> dict[Key, Menu]:
    """The menus of `keys`, which have a curve for each drafter of `curves`.

    `copied` has the curve of what proposes first in a context. There a drafter that is not among the `copying` ones is
    worth what both bring together.
    """
    if not keys or not curves:
        return {key: Menu(worth.loads, {}, {}, {}) for key in keys}
    # Of drafters that are worth the same, the one behind a copier can do more: it is looked at first.
    pairs = [(drafter, key) for drafter in sorted(curves, key=lambda name: name in copying) for key in keys]
    rows = {id(curves[drafter][key]): row for row, (drafter, key) in enumerate(pairs)}
    copiers = [
        row if drafter in copying or key not in copied else rows[id(copied[key])]
        for row, (drafter, key) in enumerate(pairs)
    ]
    found = preceded(
        profiles([curves[drafter][key] for drafter, key in pairs], worth.cap),
        [None if drafter in copying else copied.get(key) for drafter, key in pairs],
    )
    drafting = [worth.draft_costs.get(drafter) for drafter, _ in pairs]
    each = rates(found, drafting, worth.cost, worth.loads, worth.kv_each)
    best = each.max(axis=(3, 4))
    # With blocks of 0 of its own a drafter does what the copier before it does alone.
    best = np.maximum(best, best[:, copiers])
    by_place = zip(
        best[:, :, 0].T.tolist(),
        each[:, :, 0, 0].swapaxes(0, 1).tolist(),
        (best / each[..., 0, 0]).transpose(1, 2, 0).tolist(),
        strict=True,
    )
    made: dict[Key, Menu] = {key: Menu(worth.loads, {}, {}, {}) for key in keys}
    for row, ((drafter, key), (most, fixed, (mean, low, high))) in enumerate(zip(pairs, by_place, strict=True)):
        menu = made[key]
        if copiers[row] != row:
            menu.first[drafter] = pairs[copiers[row]][0]
        menu.options[drafter] = tuple(map(Option, most, map(tuple, fixed)))
        menu.worth[drafter] = tuple(mean)
        menu.bounds[drafter] = tuple(zip(low, high, strict=True))
    return made


def place_of(load: int, loads: Sequence[int]) -> int:
    """Where the largest of `loads`, which rise, that is not above `load` stands; the first if all are."""
    return max(bisect_right(loads, load) - 1, 0)


def choose(menu: Menu, previous: Arm | None, load: int, margin: float) -> Arm:
    """The arm for a context: at each load the drafter and its block length.

    `previous` is the arm in force; it stays as it is where nothing is better by enough. `load` is served now.
    """
    if not menu.options:
        return PLAIN_ARM
    drafters = [_drafter(menu, place, previous) for place in range(len(menu.loads))]
    lengths = [_length(menu, place, drafters[place], previous, margin) for place in range(len(menu.loads))]
    if previous is not None and all(
        drafter == previous.drafter_at(at) and _stays(menu, place, drafter, previous, margin)
        for place, (at, drafter) in enumerate(zip(menu.loads, drafters, strict=True))
    ):
        lengths = [previous.block_length(at) for at in menu.loads]
    return Arm(drafters[menu.place(load)], _steps(menu.loads, drafters, lengths))


def _drafter(menu: Menu, place: int, previous: Arm | None) -> str:
    best = max(menu.worth, key=lambda drafter: menu.worth[drafter][place])
    if previous is None:
        return best
    serving = previous.drafter_at(menu.loads[place])
    if serving not in menu.options:
        return best
    return best if menu.worth[best][place] > (1.0 + _BETTER) * menu.worth[serving][place] else serving


def _length(menu: Menu, place: int, drafter: str, previous: Arm | None, margin: float) -> int:
    """A block length near the best at this load, the one of the load below if it will do; 0 where plain wins."""
    fixed = menu.options[drafter][place].fixed
    best = max(range(len(fixed)), key=fixed.__getitem__)
    if fixed[best] <= _needed(menu, place, previous, margin):
        return 0
    return next(length for length in range(len(fixed)) if fixed[length] >= _NEAR * fixed[best])


def _stays(menu: Menu, place: int, drafter: str, previous: Arm, margin: float) -> bool:
    """Whether the length that serves is on or off rightly, and near enough to the best."""
    fixed = menu.options[drafter][place].fixed
    serving = min(previous.block_length(menu.loads[place]), len(fixed) - 1)
    best = max(fixed)
    if best <= _needed(menu, place, previous, margin):
        return serving == 0
    return serving > 0 and fixed[serving] >= _STAYS * best


def _needed(menu: Menu, place: int, previous: Arm | None, margin: float) -> float:
    """Speculation goes on at a load when it gains more than `margin`, and off again when it gains less than half."""
    serving = previous is not None and previous.block_length(menu.loads[place]) > 0
    return menu.plain(place) * (1.0 + (margin / 2 if serving else margin))


def _steps(loads: Sequence[int], drafters: Sequence[str], lengths: Sequence[int]) -> tuple[LoadStep, ...]:
    """Each load's choice holds up to the next load."""
    steps: list[LoadStep] = []
    for place, (load, drafter, length) in enumerate(zip(loads, drafters, lengths, strict=True)):
        until = loads[place + 1] - 1 if place + 1 < len(loads) else load
        if steps and (steps[-1].block_length, steps[-1].drafter) == (length, drafter):
            steps[-1] = LoadStep(steps[-1].load_low, until, length, drafter)
        else:
            steps.append(LoadStep(load, until, length, drafter))
    return tuple(steps)


def charted_loads(slots: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... and `slots`."""
    loads = {1, slots}
    for exponent in range(slots.bit_length()):
        loads.update(load for load in (1 << exponent, 3 << exponent) if load <= slots)
    return tuple(sorted(loads))

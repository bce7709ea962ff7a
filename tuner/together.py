"""Which drafters that take steps are used together at each load.

A menu says what a drafter is worth if all that runs is alike. But every drafter in use takes its own call and steps in
a cycle, however few sequences it serves: the second one has to bring its users more than its steps cost everybody. And
who is not served by it waits for it, which `max_neighbour_slowdown` allows in some cycles only. So the traffic of late
is served in thought by every set of such drafters, each context by the best of the set or by what copies, and the best
set is kept. A drafter outside of it is worth less by what its steps would cost the others. Where a set is in use,
contexts that would do with copying alone join it: what is copied goes first all the same, and a sequence that could
draft with the others does not wait for them.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.choice import Menu, Worth
from tuner.known_contexts import Key

_BETTER = 0.01
"""By which another set must be better."""
_JOINS = 0.06
"""Worth by which copying alone must be better than with a drafter of the set behind it."""
_MANY = 4
"""Of more drafters than this, sets of one, of two and of all are looked at."""

Floats = NDArray[np.float64]
Penalties = Mapping[str, tuple[float, ...]]
"""By drafter, at each load: to be taken from its worth."""


class Together:
    """The sets in use; not thread-safe."""

    def __init__(self, max_neighbour_slowdown: float) -> None:
        self._spare = max_neighbour_slowdown - 1.0
        """Of a plain cycle, what a sequence may wait for others in each on average."""
        self._sets: dict[int, frozenset[str]] = {}
        """By load."""
        self._penalties: Penalties = {}

    def penalties(
        self, menus: Mapping[Key, Menu], traffic: Mapping[Key, float], worth: Worth, stepping: Sequence[str]
    ) -> Penalties:
        """What drafters are worth less since others are in use; the same object as long as nothing of it changes.

        Args:
            menus: of all contexts.
            traffic: by context, how many of the sequences that ran lately were of it, in any unit.
            stepping: the drafters that take steps and are known.
        """
        keys = [key for key, weight in traffic.items() if weight > 0.0 and key in menus]
        if not stepping or not keys:
            return self._take({})
        weights = np.array([traffic[key] for key in keys])
        weights /= weights.sum()
        others = [name for name in menus[keys[0]].worth if name not in stepping]
        worths = np.array([[menus[key].worth[name] for name in stepping] for key in keys])
        nothing = (1.0,) * len(worth.loads)
        of_copying = np.array([[nothing, *(menus[key].worth[name] for name in others)] for key in keys]).max(axis=1)
        found: dict[str, list[float]] = {name: [] for name in (*stepping, *others)}
        for place, load in enumerate(worth.loads):
            reached, copied = worths[:, :, place], of_copying[:, place]
            spent = np.array([_spent(name, place, load, keys, menus, worth) for name in stepping])
            values = {
                names: self._value(weights, reached, copied, spent, load, [stepping.index(name) for name in names])
                for names in _sets(stepping)
            }
            best = max(values, key=values.__getitem__)
            now = self._sets.get(load)
            if now is None or now not in values or values[best] > (1.0 + _BETTER) * values[now]:
                self._sets[load] = now = best
            for index, name in enumerate(stepping):
                found[name].append(0.0 if name in now else round(float(spent[index]) * (load - 1), 2))
            for name in others:
                found[name].append(_JOINS if now else 0.0)
        return self._take({name: tuple(each) for name, each in found.items() if any(each)})

    def _value(
        self,
        weights: Floats,
        reached: Floats,
        copied: Floats,
        spent: Floats,
        load: int,
        chosen: Sequence[int],
    ) -> float:
        """Tokens per second over those of plain, about, of traffic that a set of drafters serves.

        Worth counts the steps of a drafter for as large a share of the cycle as its users are; they take the whole of
        it wherever there is one of them. Where somebody is served by another one, it drafts in as many cycles as that
        one may wait.

        Args:
            weights: (contexts,), their shares of what runs.
            reached: (contexts, drafters), worth; `copied`: (contexts,), of copying alone.
            spent: (drafters,), seconds of a call and its steps over those of a plain cycle.
            chosen: places of the set's drafters.
        """
        if not chosen:
            return float(weights @ copied)
        options = reached[:, list(chosen)]
        best = options.argmax(axis=1)
        gains = np.maximum(options.max(axis=1) - copied, 0.0)
        total, surplus, length = float(weights @ copied), 0.0, 1.0
        for index, drafter in enumerate(chosen):
            served = best == index
            share = float(weights[served].sum())
            alone = share ** (load - 1)
            allowed = alone + (1.0 - alone) * min(1.0, self._spare / max(float(spent[drafter]), 1e-9))
            total += allowed * float(weights[served] @ gains[served])
            used = float(weights[served & (gains > 0.0)].sum())
            present = allowed * (1.0 - (1.0 - used) ** load)
            surplus += max(0.0, present - allowed * used) * float(spent[drafter])
            length += present * float(spent[drafter])
        return total / (1.0 + surplus / length)

    def _take(self, penalties: Penalties) -> Penalties:
        if penalties != self._penalties:
            self._penalties = penalties
        return self._penalties


def less(menu: Menu, penalties: Penalties) -> Menu:
    """A menu with penalties taken from what drafters are worth."""
    if not any(name in menu.worth for name in penalties):
        return menu
    nothing = (0.0,) * len(menu.loads)
    return Menu(
        menu.loads,
        menu.options,
        {
            name: tuple([value - lost for value, lost in zip(values, penalties.get(name, nothing), strict=True)])
            for name, values in menu.worth.items()
        },
        {
            name: tuple(
                [
                    (low - lost, high - lost)
                    for (low, high), lost in zip(ends, penalties.get(name, nothing), strict=True)
                ]
            )
            for name, ends in menu.bounds.items()
        },
        menu.first,
    )


def _sets(names: Sequence[str]) -> Iterator[frozenset[str]]:
    sizes: Collection[int] = range(len(names) + 1) if len(names) <= _MANY else (0, 1, 2, len(names))
    for size in sizes:
        yield from map(frozenset, itertools.combinations(names, size))


def _spent(name: str, place: int, load: int, keys: Sequence[Key], menus: Mapping[Key, Menu], worth: Worth) -> float:
    """Seconds of a call with the steps that are usual for it, over those of a plain cycle."""
    price = worth.draft_costs.get(name)
    if price is None:
        return 0.0
    lengths = []
    for key in keys:
        fixed = menus[key].options[name][place].fixed
        lengths.append(fixed.index(max(fixed)))
    steps = max(1.0, sum(lengths) / len(lengths))
    return price.seconds(1, steps, steps) / worth.cost.seconds(load, load, round(load * worth.kv_each))

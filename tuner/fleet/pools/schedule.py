"""Which kind of lane is best at each load, as the schedule of an arm: what people read, pin and export."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from policies.types import PLAIN_ARM, Arm, LoadStep
from tuner.choice import charted_loads
from tuner.fleet.pools.counts import BINS
from tuner.fleet.pools.rows import PLAIN_KIND, Floats, Kind
from tuner.fleet.pools.speeds import Speeds

_BETTER = 0.01
"""By so much another kind must be faster than the one that serves."""


@dataclass(frozen=True, slots=True)
class Menu:
    """Seconds per token of each kind in one context."""

    loads: tuple[int, ...]
    seconds: dict[Kind, tuple[float, ...]]
    """At each of `loads`."""

    def gain(self, kind: Kind, place: int) -> float | None:
        """Over plain, predicted; None without a plain lane."""
        plain = self.seconds.get(PLAIN_KIND)
        return None if plain is None else plain[place] / self.seconds[kind][place]


def menu_of(speeds: Speeds, context: int | None, kinds: Collection[Kind], most_load: int) -> Menu:
    """Of the context at a place in `speeds`, or over all where it has none, for `kinds`, at loads up to `most_load`."""
    values = speeds.curves if context is None else speeds.values[:, context]
    loads = charted_loads(max(1, most_load))
    logs = np.log2(np.array(loads, dtype=np.float64))
    return Menu(
        loads,
        {
            kind: tuple(np.exp(_at(values[place], logs)).tolist())
            for place, kind in enumerate(speeds.rows.kinds)
            if kind in kinds
        },
    )


def arm_of(menu: Menu, previous: Arm | None, load: int, margin: float) -> Arm:
    """The fastest kind at each load; `previous` stays where nothing is faster by enough, and plain where speculation
    gains less than `margin`, or half of it once it is on. `load` is served now."""
    steps: list[LoadStep] = []
    for place, at in enumerate(menu.loads):
        kind = _kind(menu, place, at, previous, margin)
        until = menu.loads[place + 1] - 1 if place + 1 < len(menu.loads) else at
        if steps and (steps[-1].block_length, steps[-1].drafter) == (kind.block_length, kind.drafter):
            steps[-1] = LoadStep(steps[-1].load_low, until, kind.block_length, kind.drafter)
        else:
            steps.append(LoadStep(at, until, kind.block_length, kind.drafter))
    if not any(step.block_length for step in steps):
        return PLAIN_ARM
    arm = Arm("", tuple(steps))
    return Arm(arm.drafter_at(load), arm.schedule)


def predicted(menu: Menu, arm: Arm) -> tuple[tuple[int, float], ...]:
    """(load, gain of `arm` over plain); nothing without a plain lane."""
    found = []
    for place, load in enumerate(menu.loads):
        gain = menu.gain(_served(menu, arm, load), place)
        if gain is not None:
            found.append((load, round(gain, 3)))
    return tuple(found)


def _served(menu: Menu, arm: Arm, load: int) -> Kind:
    kind = Kind(arm.drafter_at(load), arm.block_length(load))
    return kind if kind in menu.seconds and kind.block_length else PLAIN_KIND


def _kind(menu: Menu, place: int, load: int, previous: Arm | None, margin: float) -> Kind:
    best = min(menu.seconds, key=lambda kind: menu.seconds[kind][place])
    serving = None if previous is None else _served(menu, previous, load)
    if serving in menu.seconds and menu.seconds[best][place] > (1.0 - _BETTER) * menu.seconds[serving][place]:
        best = serving
    gain = menu.gain(best, place)
    on = serving is not None and serving != PLAIN_KIND
    return PLAIN_KIND if gain is not None and gain <= 1.0 + (margin / 2 if on else margin) else best


def _at(curve: Sequence[float] | Floats, logs: Floats) -> Floats:
    return np.asarray(np.interp(logs, np.arange(BINS), np.asarray(curve)))


def highest_load(speeds: Speeds) -> int:
    """The largest load that was served, as a power of two."""
    bins = speeds.rows.bin
    return 1 << int(bins.max()) if len(bins) else 1


def most_served_load(speeds: Speeds) -> int:
    """The load that tokens met in the mean, of late."""
    tokens, loads = speeds.rows.of("tokens").sum(), speeds.rows.of("loads").sum()
    return max(1, math.ceil(loads / tokens / 1000.0 - 0.5)) if tokens else 1

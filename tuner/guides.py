"""What decisions read beside policies: whom to try, whose shadows to run, and for whom an output is too short."""

import random
from collections.abc import Iterable, Mapping

from policies.stats import CycleStats
from policies.types import PLAIN, Policy
from tuner.choice import Menu
from tuner.known_contexts import Key
from tuner.learning import ANYWHERE, Learning
from tuner.shadowing import Allowance, Known, chances
from tuner.snapshot import Guide, Shortcut
from tuner.trials import trials

_OUTPUTS = 50.0
"""Requests over which the mean output of a context is averaged."""

_SHADOW_STEPS = 4
_CHEAP_SHARE = 0.05
"""Of a plain cycle, for one shadow."""
_DEAR_CHANCE = 0.01
"""Requests beside which a dearer one may run: their whole cycles become slower by it."""
_CROWD_SHARE = 0.04
"""Of a plain cycle, for all shadows of a cheap drafter together."""
_SURVEYED = 0.5
"""Requests that are given to a drafter of which nobody knows anything."""


class Guides:
    """Not thread-safe."""

    def __init__(self, first: str | None, needed: float, learning: Learning, seed: int) -> None:
        """`first` serves until something is known; `needed` blocks make a drafter known."""
        self._random = random.Random(seed)
        self._most: dict[str, float] = {}
        self._cheap: frozenset[str] = frozenset()
        self._surveyed: str | None = None
        self._trials_known: dict[Key, tuple[Menu, int, str, tuple[tuple[str, float], ...]]] = {}
        self._first = first
        self._needed = needed
        self._learning = learning
        self._outputs: dict[Key, tuple[float, float]] = {}
        cost = learning.cost
        self._allowance = Allowance(cost.seconds(1, 1, 256) if cost is not None else 0.0)

    def fold(self, stats: CycleStats) -> None:
        """Count what shadows took."""
        self._allowance.fold(stats.cycle_seconds, stats.shadow_seconds)

    def finish(self, key: Key, output_tokens: int) -> None:
        """Count the output of a request."""
        mean, count = self._outputs.get(key, (0.0, 0.0))
        count = min(count + 1.0, _OUTPUTS)
        self._outputs[key] = mean + (output_tokens - mean) / count, count

    def grant(self) -> None:
        """Something changed: look again."""
        self._allowance.grant()

    def of(self, keys: Iterable[Key], policies: Mapping[Key, Policy], spare: bool) -> tuple[dict[Key, Guide], Guide]:
        """The guides of `keys`, and the one of contexts that are new; `spare` says whether there is time to explore."""
        self._most = {name: self._most_shadows(name) for name in self._learning.drafters} if spare else {}
        self._cheap = frozenset(name for name in self._learning.drafters if self.is_cheap(name))
        self._surveyed = self._unknown() if spare else None
        startup = self._learning.cost_model.startup_seconds
        start = {name: seconds for name in self._learning.drafters if (seconds := startup(name, 1)) > 0.0}
        new = self._guide(ANYWHERE, None, start)
        return {key: self._guide(key, policies.get(key), start) for key in keys}, new

    def _guide(self, key: Key, policy: Policy | None, start: Mapping[str, float]) -> Guide:
        learning = self._learning
        menu = learning.menu(key)
        explored = self._explored(menu)
        if menu is None or not menu.options:
            return Guide(explored=explored)
        place = menu.place(learning.load)
        load = menu.loads[place]
        serving = policy.arm.drafter_at(load) if policy is not None else explored
        if serving not in menu.options:
            serving = explored
        shadows: tuple[tuple[str, float], ...] = ()
        if self._allowance.seconds > 0.0 and self._most:
            blocks = {name: curves[key].blocks if key in curves else 0.0 for name, curves in learning.curves.items()}
            shadows = tuple(
                (name, min(chance, self._most[name]))
                for name, chance in chances(Known(menu, place, serving, blocks, self._cheap), self._needed)
            )
        return Guide(
            explored=explored,
            trials=self._trials(key, menu, place, serving),
            shadows=shadows,
            own_shadows=self._cheap,
            output_tokens=self._outputs.get(key, (0.0, 0.0))[0],
            shortcuts=_shortcuts(menu, place, start, load) if start else {},
        )

    def _trials(self, key: Key, menu: Menu, place: int, serving: str) -> tuple[tuple[str, float], ...]:
        """Of drafters that become known by serving only; drawn anew only when the menu or the load is another."""
        if self._surveyed is not None and self._surveyed != serving:
            return (self._surveyed, _SURVEYED), (serving, 1.0 - _SURVEYED)
        if not self._knows_anything:
            return ()
        known = self._trials_known.get(key)
        if known is None or known[0] is not menu or known[1:3] != (place, serving):
            known = self._trials_known[key] = menu, place, serving, self._drawn(menu, place, serving)
        return known[3]

    def is_cheap(self, drafter: str) -> bool:
        """Whether it may propose beside a request without slowing it and its neighbours by more than a little."""
        learning = self._learning
        price = learning.draft_costs.get(drafter)
        if price is None or learning.cost is None:
            return True
        load = learning.load
        plain_seconds = learning.cost.seconds(load, load, round(load * learning.kv_each))
        return price.seconds(1, _SHADOW_STEPS, _SHADOW_STEPS) <= _CHEAP_SHARE * plain_seconds

    def _drawn(self, menu: Menu, place: int, serving: str) -> tuple[tuple[str, float], ...]:
        found = trials(menu, place, serving, self._random)
        kept = tuple((name, chance) for name, chance in found if name != serving and not self.is_cheap(name))
        return (*kept, (serving, 1.0 - sum(chance for _, chance in kept))) if kept else ()

    def _most_shadows(self, drafter: str) -> float:
        """The largest share of requests beside which a drafter may propose at this load."""
        learning = self._learning
        price = learning.draft_costs.get(drafter)
        if price is None or learning.cost is None:
            return 1.0
        if not self.is_cheap(drafter):
            return _DEAR_CHANCE
        load = learning.load
        plain_seconds = learning.cost.seconds(load, load, round(load * learning.kv_each))
        return min(1.0, _CROWD_SHARE * plain_seconds / price.seconds(load, _SHADOW_STEPS, load * _SHADOW_STEPS))

    def _unknown(self) -> str | None:
        """A drafter that must serve to become known, and has not: one at a time, since they share no steps."""
        curves = self._learning.curves
        return next(
            (
                name
                for name in self._learning.drafters
                if not self.is_cheap(name) and curves[name][ANYWHERE].blocks < self._needed
            ),
            None,
        )

    @property
    def _knows_anything(self) -> bool:
        pooled = [curves[ANYWHERE].blocks for curves in self._learning.curves.values()]
        return max(pooled, default=0.0) >= self._needed

    def _explored(self, menu: Menu | None) -> str:
        """The best as far as anything is known, else the first."""
        learning = self._learning
        names = learning.drafters
        if not names:
            return PLAIN
        first = self._first if self._first in names else names[0]
        if menu is None or not menu.options or not self._knows_anything:
            return str(first)
        return max(menu.worth, key=lambda name: menu.worth[name][menu.place(learning.load)])


def _shortcuts(menu: Menu, place: int, start: Mapping[str, float], load: int) -> dict[str, Shortcut]:
    """For each drafter that reads the prompt: how many output tokens pay for that, against the best that need not."""
    plain = menu.plain(place)
    others = {name: options[place].best for name, options in menu.options.items() if name not in start}
    other = max(others, key=others.__getitem__, default=PLAIN)
    reached = max(others.get(other, plain), plain)
    found = {}
    for name, seconds in start.items():
        if name in menu.options:
            saved = load / reached - load / menu.options[name][place].best
            if saved > 0.0:
                found[name] = Shortcut(seconds / saved, other)
    return found

"""What the slow loop may change: each knob with its bounds, the point in force, and the configuration that says it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from policies.cycle_policy import Knobs
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.settings import KnobSettings, Settings

EVERYWHERE = "*"
"""The scope of all traffic whose route has no knobs of its own."""

Values = Mapping[str, float]
"""A value for each knob of a study, by name."""


NOTHING_TO_TRY = "No loaded drafter reads a knob that could be tried there: load one, or tune all traffic."


class Ground(StrEnum):
    """Where candidates are measured."""

    REPLAY = "replay"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Knob:
    """One dimension of the search."""

    name: str
    group: str
    """Of its setting: `name` is the key."""
    low: float
    high: float
    """Both ends count. A production value beyond them widens them."""
    whole: bool
    """Whether it is a whole number."""
    drafter: str
    """``ngram``, ``suffix`` or ``learned``: what reads it; empty: every cycle."""
    grounds: tuple[Ground, ...]
    """Where it can be told."""


ON_ENGINE = (Ground.ENGINE,)
KNOBS = (
    Knob("ngram_min_match", "engine", 1, 8, True, "ngram", ON_ENGINE),
    Knob("ngram_max_match", "engine", 2, 32, True, "ngram", ON_ENGINE),
    Knob("suffix_min_score", "engine", 0.05, 0.95, False, "suffix", ON_ENGINE),
    Knob("draft_stop", "engine", 0.0, 0.5, False, "learned", ON_ENGINE),
    Knob("draft_temperature", "engine", 0.2, 1.6, False, "learned", ON_ENGINE),
    Knob("prefill_chunk", "engine", 16, 256, True, "", ON_ENGINE),
    Knob("margin", "tuner", 0.0, 0.2, False, "", (Ground.ENGINE, Ground.REPLAY)),
    Knob("max_block_length", "engine", 1, MAX_BLOCK_LENGTH, True, "", (Ground.REPLAY,)),
)
"""`max_neighbour_slowdown` is a promise and no knob: the loosest one always wins."""

PER_ROUTE = frozenset(KnobSettings.model_fields)
"""Those that a route may have of its own; the others are the whole engine's."""


@dataclass(frozen=True, slots=True)
class Point:
    """Everything that the slow loop may change while an engine serves, as it is in force."""

    knobs: Mapping[str, Knobs]
    """By route; ``*`` for the others."""
    margin: float

    def with_values(self, scope: str, values: Values) -> "Point":
        """The point with `values` on the route `scope`, or for ``*`` on all that have no knobs of their own."""
        own = {name: value for name, value in values.items() if name in Knobs.__dataclass_fields__}
        base = self.knobs.get(scope) or self.knobs.get(EVERYWHERE, Knobs())
        changed: dict[str, Any] = {name: number(name, value) for name, value in own.items()}
        knobs = {**self.knobs, scope: replace(base, **changed)}
        return Point(knobs, values.get("margin", self.margin))

    def with_own(self, routes: Iterable[str]) -> "Point":
        """The same point, in which each of `routes` has knobs of its own, so that what `*` gets is not theirs."""
        everywhere = self.knobs.get(EVERYWHERE, Knobs())
        return Point({**{route: everywhere for route in routes}, **self.knobs}, self.margin)

    def values(self, scope: str, names: Iterable[str]) -> dict[str, float]:
        """What it says of each of `names`, which are knobs of a running engine."""
        of_scope = self.knobs.get(scope) or self.knobs[EVERYWHERE]
        return {name: self.margin if name == "margin" else getattr(of_scope, name) for name in names}


def production_point(settings: Settings) -> Point:
    """What the configuration says: complete, so that no knob is left to what the engine was started with."""
    engine = settings.engine
    everywhere = Knobs(
        ngram_min_match=engine.ngram_min_match,
        ngram_max_match=engine.ngram_max_match,
        suffix_min_score=engine.suffix_min_score,
        draft_stop=engine.draft_stop,
        draft_temperature=engine.draft_temperature,
        prefill_chunk=engine.prefill_chunk,
    )
    knobs = {EVERYWHERE: everywhere}
    for name, route in settings.routes.items():
        if route.knobs is not None:
            knobs[name] = replace(everywhere, **route.knobs.model_dump(exclude_none=True))
    return Point(knobs, settings.tuner.margin)


def searched(settings: Settings, scope: str, drafters: Iterable[str], ground: Ground) -> tuple[Knob, ...]:
    """The knobs of a study: those that `ground` can tell, that a loaded drafter reads, and that `scope` may have.

    Bounds are widened to hold what production has, so that it can be a trial like any other.
    """
    names = set(drafters) - {PLAIN}
    read = {""} | (names & {"ngram", "suffix"})
    if names - {"ngram", "suffix"}:
        read.add("learned")
    space = [
        knob
        for knob in KNOBS
        if ground in knob.grounds and knob.drafter in read and (scope == EVERYWHERE or knob.name in PER_ROUTE)
    ]
    # The engine takes no larger chunk than its memory was planned for.
    rows = max(settings.engine.prefill_chunk, settings.engine.slots * (MAX_BLOCK_LENGTH + 1))
    space = [replace(knob, high=min(knob.high, rows)) if knob.name == "prefill_chunk" else knob for knob in space]
    production = production_values(settings, scope, space)
    return tuple(
        replace(knob, low=min(knob.low, production[knob.name]), high=max(knob.high, production[knob.name]))
        for knob in space
    )


def left_out(space: Iterable[Knob]) -> tuple[str, ...]:
    """The names of the knobs that a study does not search."""
    names = {knob.name for knob in space}
    return tuple(knob.name for knob in KNOBS if knob.name not in names)


def production_values(settings: Settings, scope: str, space: Iterable[Knob]) -> dict[str, float]:
    """What the configuration says of each knob of a study."""
    names = [knob.name for knob in space]
    values = production_point(settings).values(scope, [name for name in names if name != "max_block_length"])
    if "max_block_length" in names:
        values["max_block_length"] = settings.engine.max_block_length
    return values


def number(name: str, value: float) -> float:
    """A value as it is used: whole where the knob is, else with three digits behind the point."""
    return round(value) if next(knob for knob in KNOBS if knob.name == name).whole else round(value, 3)


def possible(values: Values) -> dict[str, float]:
    """`values` as they are used, with a longest match that is not below the shortest."""
    used = {name: number(name, value) for name, value in values.items()}
    if "ngram_min_match" in used and "ngram_max_match" in used:
        used["ngram_max_match"] = max(used["ngram_max_match"], used["ngram_min_match"])
    return used


def as_settings(scope: str, values: Values, production: Values) -> dict[str, Any]:
    """The part of a configuration file that puts in force what differs from production."""
    changed = {name: value for name, value in values.items() if value != production[name]}
    if not changed:
        return {}
    if scope != EVERYWHERE:
        return {"routes": {scope: {"knobs": changed}}}
    told: dict[str, Any] = {}
    for knob in KNOBS:
        if knob.name in changed:
            told.setdefault(knob.group, {})[knob.name] = changed[knob.name]
    return told

"""Counts as parallel arrays, aged, for the arithmetic of `tuner.fleet.pools.speeds` and `gain`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.fleet.pools.counts import Counts, Epoch, Part, Place, Sums
from tuner.fleet.types import Lane

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

HALF_LIFE_SECONDS = 3600.0
"""What was counted so long ago counts half. What is known to have changed is forgotten at once, see `change`."""
_PARTS = tuple(Part)


class Kind(NamedTuple):
    """What replicas share: who drafts and how far. ``("none", 0)`` is plain."""

    drafter: str
    block_length: int


class ContextKey(NamedTuple):
    """The requested model is part of it, since adapters are models: their acceptance is their own."""

    model: str
    route: str
    language: str


def kind_of(lane: Lane) -> Kind:
    """Every plain lane is of the same kind, whatever it was launched with."""
    return PLAIN_KIND if lane.plain else Kind(lane.drafter, lane.block_length)


PLAIN_KIND = Kind("none", 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """One row for each place and stretch of time, in order of time. Arrays are (R,) unless said otherwise."""

    lanes: tuple[Lane, ...]
    kinds: tuple[Kind, ...]
    contexts: tuple[ContextKey, ...]
    routes: tuple[str, ...]
    languages: tuple[str, ...]
    epochs: tuple[Epoch, ...]
    lane_kinds: Ints
    """(lanes,): the kind of each."""
    context_routes: Ints
    """(contexts,)"""
    context_languages: Ints
    """(contexts,)"""
    epoch: Ints
    lane: Ints
    context: Ints
    bin: Ints
    part: Ints
    """Places in `Part`, in the order of their definition."""
    sums: Floats
    """(R, 13): `Sums`, each multiplied by what its age leaves of it."""

    def of(self, name: str) -> Floats:
        """(R,): one of `Sums`' fields."""
        return np.asarray(self.sums[:, Sums._fields.index(name)])

    @property
    def kind(self) -> Ints:
        return np.asarray(self.lane_kinds[self.lane])

    def is_part(self, parts: Iterable[Part]) -> NDArray[np.bool_]:
        """(R,): whether a row is of one of `parts`."""
        return np.isin(self.part, [_PARTS.index(part) for part in parts])


def rows_of(counts: Counts, lanes: Sequence[Lane], names: Mapping[str, str], now: float) -> Rows:
    """`counts` of `lanes` at `now` (Unix seconds); `names` gives the name under which each lane is counted now.

    What was counted of a lane under another name, before its upstream was started with something else, is left out.
    """
    places = {names[lane.name]: number for number, lane in enumerate(lanes)}
    kinds: dict[Kind, int] = {}
    lane_kinds = [kinds.setdefault(kind_of(lane), len(kinds)) for lane in lanes]
    contexts: dict[ContextKey, int] = {}
    routes: dict[str, int] = {}
    languages: dict[str, int] = {}
    epochs: dict[Epoch, int] = {}
    keys: list[tuple[int, int, int, int, int]] = []
    values: list[Sums] = []
    for epoch, place, sums in counts:
        lane = places.get(place.lane)
        if lane is None:
            continue
        keys.append(
            (
                epochs.setdefault(epoch, len(epochs)),
                lane,
                contexts.setdefault(_context(place), len(contexts)),
                place.bin,
                _PARTS.index(place.part),
            )
        )
        values.append(sums)
    table = np.array(keys, dtype=np.int64).reshape(-1, 5)
    totals = np.array(values, dtype=np.float64).reshape(-1, len(Sums._fields))
    middles = np.array([(epoch.started_at + epoch.ended_at) / 2 for epoch in epochs])
    left = 0.5 ** (np.maximum(0.0, now - middles) / HALF_LIFE_SECONDS)
    return Rows(
        lanes=tuple(lanes),
        kinds=tuple(kinds),
        contexts=tuple(contexts),
        epochs=tuple(epochs),
        lane_kinds=np.array(lane_kinds, dtype=np.int64),
        context_routes=np.array([routes.setdefault(key.route, len(routes)) for key in contexts], dtype=np.int64),
        context_languages=np.array(
            [languages.setdefault(key.language, len(languages)) for key in contexts], dtype=np.int64
        ),
        routes=tuple(routes),
        languages=tuple(languages),
        epoch=table[:, 0],
        lane=table[:, 1],
        context=table[:, 2],
        bin=table[:, 3],
        part=table[:, 4],
        sums=totals * left[table[:, 0]][:, None] if len(keys) else totals,
    )


def _context(place: Place) -> ContextKey:
    return ContextKey(place.model, place.route, place.language)

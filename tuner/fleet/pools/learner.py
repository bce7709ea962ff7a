"""What a fleet knows of its lanes: the counts, and the estimates that were last made of them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tuner.fleet.pools.counts import Counts, Sample
from tuner.fleet.pools.gain import Gains
from tuner.fleet.pools.lanes import Alias, lanes_of
from tuner.fleet.pools.publishing import kind_seconds, place_of, plain_effect, plain_seconds
from tuner.fleet.pools.rows import PLAIN_KIND, ContextKey, rows_of
from tuner.fleet.pools.speeds import Moved, speeds_of
from tuner.fleet.types import EngineKind, Upstream
from tuner.snapshot import BaselineCell


class Learner:
    """Not thread-safe; what it hands out is never edited."""

    def __init__(self, upstreams: Sequence[Upstream], aliases: Mapping[str, Sequence[Alias]], replica: str) -> None:
        self.counts = Counts(replica)
        self._aliases = aliases
        self._names: dict[str, str] = {}
        """By lane: the name under which it is counted, which tells what its upstream runs."""
        self.upstreams: dict[str, Upstream] = {}
        self.set_upstreams(upstreams)
        self.read(0.0)

    def set_upstreams(self, upstreams: Sequence[Upstream]) -> list[str]:
        """Count what `upstreams` do from now on; returns those that run something else than before.

        What was counted of those is not read any more. One that does not tell what it runs is taken to run the same.
        """
        known = self.upstreams
        self.upstreams = {
            one.name: known[one.name] if one.name in known and _is_silent(one, known[one.name]) else one
            for one in upstreams
        }
        self.lanes = lanes_of(list(self.upstreams.values()), self._aliases)
        before = self._names
        self._names = {lane.name: f"{lane.name}@{_fingerprint(self.upstreams[lane.upstream])}" for lane in self.lanes}
        return sorted(
            {
                lane.upstream
                for lane in self.lanes
                if lane.name in before and before[lane.name] != self._names[lane.name] and lane.upstream in known
            }
        )

    def counted_as(self, lane: str) -> str | None:
        """The name under which exchanges of `lane` are counted; None for one that is not known."""
        return self._names.get(lane)

    def read(self, now: float) -> None:
        """Make estimates of what was counted, at `now` (Unix seconds)."""
        self.speeds = speeds_of(rows_of(self.counts, self.lanes, self._names, now))
        self.gains = Gains(self.speeds)
        self._effect = plain_effect(self.speeds)
        self._contexts = {key: place for place, key in enumerate(self.speeds.rows.contexts)}

    def places(self, route: str | None = None, language: str | None = None) -> list[int]:
        """The contexts of a route and a language, or of all, by their places in `speeds`."""
        return [
            place
            for key, place in self._contexts.items()
            if (route is None or key.route == route) and (language is None or key.language == language)
        ]

    def main_place(self, route: str, language: str) -> int | None:
        """The context of the model that is asked for most in (route, language)."""
        return max(self.places(route, language), key=lambda at: float(self.speeds.requests[:, at].sum()), default=None)

    def plain_of(self, sample: Sample) -> tuple[float, float] | None:
        """Plain's seconds per token where `sample` was served, and their standard error; None while not known."""
        place = self._place(sample)
        return None if place is None else plain_seconds(self.speeds, place, sample.load, self._effect)

    def expected(self, lane: str, sample: Sample) -> float:
        """Seconds that `sample` was expected to take on `lane`; 0.0 where nothing is known."""
        place, number = self._place(sample), place_of(self.speeds.rows.lanes, lane)
        if place is None or number is None:
            return 0.0
        return sample.tokens * kind_seconds(self.speeds, number, place, sample.load)

    @property
    def moved(self) -> tuple[Moved, ...]:
        return self.speeds.moved

    def baseline(self) -> tuple[BaselineCell, ...]:
        """What plain lanes take for a token of each of so many requests in progress, which is a cycle of theirs."""
        speeds, rows = self.speeds, self.speeds.rows
        if PLAIN_KIND not in rows.kinds:
            return ()
        plain = rows.kinds.index(PLAIN_KIND)
        here = rows.kind == plain
        cells = []
        for load in np.unique(rows.bin[here]):
            at = here & (rows.bin == load)
            requests, tokens = float(rows.of("requests")[at].sum()), float(rows.of("tokens")[at].sum())
            seconds = math.exp(float(speeds.curves[plain, load]) + self._effect)
            cells.append(
                BaselineCell(1 << int(load), round(tokens), seconds, speeds.noise / math.sqrt(max(1.0, requests)))
            )
        return tuple(cells)

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return self.counts.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the counts of an earlier run. Raises KeyError, TypeError or ValueError for what is no state."""
        self.counts.merge(Counts.of_state(self.counts.replica, state))

    def _place(self, sample: Sample) -> int | None:
        return self._contexts.get(ContextKey(sample.model, sample.route, sample.language))


def _fingerprint(upstream: Upstream) -> str:
    """Of what an upstream runs. Adapters come and go beside the first model, and are contexts of their own."""
    runs = (upstream.engine, upstream.version, upstream.models[:1], upstream.drafter, upstream.block_length)
    return hashlib.blake2s(repr(runs).encode(), digest_size=4).hexdigest()


def _is_silent(now: Upstream, before: Upstream) -> bool:
    """Whether a server that told what it is says nothing of it any more: it is down, or not up yet."""
    told = before.engine is not EngineKind.UNKNOWN or bool(before.models)
    return told and now.engine is EngineKind.UNKNOWN and not now.models and not now.version

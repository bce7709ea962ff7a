"""What is kept of a request while it lives: its blocks in order, to be re-blocked, and its sums, for their variance.

Everything here is in memory only and bounded: a request that grows long is re-blocked piece by piece, and of too many
requests the one that began first is taken as finished.
"""

from bisect import bisect_left
from collections.abc import Callable
from zlib import crc32

import numpy as np

from policies.stats import BlockEnd, SequenceStats, ShadowStats
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.acceptance.counts import ROW
from tuner.acceptance.moments import LENGTHS, Finished
from tuner.acceptance.reblocking import Strip, reblock

_LIVE_REQUESTS = 1024
_KEPT_CYCLES = 256
"""Cycles of one request after which its text so far is re-blocked."""


class _Part:
    """One drafter in one request."""

    __slots__ = ("blocks", "language", "route", "runs", "shadows", "tokens")

    def __init__(self, route: str, language: str) -> None:
        self.route = route
        self.language = language
        self.runs = [0] * ROW
        self.tokens = [0] * LENGTHS
        self.blocks = [0] * LENGTHS
        self.shadows: list[tuple[int, ShadowStats]] = []


class _Live:
    __slots__ = ("cycles", "parts")

    def __init__(self) -> None:
        self.cycles: list[tuple[int, SequenceStats]] = []
        self.parts: dict[str, _Part] = {}


class LiveRequests:
    """Requests that run, by key."""

    def __init__(self, finished: Callable[[Finished], None], feature_heads: frozenset[str]) -> None:
        """
        Args:
            finished: takes what a request brought of each drafter.
            feature_heads: drafters whose proposals depend on where their blocks start; they are not re-blocked.
        """
        self._finished = finished
        self._feature_heads = feature_heads
        self._live: dict[int, _Live] = {}

    def __len__(self) -> int:
        return len(self._live)

    def add_sequence(self, cycle: int, stats: SequenceStats, place: int | None) -> None:
        """One sequence in one cycle; `place` is where in a row of runs its block is counted, None if it is not."""
        live = self._live.get(stats.request_key)
        if live is None:
            live = self._begin(stats.request_key)
        live.cycles.append((cycle, stats))
        if stats.drafter != PLAIN and stats.requested:
            part = live.parts.get(stats.drafter)
            if part is None:
                part = live.parts[stats.drafter] = _Part(stats.context.route, stats.context.language)
            if place is not None:
                part.runs[place] += 1
        if len(live.cycles) >= _KEPT_CYCLES:
            self._reblock(stats.request_key, live, ended=False)

    def add_shadow(self, cycle: int, stats: ShadowStats, place: int) -> None:
        """A shadow that was decided in a cycle, after the request's sequence of that cycle."""
        live = self._live.get(stats.request_key)
        if live is None:
            live = self._begin(stats.request_key)
        part = live.parts.get(stats.drafter)
        if part is None:
            part = live.parts[stats.drafter] = _Part(stats.context.route, stats.context.language)
        part.shadows.append((cycle, stats))
        part.runs[place] += 1

    def finish(self, request_key: int) -> None:
        """Hand over what the request brought, and drop it."""
        live = self._live.pop(request_key, None)
        if live is None:
            return
        self._reblock(request_key, live, ended=True)
        for drafter, part in live.parts.items():
            runs = np.array(part.runs, dtype=np.float64).reshape(2, LENGTHS)
            accepted = runs.sum(axis=0)[::-1].cumsum()[::-1][1:]
            at = accepted + runs[0, :MAX_BLOCK_LENGTH]
            tokens, blocks = np.array((part.tokens, part.blocks), dtype=np.float64)
            self._finished(Finished(drafter, part.route, part.language, at, accepted, tokens, blocks))

    def forget(self, drafter: str) -> None:
        """Drop what the running requests brought of `drafter`."""
        for live in self._live.values():
            live.parts.pop(drafter, None)

    def _begin(self, request_key: int) -> _Live:
        if len(self._live) >= _LIVE_REQUESTS:
            self.finish(next(iter(self._live)))
        live = self._live[request_key] = _Live()
        return live

    def _reblock(self, request_key: int, live: _Live, *, ended: bool) -> None:
        cycles = sorted(live.cycles, key=lambda pair: pair[0])
        live.cycles = []
        ends: list[int] = []
        end = 0
        for _, one in cycles:
            end += one.emitted
            ends.append(end)
        begins = [(place, one.drafter) for (_, one), place in zip(cycles, [0, *ends], strict=False) if one.verified]
        for drafter, part in live.parts.items():
            shadows, part.shadows = part.shadows, []
            if drafter in self._feature_heads:
                continue
            strip = Strip(end, {place for place, name in begins if name != drafter})
            _mark_blocks(strip, drafter, cycles)
            _mark_shadows(strip, cycles, ends, sorted(shadows, key=lambda pair: pair[0]))
            reblock(strip, request_key ^ crc32(drafter.encode()) << 32, part.tokens, part.blocks, ended=ended)


def _mark_blocks(strip: Strip, drafter: str, cycles: list[tuple[int, SequenceStats]]) -> None:
    position = 0
    for _, one in cycles:
        if one.drafter == drafter and one.requested and (one.verified or not one.proposed):
            # An end says nothing of the draft behind it.
            seen = one.accepted if one.end is BlockEnd.CENSORED else one.verified
            strip.mark(position, one.accepted, one.requested, one.proposed, seen)
        position += one.emitted


def _mark_shadows(
    strip: Strip, cycles: list[tuple[int, SequenceStats]], ends: list[int], shadows: list[tuple[int, ShadowStats]]
) -> None:
    """A shadow started as much before the end of the cycle in which it was told as was emitted since."""
    numbers = [number for number, _ in cycles]
    for told, shadow in shadows:
        index = bisect_left(numbers, told)
        if index == len(numbers) or numbers[index] != told:
            continue
        start = ends[index] - shadow.emitted
        if start >= 0:
            seen = shadow.matched if shadow.censored else shadow.proposed
            strip.mark(start, shadow.matched, shadow.requested, shadow.proposed, seen)

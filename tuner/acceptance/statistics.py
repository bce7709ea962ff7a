"""How often drafts are kept, by drafter, route, language and confidence: everything counted, as it comes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from policies.stats import CycleStats
from policies.types import MAX_BLOCK_LENGTH
from tuner.acceptance.blocks import observed_length
from tuner.acceptance.change import DELTA, Alarm, CellsTest, CellTest, Change, Key
from tuner.acceptance.counts import (
    BUCKETS,
    EPOCHS_OF_A_HALF_LIFE,
    NO_PLACE,
    ROW,
    RUNS,
    SIZE,
    Cell,
    Remembered,
    first_drafts,
)
from tuner.acceptance.curves import Curve
from tuner.acceptance.estimation import ANY, Counts, Estimates, estimate
from tuner.acceptance.moments import LENGTHS, Finished
from tuner.acceptance.pooling import HEAD_FALL
from tuner.acceptance.regimes import Regimes, predicted
from tuner.acceptance.requests import LiveRequests

_FORMAT = 2
_ALERT_FACTOR = 20.0
"""What `delta` is multiplied by once something has changed: what changes one context seldom leaves the others alone."""
_ALERT_FINISHES = 400
"""Finished requests, each counted once for every drafter that proposed in it, for which that holds."""
_UNCHANGED = 1.0
"""Once something has changed, log of the Bayes factor from which on a drafter is believed to be as it was."""
_NEWS = 0.12
"""Curves of a drafter are made again when its blocks have grown by this share,"""
_NEWS_OF_A_CELL = 0.4
"""or those of one of its cells by this one."""
_ALSO = 0.2
"""Then all those are made again of which that is true for this part of the share, other drafters' too: what follows
from them is then made once."""
_GROWTH = math.log(1.05)
"""So is every curve when what it borrows from has grown by this much, though its own cell is unchanged."""


@dataclass(slots=True)
class _Made:
    """What was made of one drafter."""

    pooled: Curve
    growth: int
    """Of all counts of the drafter, when the curves were made."""
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)


class Acceptance:
    """Counts of every drafter and context; not thread-safe."""

    def __init__(
        self,
        half_life_blocks: float = 4000.0,
        strength: float = 20.0,
        *,
        replica: str = "local",
        limit: int = 512,
        feature_heads: Iterable[str] = (),
        delta: float = DELTA,
    ) -> None:
        """
        Args:
            half_life_blocks: a block counts half after this many later ones of its cell.
            strength: effective blocks that the opinion of a cell's relatives is worth, until the data say.
            replica: this one's name among those that merge; no two may share one.
            limit: cells of (drafter, route, language) that are kept; of more, the one not seen for longest is folded
                into its margins.
            feature_heads: drafters whose acceptance depends on the position in the block and whose proposals on where
                it starts: nothing is inferred along their positions, and they are not re-blocked.
            delta: probability that a change is found in a cell that never changes.
        """
        self._half_life = half_life_blocks
        self._epoch_blocks = max(1, int(half_life_blocks / EPOCHS_OF_A_HALF_LIFE))
        self._strength = strength
        self._replica = replica
        self._limit = limit
        self._delta = delta
        self._feature_heads = frozenset(feature_heads)
        self._cells: dict[Key, Cell] = {}
        self._margins: dict[Key, Cell] = {}
        """What was folded: (drafter, route, `ANY`), (drafter, `ANY`, language) and (drafter, `ANY`, `ANY`)."""
        self._versions: dict[str, str] = {}
        self._made: dict[str, _Made] = {}
        self._changed: set[str] = set()
        self._alarms: list[Alarm] = []
        self._tests: dict[str, CellsTest] = {}
        """By drafter, and of all of them as `ANY`."""
        self._regimes = Regimes()
        self._entries = 0
        self._finishes = 0
        self._alerted_until = 0
        """The finish up to which the last change makes others more likely."""
        self._settled_at = 0
        """The finish from which on another change is one of its own."""
        self._requests = LiveRequests(self._finished, self._feature_heads)

    def fold(self, stats: CycleStats) -> None:
        """Count the blocks and shadows of one cycle."""
        requests, cycle = self._requests, stats.cycle
        for one in stats.sequences:
            place = None
            length = observed_length(one)
            if length > 0:
                context = one.context
                place = self._count(
                    (one.drafter, context.route, context.language),
                    one.confidence,
                    length,
                    one.accepted,
                    one.requested,
                    one.proposed,
                )
            requests.add_sequence(cycle, one, place)
        for shadow in stats.shadows:
            length = shadow.matched if shadow.censored else shadow.requested
            if length > 0:
                context = shadow.context
                place = self._count(
                    (shadow.drafter, context.route, context.language),
                    shadow.confidence,
                    length,
                    shadow.matched,
                    shadow.requested,
                    shadow.proposed,
                )
                requests.add_shadow(cycle, shadow, place)

    def finish(self, request_key: int) -> None:
        """The request has ended: what was kept of it in memory is counted and dropped."""
        self._requests.finish(request_key)

    def add_block(self, drafter: str, route: str, language: str, confidence: int, length: int, accepted: int) -> None:
        """Count one block of `length` (1..`MAX_BLOCK_LENGTH`) of which `accepted` drafts were kept, by itself."""
        proposed = length if confidence else 0
        self._count((drafter, route, language), confidence, length, accepted, length, proposed)

    def curves(self, drafter: str, contexts: Iterable[tuple[str, str]]) -> tuple[Curve, dict[tuple[str, str], Curve]]:
        """The pooled curve of `drafter`, and one for each of `contexts`, counted or not.

        See `curves_of`.
        """
        return self.curves_of((drafter,), contexts)[drafter]

    def curves_of(
        self, drafters: Iterable[str], contexts: Iterable[tuple[str, str]], *, idle: bool = False
    ) -> dict[str, tuple[Curve, dict[tuple[str, str], Curve]]]:
        """The same of several drafters.

        They are those of a moment ago until something has grown by enough to matter, so that time is spent as there is
        something to learn and not as the clock goes: see `_NEWS`. Whoever is `idle` has the time for all that is new.
        """
        names, wanted = list(drafters), list(dict.fromkeys(contexts))
        growth = {name: self._growth(name, wanted) for name in names}
        also = 0.0 if idle else _ALSO
        if idle or max(growth.values(), default=0.0) >= _NEWS:
            for name in names:
                if growth[name] > also * _NEWS:
                    self._make(name, wanted, self._made.get(name), also)
        found = {}
        for name in names:
            made = self._made[name]
            found[name] = made.pooled, {context: made.curves[context] for context in wanted}
        return found

    def contexts(self, drafter: str) -> tuple[tuple[str, str], ...]:
        """(route, language) pairs in which `drafter` has been counted."""
        return tuple((route, language) for name, route, language in self._cells if name == drafter)

    def drafters(self) -> tuple[str, ...]:
        """Every drafter that has been counted."""
        return tuple(dict.fromkeys(name for name, _, _ in self._cells))

    def alarms(self) -> tuple[Alarm, ...]:
        """Changes found since the last call, oldest first."""
        found, self._alarms = tuple(self._alarms), []
        return found

    @property
    def live_requests(self) -> int:
        """Requests of which something is kept in memory."""
        return len(self._requests)

    def version(self, drafter: str) -> str | None:
        """The fingerprint of `drafter` that its counts belong to; None where nobody has told any."""
        return self._versions.get(drafter)

    def reset(self, drafter: str, version: str = "") -> None:
        """Forget all of `drafter`, whose fingerprint is `version` from now on. Only counts of one version merge."""
        self._versions[drafter] = version
        self._cells = {key: cell for key, cell in self._cells.items() if key[0] != drafter}
        self._margins = {key: cell for key, cell in self._margins.items() if key[0] != drafter}
        self._made.pop(drafter, None)
        for name in (drafter, ANY):
            self._tests.pop(name, None)
        self._regimes.forget(drafter)
        self._requests.forget(drafter)

    def merge(self, other: "Acceptance") -> None:
        """Take from `other`, a replica or what one saved, every count that is newer than what is known here.

        Commutative, associative and idempotent, as long as no cell is folded for want of room. Counts of a drafter that
        has another version there are left out.
        """
        for mine, theirs in ((self._cells, other._cells), (self._margins, other._margins)):
            for key, cell in theirs.items():
                if self._versions.get(key[0], "") == other._versions.get(key[0], ""):
                    mine.setdefault(key, Cell()).merge(cell)
                    self._touch(key, mine[key])
        self._fold_away()

    def state(self) -> dict[str, Any]:
        """Everything that was counted, JSON-able. Requests that still run are in it but for their re-blocked text."""
        return {
            "format": _FORMAT,
            "replica": self._replica,
            "versions": dict(sorted(self._versions.items())),
            "cells": [[*key, cell.state()] for key, cell in sorted(self._cells.items())],
            "margins": [[*key, cell.state()] for key, cell in sorted(self._margins.items())],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the counts by those of `state`, and go on as the replica that saved it.

        Raises:
            KeyError, TypeError, ValueError: `state` was not made by `state()`; then nothing is changed.
        """
        if state["format"] != _FORMAT:
            raise ValueError(f"the saved acceptance has format {state['format']!r}; this version reads {_FORMAT}")
        versions = {str(drafter): str(version) for drafter, version in state["versions"].items()}
        cells, margins = (
            {(str(drafter), str(route), str(language)): Cell.of_state(cell) for drafter, route, language, cell in part}
            for part in (state["cells"], state["margins"])
        )
        self._replica = str(state["replica"])
        self._versions, self._cells, self._margins = versions, cells, margins
        self._made.clear()
        self._tests.clear()
        self._regimes = Regimes()
        self._alarms.clear()
        self._requests = LiveRequests(self._finished, self._feature_heads)
        self._fold_away()

    def _count(self, key: Key, confidence: int, length: int, accepted: int, requested: int, proposed: int) -> int:
        """Count one block; returns its place in a row of runs."""
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell()
            self._touch(key, cell)
            self._fold_away()
        record = cell.open_record(self._replica, self._epoch_blocks)
        length = length if length < MAX_BLOCK_LENGTH else MAX_BLOCK_LENGTH
        bucket = confidence if confidence < BUCKETS else BUCKETS - 1
        kept = accepted if accepted < length else length
        place = kept if kept < length else LENGTHS + kept
        offer = RUNS + (proposed if proposed < requested else LENGTHS + min(requested, MAX_BLOCK_LENGTH))
        run = RUNS + bucket * ROW + place if bucket else NO_PLACE
        record[bucket] += 1
        record[offer] += 1
        if bucket:
            record[run] += 1
        cell.room -= 1
        cell.seen += 1
        self._entries += 1
        cell.revision += 1
        cell.touched = self._entries
        cell.news += 1
        if cell.news >= cell.due:
            self._changed.add(key[0])
        cell.remember(bucket, offer, run)
        return place

    def _finished(self, one: Finished) -> None:
        key = (one.drafter, one.route, one.language)
        cell = self._cells.get(key)
        if cell is None:
            return
        self._finishes += 1
        cell.add_request(self._replica, self._epoch_blocks, one, self._finishes)
        cell.touched = self._entries
        self._look_for_change(key, cell, one)

    def _look_for_change(self, key: Key, cell: Cell, one: Finished) -> None:
        blocks, kept = first_drafts(one, cell.correlation(self._replica))
        delta = self._delta * (_ALERT_FACTOR if self._finishes <= self._alerted_until else 1.0)
        mean, known = cell.test.known_mean, cell.test.blocks
        self._regimes.weigh(key, blocks, kept, known, cell.test.kept, self._finishes)
        is_due = cell.test.add(blocks, kept, self._finishes)
        if self._has_returned(changed=False):
            return
        if is_due:
            change = cell.test.find(delta)
            if change is not None:
                cell.restart(self._replica, self._epoch_blocks, change.mark)
                self._touch(key, cell)
                self._raise_alarm(Alarm(*key, change.before, change.after))
        if mean is None:
            return
        for drafter in (key[0], ANY):
            test = self._tests.setdefault(drafter, CellsTest())
            if test.add(key, blocks, kept, mean, known, self._finishes):
                change = test.find(delta)
                if change is not None:
                    self._take_change(drafter, change)
                    return

    def _take_change(self, found: str, change: Change) -> None:
        """Forget what was known up to a change that drafter `found` shows, or all of them, if it is none back to what
        was; but not of those others that were seen to be as before."""
        if self._has_returned(changed=True):
            return
        self._keep_regime(change.mark)
        changed = [name for name in self.drafters() if name == found or not self._is_as_before(name, change.mark)]
        for name in changed:
            self._restart_all(name, change.mark)
            self._tests.pop(name, None)
        self._tests.pop(ANY, None)
        self._raise_alarm(Alarm(found, ANY, ANY, change.before, change.after))

    def _is_as_before(self, drafter: str, mark: int) -> bool:
        """Whether what a drafter brought since `mark` is told by what was known of it rather than by nothing. Nobody
        may have looked: the text, or the target, may be what changed."""
        evidence = 0.0
        for key, cell in self._cells.items():
            if key[0] == drafter:
                (known, known_kept), (blocks, kept) = cell.parted(self._replica, mark)
                if blocks:
                    evidence += predicted(blocks, kept, known, known_kept) - predicted(blocks, kept, 1.0, 0.5)
        return evidence >= _UNCHANGED

    def _has_returned(self, *, changed: bool) -> bool:
        """Whether a regime is in force again: then it is what is known."""
        back = self._regimes.take_returned(self._remembered, changed=changed)
        if back is None:
            return False
        for key, cell in self._cells.items():
            cell.restart(self._replica, self._epoch_blocks, back.mark)
            cell.test = CellTest()
            cell.recount(self._replica)
            self._touch(key, cell)
        for key, then in back.cells.items():
            cell = self._cells.setdefault(key, Cell())
            cell.recall(then, self._replica, self._epoch_blocks)
            self._touch(key, cell)
        self._margins.clear()
        self._tests.clear()
        self._fold_away()
        self._settled_at = self._finishes + _ALERT_FINISHES
        self._raise_alarm(Alarm(back.drafter, ANY, ANY, back.before, back.after, returned=True))
        return True

    def _keep_regime(self, mark: int) -> None:
        """What was known up to `mark`, unless it is the same change that another drafter shows as well."""
        if self._finishes > self._settled_at:
            self._regimes.keep(self._remembered(mark))
        self._settled_at = self._finishes + _ALERT_FINISHES

    def _remembered(self, mark: int) -> dict[Key, Remembered]:
        return {key: cell.remembered(self._replica, mark, self._half_life) for key, cell in self._cells.items()}

    def _raise_alarm(self, alarm: Alarm) -> None:
        self._alarms.append(alarm)
        self._alerted_until = self._finishes + _ALERT_FINISHES

    def _restart_all(self, drafter: str, mark: int) -> None:
        """Every cell of `drafter` keeps what came after `mark`; so do its margins, which hold nothing as new."""
        for key, cell in self._cells.items():
            if key[0] == drafter:
                cell.restart(self._replica, self._epoch_blocks, mark)
                self._touch(key, cell)
                cell.test = CellTest()
                cell.recount(self._replica)
        self._margins = {key: cell for key, cell in self._margins.items() if key[0] != drafter}
        self._changed.add(drafter)

    def _touch(self, key: Key, cell: Cell) -> None:
        """It is not what it was: whatever rests on it is made again."""
        cell.touched = self._entries
        cell.news = cell.due
        self._changed.add(key[0])

    def _fold_away(self) -> None:
        """Fold the cells not seen for longest into their margins, down to the limit."""
        while len(self._cells) > self._limit:
            key = min(self._cells, key=lambda key: self._cells[key].touched)
            cell = self._cells.pop(key)
            drafter, route, language = key
            self._add_to_margin((drafter, route, ANY), cell)
            self._add_to_margin((drafter, ANY, language), cell)
            made = self._made.get(drafter)
            if made is not None:
                made.curves.pop((route, language), None)
            while len(self._margins) > self._limit:
                folded = min(
                    (key for key in self._margins if key[1:] != (ANY, ANY)),
                    key=lambda key: self._margins[key].touched,
                )
                gone = self._margins.pop(folded)
                if folded[2] == ANY:
                    self._add_to_margin((folded[0], ANY, ANY), gone)

    def _add_to_margin(self, key: Key, cell: Cell) -> None:
        margin = self._margins.setdefault(key, Cell())
        margin.absorb(cell, self._replica, self._epoch_blocks)
        self._touch(key, margin)

    def _growth(self, drafter: str, wanted: Sequence[tuple[str, str]]) -> float:
        """By how much what is known of a drafter has grown since its curves were made; infinite if they must be."""
        made = self._made.get(drafter)
        if made is None or drafter in self._changed or any(context not in made.curves for context in wanted):
            return math.inf
        news = sum([cell.news for key, cell in self._cells.items() if key[0] == drafter])
        return news / (self._strength + made.pooled.blocks)

    def _make(self, drafter: str, wanted: list[tuple[str, str]], before: _Made | None, also: float) -> None:
        cells = sorted(
            ((key, cell) for part in (self._cells, self._margins) for key, cell in part.items() if key[0] == drafter),
            key=lambda pair: pair[0],
        )
        counts = Counts(
            tuple((route, language) for (_, route, language), _ in cells),
            np.array([cell.values(self._half_life) for _, cell in cells]).reshape(len(cells), SIZE),
            [cell.summed_moments() for _, cell in cells],
        )
        own = {(route, language): cell for (_, route, language), cell in cells}
        contexts = list(dict.fromkeys((*(context for context in counts.contexts if ANY not in context), *wanted)))
        fall = HEAD_FALL if drafter in self._feature_heads else 1.0
        found: Estimates = estimate(counts, contexts, self._strength, fall)
        growth = int(math.log1p(sum(cell.seen for _, cell in cells)) / _GROWTH)
        known = {} if before is None or before.growth != growth else before.curves
        kept = {
            context: known[context]
            for context in contexts
            if context in known and (context not in own or own[context].news <= also * own[context].due)
        }
        due = [row for row, context in enumerate(contexts) if context not in kept]
        pooled, *new = found.curves([len(contexts), *due])
        made = _Made(pooled, growth, kept)
        made.curves.update((contexts[row], curve) for row, curve in zip(due, new, strict=True))
        for row in due:
            cell = own.get(contexts[row])
            if cell is not None:
                cell.news, cell.due = 0, max(1, int(_NEWS_OF_A_CELL * (self._strength + found.blocks[row])))
        self._made[drafter] = made
        self._changed.discard(drafter)

"""How often drafts are kept: counts per drafter and context, hazards by the product limit, and pooling.

For each drafter, route, language and confidence bucket, ``H[k][a]`` counts the blocks of length k of which a drafts
were kept. The product-limit hazards (Kaplan and Meier 1958) are

    at_j = sum of H[k][a] over k >= j, a >= j - 1     h_j = ac_j / at_j
    ac_j = sum of H[k][a] over k >= j, a >= j         S_j = h_1 * ... * h_j

k is the length *requested*: a drafter that offers less, or nothing, counts as rejected at its next position. Where the
allocation verified less than was offered, k is what it verified; where the sequence ended inside the block, k is the
position reached. Both only censor.

Each bucket's hazards are shrunk with a Beta prior of fixed strength: the cell towards its route and language (their
logits add, less the global one), those towards the rate over everything. The unconditioned curve is the mixture of the
buckets' curves in their observed shares, so that verifying only confident proposals does not move what people read.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from policies.cycle_policy import Survival
from policies.stats import BlockEnd, CycleStats, SequenceStats
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.acceptance.curves import Curve

_FADE_EVERY = 64
"""Blocks of a cell between two multiplications of its counts."""
_SURE = 1e-4
"""Hazards are kept this far from 0 and 1, so that their logits exist."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """The acceptance of a first draft changed."""

    drafter: str
    route: str
    language: str
    before: float
    """S_1 of the blocks before the change."""
    after: float
    """S_1 of the blocks since."""


@dataclass(slots=True)
class _Counts:
    """``at[j - 1]`` and ``accepted[j - 1]`` of each bucket, and the blocks of each bucket."""

    at: dict[int, list[float]] = field(default_factory=dict)
    accepted: dict[int, list[float]] = field(default_factory=dict)
    blocks: dict[int, float] = field(default_factory=dict)

    def add(self, other: "_Counts") -> None:
        for mine, theirs in ((self.at, other.at), (self.accepted, other.accepted)):
            for bucket, values in theirs.items():
                row = mine.setdefault(bucket, [0.0] * MAX_BLOCK_LENGTH)
                for position, value in enumerate(values):
                    row[position] += value
        for bucket, count in other.blocks.items():
            self.blocks[bucket] = self.blocks.get(bucket, 0.0) + count


class _Cell:
    """``H[bucket][(k, a)]`` of one drafter in one context."""

    def __init__(self) -> None:
        self.blocks: dict[int, dict[tuple[int, int], float]] = {}
        self.since_fading = 0

    def add(self, bucket: int, length: int, accepted: int) -> None:
        counts = self.blocks.setdefault(bucket, {})
        key = (length, accepted)
        counts[key] = counts.get(key, 0.0) + 1.0
        self.since_fading += 1

    def fade(self, half_life: float) -> None:
        factor = 0.5 ** (self.since_fading / half_life)
        self.since_fading = 0
        for counts in self.blocks.values():
            for key in counts:
                counts[key] *= factor

    def sums(self) -> _Counts:
        sums = _Counts()
        for bucket, counts in self.blocks.items():
            at = sums.at[bucket] = [0.0] * MAX_BLOCK_LENGTH
            kept = sums.accepted[bucket] = [0.0] * MAX_BLOCK_LENGTH
            sums.blocks[bucket] = sum(counts.values())
            for (length, accepted), count in counts.items():
                for position in range(accepted):
                    at[position] += count
                    kept[position] += count
                if accepted < length:
                    at[accepted] += count
        return sums


class Acceptance:
    """Counts of every drafter and context; not thread-safe."""

    def __init__(self, half_life_blocks: float = 4000.0, strength: float = 20.0) -> None:
        """
        Args:
            half_life_blocks: a block counts half after this many later ones of its cell.
            strength: blocks that the opinion of a cell's relatives is worth.
        """
        self._half_life = half_life_blocks
        self._strength = strength
        self._cells: dict[tuple[str, str, str], _Cell] = {}

    def fold(self, stats: CycleStats) -> None:
        """Count the blocks and shadows of one cycle."""
        for sequence in stats.sequences:
            length = observed_length(sequence)
            if length > 0:
                self.add_block(
                    sequence.drafter,
                    sequence.context.route,
                    sequence.context.language,
                    sequence.confidence,
                    length,
                    sequence.accepted,
                )
        for shadow in stats.shadows:
            length = shadow.matched if shadow.censored else shadow.requested
            if length > 0:
                self.add_block(
                    shadow.drafter,
                    shadow.context.route,
                    shadow.context.language,
                    shadow.confidence,
                    length,
                    shadow.matched,
                )

    def add_block(self, drafter: str, route: str, language: str, confidence: int, length: int, accepted: int) -> None:
        """Count one block of `length` (1..`MAX_BLOCK_LENGTH`) of which `accepted` drafts were kept."""
        length = min(length, MAX_BLOCK_LENGTH)
        cell = self._cells.setdefault((drafter, route, language), _Cell())
        cell.add(confidence, length, min(accepted, length))
        if cell.since_fading >= _FADE_EVERY:
            cell.fade(self._half_life)

    def finish(self, request_key: int) -> None:
        """The request has ended: what was kept in memory for it is counted and dropped."""

    def drafters(self) -> tuple[str, ...]:
        """Every drafter that has been counted."""
        return tuple(dict.fromkeys(name for name, _, _ in self._cells))

    def alarms(self) -> tuple[Alarm, ...]:
        """Changes found since the last call."""
        return ()

    def reset(self, drafter: str, version: str = "") -> None:
        """Forget all of `drafter`, whose fingerprint is `version` now."""
        self._cells = {key: cell for key, cell in self._cells.items() if key[0] != drafter}

    def contexts(self, drafter: str) -> tuple[tuple[str, str], ...]:
        """(route, language) pairs in which `drafter` has been counted."""
        return tuple((route, language) for name, route, language in self._cells if name == drafter)

    def curves(self, drafter: str, contexts: Iterable[tuple[str, str]]) -> tuple[Curve, dict[tuple[str, str], Curve]]:
        """The pooled curve of `drafter`, and one for each of `contexts`, counted or not."""
        everything = _Counts()
        routes: dict[str, _Counts] = {}
        languages: dict[str, _Counts] = {}
        cells: dict[tuple[str, str], _Counts] = {}
        for (name, route, language), cell in self._cells.items():
            if name != drafter:
                continue
            sums = cells[route, language] = cell.sums()
            everything.add(sums)
            routes.setdefault(route, _Counts()).add(sums)
            languages.setdefault(language, _Counts()).add(sums)

        buckets = 1 + max(everything.blocks, default=1)
        pooled = self._pooled_hazards(everything, buckets)
        pooled_shares = _shares(everything, [1.0 / buckets] * buckets, float(buckets))
        by_route = {route: self._shrunk(counts, pooled) for route, counts in routes.items()}
        by_language = {language: self._shrunk(counts, pooled) for language, counts in languages.items()}
        curves: dict[tuple[str, str], Curve] = {}
        for route, language in contexts:
            margins = _combine(by_route.get(route, pooled), by_language.get(language, pooled), pooled)
            counts = cells.get((route, language), _Counts())
            shares = _shares(routes.get(route, _Counts()), pooled_shares, self._strength)
            curves[route, language] = _curve(
                self._shrunk(counts, margins), _shares(counts, shares, self._strength), counts
            )
        return _curve(pooled, pooled_shares, everything), curves

    def _pooled_hazards(self, counts: _Counts, buckets: int) -> list[list[float]]:
        """Hazards over everything. Nothing known: 1/2 at position 1; after that, as good as the position before."""
        hazards: list[list[float]] = []
        for bucket in range(buckets):
            row: list[float] = []
            before = 0.5
            for position in range(MAX_BLOCK_LENGTH):
                at, accepted = _at(counts, bucket, position)
                strength = 2.0 if position == 0 else self._strength
                before = (strength * before + accepted) / (strength + at)
                row.append(before)
            hazards.append(row)
        return hazards

    def _shrunk(self, counts: _Counts, parent: list[list[float]]) -> list[list[float]]:
        """The mean of each hazard's Beta posterior around `parent`."""
        hazards: list[list[float]] = []
        for bucket, prior in enumerate(parent):
            row: list[float] = []
            for position, mean in enumerate(prior):
                at, accepted = _at(counts, bucket, position)
                row.append((self._strength * mean + accepted) / (self._strength + at))
            hazards.append(row)
        return hazards

    def merge(self, other: "Acceptance") -> None:
        """Add the counts of `other`, for example of a replica."""
        for key, theirs in other._cells.items():
            mine = self._cells.setdefault(key, _Cell())
            for bucket, counts in theirs.blocks.items():
                row = mine.blocks.setdefault(bucket, {})
                for block, count in counts.items():
                    row[block] = row.get(block, 0.0) + count

    def state(self) -> list[dict[str, Any]]:
        """The counts as JSON-able values: per cell and bucket, rows of [k, a, count]."""
        return [
            {
                "drafter": drafter,
                "route": route,
                "language": language,
                "confidence": bucket,
                "blocks": [[length, accepted, round(count, 4)] for (length, accepted), count in counts.items()],
            }
            for (drafter, route, language), cell in self._cells.items()
            for bucket, counts in cell.blocks.items()
        ]

    def restore(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Replace the counts by those of `state`.

        Raises:
            KeyError, TypeError, ValueError: `state` was not made by `state()`.
        """
        cells: dict[tuple[str, str, str], _Cell] = {}
        for entry in state:
            cell = cells.setdefault((str(entry["drafter"]), str(entry["route"]), str(entry["language"])), _Cell())
            counts = cell.blocks.setdefault(int(entry["confidence"]), {})
            for length, accepted, count in entry["blocks"]:
                if not 0 <= accepted <= length <= MAX_BLOCK_LENGTH or not 0.0 <= count < math.inf:
                    raise ValueError(f"no block has length {length}, accepted {accepted} and count {count}")
                counts[int(length), int(accepted)] = float(count)
        self._cells = cells


def product_limit(blocks: Iterable[tuple[int, int]], length: int) -> tuple[float, ...]:
    """S_1..S_length from (k, a) of each block, pooled with nothing; shorter where no block reached a position."""
    cell = _Cell()
    for requested, accepted in blocks:
        cell.add(0, requested, accepted)
    counts = cell.sums()
    curve: list[float] = []
    survival = 1.0
    for position in range(length):
        at, accepted_there = _at(counts, 0, position)
        if not at and survival > 0.0:
            break
        survival *= accepted_there / at if at else 0.0
        curve.append(survival)
    return tuple(curve)


def observed_length(sequence: SequenceStats) -> int:
    """The k under which a block is counted; 0 if the cycle shows nothing of it."""
    if sequence.drafter == PLAIN or sequence.requested == 0:
        return 0
    if sequence.end is BlockEnd.CENSORED:
        return sequence.accepted
    return sequence.requested if sequence.verified == sequence.proposed else sequence.verified


def _at(counts: _Counts, bucket: int, position: int) -> tuple[float, float]:
    """(at, accepted) at a position counted from 0."""
    at = counts.at.get(bucket)
    return (0.0, 0.0) if at is None else (at[position], counts.accepted[bucket][position])


def _combine(route: list[list[float]], language: list[list[float]], pooled: list[list[float]]) -> list[list[float]]:
    """sigmoid(logit route + logit language - logit pooled), element by element."""
    return [
        [
            _sigmoid(_logit(r) + _logit(m) - _logit(g))
            for r, m, g in zip(route_row, language_row, pooled_row, strict=True)
        ]
        for route_row, language_row, pooled_row in zip(route, language, pooled, strict=True)
    ]


def _logit(share: float) -> float:
    share = min(max(share, _SURE), 1.0 - _SURE)
    return math.log(share / (1.0 - share))


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


def _shares(counts: _Counts, prior: list[float], strength: float) -> list[float]:
    """The mean of the buckets' Dirichlet posterior around `prior`."""
    total = sum(counts.blocks.values()) + strength
    return [(counts.blocks.get(bucket, 0.0) + strength * mean) / total for bucket, mean in enumerate(prior)]


def _curve(hazards: list[list[float]], shares: list[float], counts: _Counts) -> Curve:
    by_confidence: list[tuple[float, ...]] = [(0.0,) * MAX_BLOCK_LENGTH]
    for row in hazards[1:]:
        survival = 1.0
        curve: list[float] = []
        for hazard in row:
            survival *= hazard
            curve.append(survival)
        by_confidence.append(tuple(curve))
    unconditioned = tuple(
        sum(share * curve[position] for share, curve in zip(shares, by_confidence, strict=True))
        for position in range(MAX_BLOCK_LENGTH)
    )
    emitted = tuple(itertools.accumulate(unconditioned, initial=1.0))
    return Curve(
        survival=Survival(tuple(by_confidence)),
        shares=tuple(shares),
        unconditioned=unconditioned,
        offered=(1.0 - shares[0],) * MAX_BLOCK_LENGTH,
        emitted=emitted,
        low=unconditioned,
        high=unconditioned,
        emitted_low=emitted,
        emitted_high=emitted,
        blocks=sum(counts.blocks.values()),
    )

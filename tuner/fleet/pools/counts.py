"""What is counted of exchanges: whole numbers by lane, context, load and stretch of time, which merge without conflict.

Time is cut into ticks of two seconds. The latest ticks are kept as they are, older ones joined by eights, those by
eights again, and so on; the oldest are forgotten. Where a tick is kept follows from the newest tick alone, and the sums
are integers, so the state is a function of the set of exchanges: their order does not matter, and no sum rounds.

Only a replica itself adds to its stretches, so merging takes the larger of two versions of one stretch, and adding up
is left to the reader: a grow-only counter (Shapiro et al. 2011), commutative, associative and idempotent. How much a
stretch still counts is the reader's to say, by its age.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

TICK_SECONDS = 2.0
LEVELS = 4
"""Stretches of 2 s, 16 s, 128 s and 17 min."""
KEPT = 16
"""Stretches of each length, but for one or two where lengths meet: four and a half hours."""
BINS = 17
"""Loads by the nearest power of two, up to 65536."""
MOST_PLACES = 2048
"""In one stretch of one replica; exchanges that would need more are not counted."""
_MOST_WEIGHT = 100.0
_MICRO = 1_000_000
_MILLI = 1_000


class Part(StrEnum):
    """What an exchange is evidence of, beside its lane's speed."""

    HELD = "held"
    """Drawn for the plain pool, to measure the baseline."""
    LEARNED = "learned"
    """Given the lane that was weighed best, or that was tried."""
    DEFAULT = "default"
    """Sent where it would have gone without us, or where the configuration says."""
    PINNED = "pinned"
    OTHER = "other"
    """Plain because of what the request is, or what stopped speculation: not like the others."""


class Place(NamedTuple):
    """What sums are kept apart by."""

    lane: str
    model: str
    route: str
    language: str
    bin: int
    """The load, as `bin_of` says."""
    part: Part


class Sums(NamedTuple):
    """Whole numbers; the totals over some exchanges."""

    requests: int = 0
    tokens: int = 0
    """Output tokens after the first."""
    micros: int = 0
    """Microseconds in which they came."""
    loads: int = 0
    """Thousandths of a token's load, added up over tokens."""
    logs: int = 0
    """Thousandths of ln(microseconds per token), added up over requests, and their squares in millionths."""
    squares: int = 0
    weighted_tokens: int = 0
    """Thousandths; each request counts by one over the chance that it had of its lane's kind."""
    weighted_micros: int = 0
    prompts: int = 0
    """Requests that tell how much of the prompt had to be computed."""
    fresh: int = 0
    """Those tokens."""
    waits: int = 0
    """Microseconds to the first byte of these requests, and the moments that a slope is made of."""
    fresh_squares: int = 0
    fresh_waits: int = 0


NOTHING = Sums()


@dataclass(frozen=True, slots=True)
class Sample:
    """One exchange, as it is counted."""

    lane: str
    model: str
    route: str
    language: str
    part: Part
    at: float
    """Unix seconds."""
    load: float
    tokens: int
    """After the first; at least 1."""
    seconds: float
    propensity: float = 1.0
    fresh: int | None = None
    """Tokens of the prompt that had to be computed; None where nothing tells."""
    wait_seconds: float = 0.0


class Epoch(NamedTuple):
    """A stretch of time: ticks ``number << 3 * level`` and on."""

    level: int
    number: int

    @property
    def started_at(self) -> float:
        return (self.number << 3 * self.level) * TICK_SECONDS

    @property
    def ended_at(self) -> float:
        return (self.number + 1 << 3 * self.level) * TICK_SECONDS


Record = dict[Place, Sums]


def bin_of(load: float) -> int:
    """The nearest power of two."""
    return min(max(0, round(math.log2(max(load, 1.0)))), BINS - 1)


def epoch_of(tick: int, newest: int) -> Epoch | None:
    """Where a tick is kept when `newest` is the latest; None if it is forgotten."""
    for level in range(LEVELS):
        index = tick >> 3 * level
        if index > (newest >> 3 * level) - KEPT:
            return Epoch(level, index)
    return None


class Counts:
    """Not thread-safe."""

    def __init__(self, replica: str) -> None:
        """`replica` names who counts; a restart is another one, or goes on from `state`."""
        self.replica = replica
        self._newest = 0
        self._records: dict[tuple[str, Epoch], Record] = {}
        self.revision = 0
        """Rises with every change."""

    def add(self, sample: Sample) -> None:
        """Count an exchange; one that is older than what is kept changes nothing."""
        tick = int(sample.at / TICK_SECONDS)
        if tick > self._newest:
            self._advance(tick)
        epoch = epoch_of(tick, self._newest)
        if epoch is None:
            return
        record = self._records.setdefault((self.replica, epoch), {})
        place = Place(sample.lane, sample.model, sample.route, sample.language, bin_of(sample.load), sample.part)
        if place not in record and len(record) >= MOST_PLACES:
            return
        record[place] = _add(record.get(place, NOTHING), _sums(sample))
        self.revision += 1

    def merge(self, other: "Counts") -> None:
        """Take over what `other` knows, of its own and of others."""
        self._advance(max(self._newest, other._newest))
        theirs = _placed(other._records, self._newest)
        for key, record in theirs.items():
            mine = self._records.get(key)
            if mine is None or _size(record) > _size(mine):
                self._records[key] = dict(record)
        self.revision += 1

    def __iter__(self) -> Iterator[tuple[Epoch, Place, Sums]]:
        """In order of time; a stretch comes once for each replica."""
        for (_, epoch), record in sorted(self._records.items(), key=lambda item: (item[0][1].started_at, item[0][0])):
            for place, sums in record.items():
                yield epoch, place, sums

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counts) and self._records == other._records

    __hash__ = None  # type: ignore[assignment]

    @property
    def newest_at(self) -> float:
        """Unix seconds at which the newest stretch began; 0.0 before the first."""
        return self._newest * TICK_SECONDS

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "newest": self._newest,
            "records": [
                [replica, *epoch, [[*place, *sums] for place, sums in record.items()]]
                for (replica, epoch), record in self._records.items()
            ],
        }

    @classmethod
    def of_state(cls, replica: str, state: Mapping[str, Any]) -> "Counts":
        """Raises KeyError, TypeError or ValueError for what is no state."""
        counts = cls(replica)
        counts._newest = int(state["newest"])
        width = len(Place._fields)
        for owner, level, index, rows in state["records"]:
            record: Record = {}
            for row in rows:
                lane, model, route, language, load, part = row[:width]
                sums = Sums(*(int(value) for value in row[width:]))
                record[Place(str(lane), str(model), str(route), str(language), int(load), Part(part))] = sums
            counts._records[str(owner), Epoch(int(level), int(index))] = record
        return counts

    def _advance(self, newest: int) -> None:
        if newest == self._newest:
            return
        self._newest = newest
        if any(epoch_of(epoch.number << 3 * epoch.level, newest) != epoch for _, epoch in self._records):
            self._records = _placed(self._records, newest)


def _placed(records: Mapping[tuple[str, Epoch], Record], newest: int) -> dict[tuple[str, Epoch], Record]:
    """`records` as they are kept when `newest` is the latest tick."""
    placed: dict[tuple[str, Epoch], Record] = {}
    for (replica, epoch), record in records.items():
        # What decides between two lengths is the longer one's index, so all ticks of a stretch move together.
        moved = epoch_of(epoch.number << 3 * epoch.level, newest)
        if moved is None:
            continue
        into = placed.setdefault((replica, moved), {})
        for place, sums in record.items():
            into[place] = _add(into[place], sums) if place in into else sums
    return placed


def _size(record: Record) -> int:
    return sum(sums.requests for sums in record.values())


def _add(left: Sums, right: Sums) -> Sums:
    return Sums(*map(int.__add__, left, right))


def _sums(sample: Sample) -> Sums:
    micros = max(1, round(sample.seconds * _MICRO))
    weight = round(_MILLI * min(_MOST_WEIGHT, 1.0 / max(sample.propensity, 1e-9)))
    log = round(_MILLI * math.log(micros / sample.tokens))
    waits = max(0, round(sample.wait_seconds * _MICRO))
    fresh = sample.fresh
    return Sums(
        requests=1,
        tokens=sample.tokens,
        micros=micros,
        loads=round(_MILLI * sample.load) * sample.tokens,
        logs=log,
        squares=log * log,
        weighted_tokens=weight * sample.tokens,
        weighted_micros=weight * micros,
        prompts=0 if fresh is None else 1,
        fresh=fresh or 0,
        waits=0 if fresh is None else waits,
        fresh_squares=0 if fresh is None else fresh * fresh,
        fresh_waits=0 if fresh is None else fresh * waits,
    )

"""What is counted of one drafter in one context: additive counts by replica and epoch, which merge without conflict.

A block of requested length k of which a drafts were kept enters H[k][a] of its confidence bucket. The product limit
reads H only through two sums over k: ``rejected[a]``, the blocks with k > a, and ``censored[a]``, those with k = a:

    ac_j = sum over a >= j of rejected[a] + censored[a]        at_j = ac_j + rejected[j - 1]

so these are what is kept. How many tokens are offered of those requested is counted in the same form.

The state of a cell is {(replica, epoch): counts}. Only the replica itself adds to its records, so merging takes the
larger of two versions of one record, and adding is left to the reader: a grow-only counter (Shapiro et al. 2011),
commutative, associative and idempotent. Epochs are numbered as in Lamport's clock: a replica goes on from the largest
number that it has seen. Forgetting happens when it is read, by the blocks that later epochs hold. `floor` is the first
epoch that still counts; it only rises, when acceptance has changed.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from policies.types import MAX_BLOCK_LENGTH
from tuner.acceptance.change import PRIOR_CORRELATION, CellTest, effective

Floats = NDArray[np.float64]
Record: TypeAlias = "array[int]"
"""`SIZE` counts: shares of the buckets, a row of runs for each bucket, re-blocked tokens and blocks by length."""

LENGTHS = MAX_BLOCK_LENGTH + 1
"""Block lengths, and numbers of drafts kept: 0..16."""
BUCKETS = 16
"""Confidence buckets that are told apart; those beyond count as the last."""
ROW = 2 * LENGTHS
"""``rejected[0..16]`` and ``censored[0..16]``."""
RUNS = BUCKETS
"""Row b starts at ``RUNS + b * ROW``. Nothing is proposed in bucket 0, so row 0 counts what is offered instead."""
TOKENS = RUNS + BUCKETS * ROW
BLOCKS = TOKENS + LENGTHS
SIZE = BLOCKS + LENGTHS

EPOCHS_OF_A_HALF_LIFE = 4
KEPT_RECORDS = 16
"""Newest records of one cell that are kept and read: four half-lives, for a single replica."""
_RECENT = 1024
"""Newest entries kept in order, to be counted again when acceptance has changed."""
_FINISHED = 32
"""Newest finished requests of one cell that are kept for the same reason."""
_BLOCKS_OF_A_REQUEST = 30
_PRIOR_REQUESTS = 5.0
"""Requests that the prior correlation is worth."""
_LEAST_CORRELATION = 0.03
NO_PLACE = 1023
_MASK = 1023
MOMENTS = 1 + 2 * MAX_BLOCK_LENGTH


class Moments:
    """Sums over finished requests of the squares and products of what each brought; additive too.

    ``cross`` is the sum of v v' with v = (1, at_1..at_16, ac_1..ac_16) of a request over all its blocks; ``emitted`` of
    shape (3, 17) the sums of tokens^2, tokens * blocks and blocks^2 of its re-blocked text, by block length, and
    ``emitted_blocks`` (2, 17) those of tokens and blocks.
    """

    __slots__ = ("cross", "emitted", "emitted_sums")

    def __init__(self) -> None:
        self.cross: Floats = np.zeros((MOMENTS, MOMENTS))
        self.emitted: Floats = np.zeros((3, LENGTHS))
        self.emitted_sums: Floats = np.zeros((2, LENGTHS))

    def add_request(self, at: Floats, accepted: Floats, tokens: Floats, blocks: Floats) -> None:
        vector = np.empty(MOMENTS)
        vector[0] = 1.0
        vector[1 : MAX_BLOCK_LENGTH + 1] = at
        vector[MAX_BLOCK_LENGTH + 1 :] = accepted
        self.cross += vector[:, None] * vector
        self.emitted[0] += tokens * tokens
        self.emitted[1] += tokens * blocks
        self.emitted[2] += blocks * blocks
        self.emitted_sums[0] += tokens
        self.emitted_sums[1] += blocks

    @property
    def correlation(self) -> float:
        """Of first drafts within a request, as blocks of one draft or as they were served, from the design effect
        1 + (n - 1) * correlation of clusters of n blocks (Kish 1965)."""
        requests = float(self.cross[0, 0])
        if self.emitted_sums[1, 1]:
            tokens, blocks = self.emitted_sums[:, 1].tolist()
            kept = tokens - blocks
            squares, products, sizes = self.emitted[:, 1].tolist()
            squares, products = squares - 2.0 * products + sizes, products - sizes
        else:
            first = MAX_BLOCK_LENGTH + 1
            blocks, kept = self.cross[0, [1, first]].tolist()
            squares, products, sizes = self.cross[[first, 1, 1], [first, first, 1]].tolist()
        if requests < 2.0 or sizes <= 2.0 * blocks or not 0.0 < kept < blocks:
            return PRIOR_CORRELATION
        mean = kept / blocks
        spread = (squares - 2.0 * mean * products + mean * mean * sizes) * requests / (requests - 1.0)
        found = (spread / (blocks * mean * (1.0 - mean)) - 1.0) / (sizes / blocks - 1.0)
        blend = (found * (requests - 1.0) + PRIOR_CORRELATION * _PRIOR_REQUESTS) / (requests - 1.0 + _PRIOR_REQUESTS)
        return float(min(max(blend, _LEAST_CORRELATION), 1.0))

    def add(self, other: "Moments") -> None:
        self.cross += other.cross
        self.emitted += other.emitted
        self.emitted_sums += other.emitted_sums

    @property
    def order(self) -> tuple[float, bytes]:
        """A version with more requests is the newer one; the bytes only break ties that no honest replica makes."""
        return float(self.cross[0, 0]), self.cross.tobytes() + self.emitted.tobytes()


@dataclass(frozen=True, slots=True)
class Finished:
    """What one request brought of one drafter."""

    drafter: str
    route: str
    language: str
    at: Floats
    """at_1..at_16 over its blocks of every confidence."""
    accepted: Floats
    """ac_1..ac_16."""
    tokens: Floats
    """By block length 0..16, of its re-blocked text; all zeros where the drafter's proposals depend on its blocks."""
    blocks: Floats

    @property
    def first_drafts(self) -> tuple[float, float]:
        """(blocks, first drafts kept), of blocks of one draft, or as they were served where there are none."""
        if self.blocks[1]:
            return float(self.blocks[1]), float(self.tokens[1] - self.blocks[1])
        return float(self.at[0]), float(self.accepted[0])


@dataclass(frozen=True, slots=True)
class Landmark:
    """A request that finished."""

    mark: int
    seen: int
    """Entries of its cell by then."""
    finished: Finished


class Cell:
    """One drafter in one context."""

    __slots__ = (
        "_values",
        "epoch",
        "finished",
        "floor",
        "moments",
        "open",
        "recent",
        "records",
        "revision",
        "room",
        "seen",
        "test",
        "touched",
    )

    def __init__(self) -> None:
        self.records: dict[tuple[int, str], Record] = {}
        """By (epoch, replica)."""
        self.epoch = 0
        self.floor = 0
        self.open: Record | None = None
        """The record that this replica adds to."""
        self.room = 0
        """Blocks that the open record still takes."""
        self.moments: dict[str, Moments] = {}
        """By replica; all of them since `floor`."""
        self.test = CellTest()
        self.finished: deque[Landmark] = deque(maxlen=_FINISHED)
        """The last requests that finished, oldest first, to be counted again."""
        self.recent: Record = array("I")
        self.seen = 0
        """Entries so far, forgotten ones too: how much there is to learn from, and so when relatives look again."""
        self.revision = 0
        """Rises with every change."""
        self.touched = 0
        self._values: tuple[int, Floats] | None = None

    def open_record(self, replica: str, epoch_blocks: int) -> Record:
        """The record that takes the next block; a new one when the last is full."""
        if self.open is None or self.room <= 0:
            if self.open is not None:
                self.epoch += 1
            self.open = self.records.setdefault((self.epoch, replica), _empty())
            self.room = epoch_blocks
            _drop_oldest(self.records)
        return self.open

    def remember(self, share: int, offer: int, run: int) -> None:
        """Keep the places of an entry, so that it can be counted again."""
        recent = self.recent
        if len(recent) >= 2 * _RECENT:
            del recent[:_RECENT]
        recent.append(share | offer << 10 | run << 20)

    def restart(self, replica: str, epoch_blocks: int, after: int) -> None:
        """Forget what came up to landmark `after`; what came since is counted again, as far as it is at hand."""
        marks = [(landmark.mark, landmark.seen) for landmark in self.finished]
        seen_then = max((seen for mark, seen in marks if mark <= after), default=0)
        while self.finished and self.finished[0].mark <= after:
            self.finished.popleft()
        newest = max((epoch for epoch, _ in self.records), default=self.epoch)
        self.records.clear()
        self.moments.clear()
        self.epoch = self.floor = max(newest, self.epoch) + 1
        self.open, self.room = None, 0
        record = self.open_record(replica, epoch_blocks)
        for entry in self.recent[max(0, len(self.recent) - (self.seen - seen_then)) :]:
            for place in (entry & _MASK, entry >> 10 & _MASK, entry >> 20):
                if place != NO_PLACE:
                    record[place] += 1
            self.room -= 1
        for landmark in self.finished:
            self._add_sums(replica, epoch_blocks, landmark.finished)
        self.revision += 1

    def correlation(self, replica: str) -> float:
        """Of first drafts within a request of this replica."""
        moments = self.moments.get(replica)
        return PRIOR_CORRELATION if moments is None else moments.correlation

    def add_request(self, replica: str, epoch_blocks: int, one: Finished, mark: int) -> None:
        """Count a finished request's sums; `mark` numbers the requests of all cells."""
        self._add_sums(replica, epoch_blocks, one)
        self.finished.append(Landmark(mark, self.seen, one))
        self.revision += 1

    def _add_sums(self, replica: str, epoch_blocks: int, one: Finished) -> None:
        self.moments.setdefault(replica, Moments()).add_request(one.at, one.accepted, one.tokens, one.blocks)
        record = np.frombuffer(self.open_record(replica, epoch_blocks), dtype=np.int32)
        record[TOKENS:BLOCKS] += one.tokens.astype(np.int32)
        record[BLOCKS:] += one.blocks.astype(np.int32)

    def absorb(self, other: "Cell", replica: str, epoch_blocks: int) -> None:
        """Count as one's own what this replica counted in `other`, which is no more. Other replicas keep theirs."""
        record = np.frombuffer(self.open_record(replica, epoch_blocks), dtype=np.int32)
        before = int(record[:BUCKETS].sum())
        for (_, owner), theirs in other.records.items():
            if owner == replica:
                record += np.frombuffer(theirs, dtype=np.int32)
        added = int(record[:BUCKETS].sum()) - before
        self.room -= added
        self.seen += added
        self.revision += 1

    def merge(self, other: "Cell") -> None:
        """Take the newer version of every record and of every replica's moments."""
        floor = max(self.floor, other.floor)
        for key, theirs in other.records.items():
            mine = self.records.get(key)
            if mine is None or _order(theirs) > _order(mine):
                if mine is not None and mine is self.open:
                    # Only a restored replica meets a newer version of its own record.
                    self.open = None
                self.records[key] = array("i", theirs)
        if self.floor < floor:
            self.moments.clear()
        if other.floor == floor:
            for replica, moments in other.moments.items():
                known = self.moments.get(replica)
                if known is None or moments.order > known.order:
                    copied = self.moments[replica] = Moments()
                    copied.add(moments)
        self._raise(floor)

    def _raise(self, floor: int) -> None:
        """Drop what no longer counts, and go on in the newest epoch."""
        self.floor = floor
        for key in [key for key in self.records if key[0] < floor]:
            del self.records[key]
        _drop_oldest(self.records)
        newest = max((epoch for epoch, _ in self.records), default=floor)
        if self.epoch < newest:
            self.epoch = newest
            self.open = None
        self.seen = max(self.seen, sum(sum(record[:BUCKETS]) for record in self.records.values()))
        self.revision += 1

    def values(self, half_life: float) -> Floats:
        """The counts of all records, each at the weight of its age; shape (SIZE,)."""
        if self._values is not None and self._values[0] == self.revision:
            return self._values[1]
        totals = np.zeros(SIZE)
        age = 0.0
        for records in self._by_epoch():
            blocks = sum(sum(record[:BUCKETS]) for record in records)
            # An epoch is as old as its middle.
            weight = 0.5 ** ((age + blocks / 2.0) / half_life)
            for record in records:
                totals += np.frombuffer(record, dtype=np.int32) * weight
            age += blocks
        self._values = self.revision, totals
        return totals

    def _first_drafts(self) -> tuple[int, int]:
        """(blocks, first drafts kept) of all records re-blocked to one draft, without regard to age."""
        tokens, blocks = (sum(record[place + 1] for record in self.records.values()) for place in (TOKENS, BLOCKS))
        return blocks, tokens - blocks

    def summed_moments(self) -> Moments | None:
        """Over the replicas; None where no request has finished."""
        if not self.moments:
            return None
        if len(self.moments) == 1:
            return next(iter(self.moments.values()))
        total = Moments()
        for _, moments in sorted(self.moments.items()):
            total.add(moments)
        return total

    def _by_epoch(self) -> Iterator[list[Record]]:
        """Newest first, and always in the same order: sums of weighted counts depend on it in their last bits."""
        records: list[Record] = []
        last = -1
        for key in sorted(self.records, reverse=True):
            if key[0] != last and records:
                yield records
                records = []
            records.append(self.records[key])
            last = key[0]
        if records:
            yield records

    def state(self) -> dict[str, Any]:
        """JSON-able: of each record the places that are not 0 and their counts; of moments the upper triangles."""
        return {
            "floor": self.floor,
            "records": [
                [epoch, replica, [[place, count] for place, count in enumerate(record) if count]]
                for (epoch, replica), record in sorted(self.records.items())
            ],
            "moments": [
                [replica, _packed(moments.cross), moments.emitted.tolist(), moments.emitted_sums.tolist()]
                for replica, moments in sorted(self.moments.items())
            ],
        }

    @classmethod
    def of_state(cls, state: Any) -> "Cell":
        """Raises KeyError, TypeError or ValueError where `state` is damaged."""
        cell = cls()
        floor = _whole(state["floor"], "floor")
        for epoch, replica, places in state["records"]:
            record = cell.records[_whole(epoch, "epoch"), str(replica)] = _empty()
            for place, count in places:
                if not 0 <= _whole(place, "place") < SIZE:
                    raise ValueError(f"no count of an acceptance record has place {place}; there are {SIZE}")
                record[place] = _whole(count, "count")
        for replica, cross, emitted, sums in state["moments"]:
            moments = cell.moments[str(replica)] = Moments()
            moments.cross = _unpacked(cross)
            moments.emitted = _sums(emitted, moments.emitted.shape)
            moments.emitted_sums = _sums(sums, moments.emitted_sums.shape)
        cell._raise(floor)
        blocks, kept = cell._first_drafts()
        if blocks:
            # How they fell to requests is not known: as if each had brought this many.
            worth = effective(_BLOCKS_OF_A_REQUEST, PRIOR_CORRELATION) / _BLOCKS_OF_A_REQUEST
            cell.test.add(blocks * worth, kept * worth, 0, requests=max(1, blocks // _BLOCKS_OF_A_REQUEST))
        # What was counted after the state was saved may be with others already: it goes on in a new epoch.
        cell.epoch += 1
        return cell


def _empty() -> Record:
    return array("i", bytes(4 * SIZE))


def _order(record: Record) -> tuple[int, Record]:
    """A record only grows: the larger version is the newer; its content only breaks ties that no honest one makes."""
    return sum(record), record


def _drop_oldest(records: dict[tuple[int, str], Record]) -> None:
    """Keep the newest by (epoch, replica). The newest of a union of sets are those of the union of their newest."""
    for key in sorted(records)[: -KEPT_RECORDS or None] if len(records) > KEPT_RECORDS else ():
        del records[key]


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{name} of an acceptance record is {value!r}; it is a whole number from 0 on")
    return value


def _packed(cross: Floats) -> list[list[float]]:
    """Rows of the upper triangle up to the last place that is not 0."""
    return [_trimmed(row[index:].tolist()) for index, row in enumerate(cross)]


def _trimmed(values: list[float]) -> list[float]:
    end = len(values)
    while end and not values[end - 1]:
        end -= 1
    return values[:end]


def _unpacked(rows: Any) -> Floats:
    cross = np.zeros((MOMENTS, MOMENTS))
    for index, row in enumerate(rows):
        values = np.array(row, dtype=np.float64)
        if values.ndim != 1 or index + len(values) > MOMENTS or not np.isfinite(values).all():
            raise ValueError(f"row {index} of an acceptance cell's moments is not up to {MOMENTS - index} numbers")
        cross[index, index : index + len(values)] = values
    return cross + np.triu(cross, 1).T


def _sums(rows: Any, shape: tuple[int, ...]) -> Floats:
    values = np.array(rows, dtype=np.float64)
    if values.shape != shape or not np.isfinite(values).all() or (values < 0.0).any():
        raise ValueError(f"the re-blocked sums of an acceptance cell are not {shape} numbers from 0 on")
    return values

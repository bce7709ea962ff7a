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

from tuner.acceptance.change import PRIOR_CORRELATION, CellTest, effective
from tuner.acceptance.moments import LENGTHS, Finished, Floats, Moments

Record: TypeAlias = "array[int]"
"""`SIZE` counts: shares of the buckets, a row of runs for each bucket, re-blocked tokens and blocks by length."""

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
NO_PLACE = 1023
_MASK = 1023


@dataclass(frozen=True, slots=True)
class Landmark:
    """A request that finished."""

    mark: int
    seen: int
    """Entries of its cell by then."""
    finished: Finished


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a replica had counted in a cell when it changed."""

    record: Record
    moments: Moments
    blocks: float
    """Effective ones of its requests, as tests of change count them, and the first drafts kept of them."""
    kept: float


class Cell:
    """One drafter in one context."""

    __slots__ = (
        "_values",
        "began",
        "due",
        "epoch",
        "finished",
        "floor",
        "moments",
        "news",
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
        self.began = 0
        """Of them, those that are forgotten."""
        self.revision = 0
        """Rises with every change."""
        self.touched = 0
        self.news = 0
        """Entries since a curve was made of it."""
        self.due = 1
        """So many are worth making it again."""
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
        self.began = self._seen_by(after)
        while self.finished and self.finished[0].mark <= after:
            self.finished.popleft()
        newest = max((epoch for epoch, _ in self.records), default=self.epoch)
        self.records.clear()
        self.moments.clear()
        self.epoch = self.floor = max(newest, self.epoch) + 1
        self.open, self.room = None, 0
        record = self.open_record(replica, epoch_blocks)
        for entry in self.recent[max(0, len(self.recent) - (self.seen - self.began)) :]:
            for place in (entry & _MASK, entry >> 10 & _MASK, entry >> 20):
                if place != NO_PLACE:
                    record[place] += 1
            self.room -= 1
        for landmark in self.finished:
            self._add_sums(replica, epoch_blocks, landmark.finished)
        self.revision += 1

    def _seen_by(self, after: int) -> int:
        """Entries up to landmark `after`. What is forgotten stays so; where landmarks reach back less far, as many as
        the oldest of them tells."""
        before = [landmark.seen for landmark in self.finished if landmark.mark <= after]
        if not before and len(self.finished) == _FINISHED:
            before = [self.finished[0].seen]
        return max(before, default=self.began)

    def remembered(self, replica: str, after: int, most_blocks: float) -> Remembered:
        """What `replica` counted up to landmark `after`, as if it had been `most_blocks` if it was more."""
        record = np.zeros(SIZE)
        for (_, owner), mine in self.records.items():
            if owner == replica:
                record += np.frombuffer(mine, dtype=np.int32)
        moments = Moments()
        moments.add(self.moments.get(replica, moments))
        since = self.seen - self._seen_by(after)
        for entry in self.recent[max(0, len(self.recent) - since) :]:
            for place in (entry & _MASK, entry >> 10 & _MASK, entry >> 20):
                if place != NO_PLACE:
                    record[place] -= 1
        later = Moments()
        for landmark in self.finished:
            if landmark.mark > after:
                one = landmark.finished
                later.add_request(one.at, one.accepted, one.tokens, one.blocks)
                record[TOKENS:BLOCKS] -= one.tokens
                record[BLOCKS:] -= one.blocks
        moments.add(later, -1.0)
        record = np.maximum(record, 0.0)
        record *= min(1.0, most_blocks / max(record[:BUCKETS].sum(), 1.0))
        (blocks, kept), _ = self.parted(replica, after)
        return Remembered(array("i", np.rint(record).astype(np.int32).tobytes()), moments, blocks, kept)

    def parted(self, replica: str, after: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """(effective blocks, first drafts kept of them) up to landmark `after`, and since."""
        correlation = self.correlation(replica)
        later = [first_drafts(one.finished, correlation) for one in self.finished if one.mark > after]
        blocks, kept = sum([each for each, _ in later]), sum([each for _, each in later])
        return (max(self.test.blocks - blocks, 0.0), max(self.test.kept - kept, 0.0)), (blocks, kept)

    def recall(self, then: Remembered, replica: str, epoch_blocks: int) -> None:
        """Count again what was counted once."""
        record = np.frombuffer(self.open_record(replica, epoch_blocks), dtype=np.int32)
        record += np.frombuffer(then.record, dtype=np.int32)
        self.room -= sum(then.record[:BUCKETS])
        self.moments.setdefault(replica, Moments()).add(then.moments)
        self.test = CellTest()
        if then.blocks:
            requests = max(1, int(then.blocks * PRIOR_CORRELATION))
            self.test.add(then.blocks, then.kept, 0, requests)
        self.recount(replica)
        self.revision += 1

    def recount(self, replica: str) -> None:
        """Add the requests at hand to the test."""
        correlation = self.correlation(replica)
        for landmark in self.finished:
            self.test.add(*first_drafts(landmark.finished, correlation), landmark.mark)

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
            "moments": [[replica, *moments.state()] for replica, moments in sorted(self.moments.items())],
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
            cell.moments[str(replica)] = Moments.of_state(cross, emitted, sums)
        cell._raise(floor)
        blocks, kept = cell._first_drafts()
        if blocks:
            # How they fell to requests is not known: as if each had brought this many.
            worth = effective(_BLOCKS_OF_A_REQUEST, PRIOR_CORRELATION) / _BLOCKS_OF_A_REQUEST
            cell.test.add(blocks * worth, kept * worth, 0, requests=max(1, blocks // _BLOCKS_OF_A_REQUEST))
        # What was counted after the state was saved may be with others already: it goes on in a new epoch.
        cell.epoch += 1
        return cell


def first_drafts(one: Finished, correlation: float) -> tuple[float, float]:
    """(effective blocks, first drafts kept of them)."""
    blocks, kept = one.first_drafts
    worth = effective(blocks, correlation)
    return worth, worth * kept / blocks if blocks else 0.0


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

"""What a block length would have emitted, exactly: a trace's own requests cut into blocks of every length.

Truncating long blocks is biased where acceptance comes in bursts (research notes, 5.3): a long block starts more often
right after a rejection. So each length K is walked by itself, from a request's first token to its last.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.trace import Trace

LENGTHS = MAX_BLOCK_LENGTH + 1
"""Block lengths 0..16."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Complexes = NDArray[np.complex128]


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Blocks of groups of requests. D drafters in the trace's order, C groups; length 0 is plain for every drafter."""

    tokens: Floats
    """(C,): tokens that the group's requests emit."""
    blocks: Floats
    """(C, D, 17): blocks, thus cycles, that they take with each drafter and block length."""
    proposed: Floats
    """(C, D, 17, 17): how many of those blocks propose 0..16 drafts."""

    def merged(self, group_of: Ints, groups: int) -> "BlockTables":
        """Of groups of these groups, for `group_of` each."""
        tokens = np.zeros(groups)
        blocks = np.zeros((groups, *self.blocks.shape[1:]))
        proposed = np.zeros((groups, *self.proposed.shape[1:]))
        np.add.at(tokens, group_of, self.tokens)
        np.add.at(blocks, group_of, self.blocks)
        np.add.at(proposed, group_of, self.proposed)
        return BlockTables(tokens, blocks, proposed)

    @property
    def emitted(self) -> Floats:
        """(C, D, 17): tokens a block; 1 for a group without requests."""
        with np.errstate(invalid="ignore"):
            return np.where(self.blocks > 0, self.tokens[:, None, None] / self.blocks, 1.0)

    @property
    def chances(self) -> Floats:
        """(C, D, 17, 17): the chance of proposing 0..16 drafts; surely 0 for a group without requests."""
        nothing = np.zeros(LENGTHS)
        nothing[0] = 1.0
        with np.errstate(invalid="ignore"):
            return np.where(self.blocks[..., None] > 0, self.proposed / self.blocks[..., None], nothing)


class Reblocked:
    """A trace's requests, cut into blocks of every drafter and length."""

    def __init__(self, trace: Trace) -> None:
        requests = trace.requests
        self.trace = trace
        self._lengths: Ints = np.array([one.output_tokens for one in requests], dtype=np.int64)
        ends = np.cumsum(self._lengths)
        self._firsts = ends - self._lengths
        self.owner: Ints = np.repeat(np.arange(len(requests)), self._lengths)
        """(P,): the request of each output position of the trace."""
        self.left: Ints = ends[self.owner] - np.arange(len(self.owner))
        """(P,): tokens from there to the request's end."""
        self.offered: list[Ints] = []
        """D of (P,)."""
        self.kept: list[Ints] = []
        """D of (P,)."""
        self._confidence: list[Ints] = []
        self.starts: list[list[Ints]] = []
        """D of 17: the positions, in rising order, at which blocks of length 0..16 start."""
        for drafter in trace.drafters:
            drafts = [one.drafts[drafter] for one in requests]
            self.offered.append(_flat([draft.offered for draft in drafts]))
            self.kept.append(_flat([draft.kept for draft in drafts]))
            self._confidence.append(_flat([draft.confidence for draft in drafts]))
            self.starts.append(self._walk(self.kept[-1]))

    def tables(self, group_of: Ints, groups: int) -> BlockTables:
        """Blocks by group, for `group_of` each request."""
        group = group_of[self.owner]
        tokens = np.bincount(group, minlength=groups).astype(np.float64)
        shape = (groups, len(self.offered), LENGTHS)
        blocks = np.empty(shape)
        proposed = np.zeros((*shape, LENGTHS))
        for drafter, offered in enumerate(self.offered):
            room = np.minimum(offered, self.left - 1)
            for length, starts in enumerate(self.starts[drafter]):
                counts = np.bincount(
                    group[starts] * LENGTHS + np.minimum(room[starts], length), minlength=groups * LENGTHS
                ).reshape(groups, LENGTHS)
                proposed[:, drafter, length] = counts
                blocks[:, drafter, length] = counts.sum(axis=1)
        return BlockTables(tokens, blocks, proposed)

    def by_confidence(self, drafter: int, group_of: Ints, groups: int, buckets: int) -> tuple[Floats, Floats]:
        """Of the blocks of all lengths by confidence bucket, how many are offered, and how many keep, at least 0..16
        drafts: two of (groups, buckets, 17)."""
        starts = np.concatenate(self.starts[drafter][1:])
        cell = (group_of[self.owner[starts]] * buckets + self._confidence[drafter][starts]) * LENGTHS
        # A draft that has no room before the end of the request is never proposed.
        room = self.left[starts] - 1
        offered, kept = (
            np.bincount(cell + np.minimum(lengths[drafter][starts], room), minlength=groups * buckets * LENGTHS)
            .reshape(groups, buckets, LENGTHS)[..., ::-1]
            .cumsum(axis=-1)[..., ::-1]
            .astype(np.float64)
            for lengths in (self.offered, self.kept)
        )
        return offered, kept

    def _walk(self, kept: Ints) -> list[Ints]:
        """For block lengths 0..16, the positions at which a block starts."""
        # Short integers, since this goes through all of them.
        positions = len(kept)
        lengths = np.arange(1, LENGTHS, dtype=np.int32)[:, None]
        left = self.left.astype(np.int32)
        emitted = np.minimum(np.minimum(kept.astype(np.int32), lengths) + 1, left)
        following = np.arange(MAX_BLOCK_LENGTH * positions, dtype=np.int32) + emitted.ravel()
        # A block that ends its request has no successor.
        following[(emitted == left).ravel()] = -1
        starts = np.zeros(MAX_BLOCK_LENGTH * positions, dtype=np.bool_)
        at = (self._firsts + np.arange(MAX_BLOCK_LENGTH)[:, None] * positions).ravel()
        while len(at):
            starts[at] = True
            at = following[at]
            at = at[at >= 0]
        walked = [np.flatnonzero(row) for row in starts.reshape(MAX_BLOCK_LENGTH, positions)]
        return [np.arange(positions), *walked]


def _flat(parts: list[bytes]) -> Ints:
    return np.frombuffer(b"".join(parts), dtype=np.uint8).astype(np.int64)

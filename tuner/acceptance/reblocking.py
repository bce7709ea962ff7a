"""What other block lengths would have emitted on the same text: the correction for acceptance that comes in bursts.

A block ends at a rejection or at its bonus, so long blocks start more often right after a rejection than short ones do.
Where acceptance comes in bursts, cutting logged blocks short therefore says too little of short ones (the project's
notes, 0.6: by 4 to 12 % in a two-state chain). For a drafter whose proposals depend on the text alone, the text does
not depend on the drafting, so acceptance is a 0/1 sequence over its positions, of which blocks show most: a kept draft
is a 1, a rejected one a 0. The sequence can be cut into blocks of any length (5.3).

A position has two values: whether a block that *starts* here keeps its first draft, and whether one that *runs* on
through here keeps this one. They differ where a proposal ended early: the run is over, a new block might do well. The
bonus position of a full block is not seen. What is missing is drawn from the two-state chain that the rest of the
request shows, given its neighbours; the draw is a function of the request's key and the position, so that it is the
same in any order of telemetry.
"""

from collections.abc import Sequence

from policies.types import MAX_BLOCK_LENGTH

UNSEEN = -1
_PRIOR = 2.0
"""Transitions that the request's mean is worth against its own chain."""


class Strip:
    """The 0/1 sequences of one drafter over the positions of one request."""

    __slots__ = ("runs", "starts")

    def __init__(self, positions: int) -> None:
        self.starts = [UNSEEN] * positions
        self.runs = [UNSEEN] * positions

    def mark(self, position: int, kept: int, requested: int, proposed: int, seen: int) -> None:
        """A block that starts at `position`: of `proposed` drafts, where `requested` were asked, `seen` were looked at
        and `kept` were kept."""
        starts, runs = self.starts, self.runs
        end = min(position + kept, len(starts))
        for place in range(position, end):
            starts[place] = runs[place] = 1
        if position + kept >= len(starts):
            return
        if kept < seen or proposed == 0:
            starts[end] = runs[end] = 0
        elif kept == proposed < requested:
            runs[end] = 0


def reblock(strip: Strip, seed: int, tokens: list[int], blocks: list[int]) -> None:
    """Add the tokens and blocks of each block length 1..16 to `tokens` and `blocks`, both indexed by the length.

    Only blocks are counted whose whole length lies in the sequence: which ones do is known before they are tried, so
    the end of the text takes nothing away from long ones. A gap of two or more unseen positions ends a sequence.
    """
    starts, runs = strip.starts, strip.runs
    stays, comes = _chain(starts)
    first = 0
    size = len(starts)
    while first < size:
        while first < size and starts[first] == UNSEEN:
            first += 1
        end = first
        while end < size and (starts[end] != UNSEEN or (end + 1 < size and starts[end + 1] != UNSEEN)):
            end += 1
        if end - first > 1:
            _cut(_lengths(starts, runs, first, end, stays, comes, seed), tokens, blocks)
        first = end + 1


def _chain(starts: Sequence[int]) -> tuple[float, float]:
    """The probability of a 1 after a 1, and after a 0."""
    ones = zeros = after_one = after_zero = 0
    before = UNSEEN
    for value in starts:
        if value >= 0:
            if before == 1:
                ones += 1
                after_one += value
            elif before == 0:
                zeros += 1
                after_zero += value
        before = value
    mean = (after_one + after_zero + 0.5) / (ones + zeros + 1.0)
    return (after_one + _PRIOR * mean) / (ones + _PRIOR), (after_zero + _PRIOR * mean) / (zeros + _PRIOR)


def _lengths(
    starts: Sequence[int], runs: Sequence[int], first: int, end: int, stays: float, comes: float, seed: int
) -> list[int]:
    """For each position, the drafts that a block of unlimited length which starts there keeps within the sequence."""
    lengths = [0] * (end - first)
    run = 0
    for place in range(end - 1, first - 1, -1):
        start = starts[place]
        if start == UNSEEN:
            chance = stays if place == first or starts[place - 1] else comes
            if place + 1 < end:
                following = starts[place + 1]
                here = chance * (stays if following else 1.0 - stays)
                chance = here / (here + (1.0 - chance) * (comes if following else 1.0 - comes))
            start = int(_uniform(seed, place) < chance)
        lengths[place - first] = run + 1 if start else 0
        through = start if runs[place] == UNSEEN else runs[place]
        run = run + 1 if through else 0
    return lengths


def _cut(lengths: Sequence[int], tokens: list[int], blocks: list[int]) -> None:
    size = len(lengths)
    for length in range(1, min(MAX_BLOCK_LENGTH, size - 1) + 1):
        place = count = 0
        last = size - length
        while place < last:
            kept = lengths[place]
            place += (kept if kept < length else length) + 1
            count += 1
        tokens[length] += place
        blocks[length] += count


def _uniform(seed: int, place: int) -> float:
    """A number in [0, 1) from the two: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    value = (seed * 0x9E3779B97F4A7C15 + place * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return ((value ^ value >> 31) >> 11) / 9007199254740992.0

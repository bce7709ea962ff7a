"""What other block lengths would have emitted on the same text: the correction for acceptance that comes in bursts.

A block ends at a rejection or at its bonus, so long blocks start more often right after a rejection than short ones do.
Where acceptance comes in bursts, cutting logged blocks short therefore says too little of short ones (the project's
notes, 0.6: by 4 to 12 % in a two-state chain). For a drafter whose proposals depend on the text alone, the text does
not depend on the drafting, so acceptance is a 0/1 sequence over its positions, of which blocks show most: a kept draft
is a 1, a rejected one a 0. The sequence can be cut into blocks of any length (5.3).

The bonus position of a full block is not seen, nor the one behind a proposal that was kept whole but fell short. It is
drawn from the two-state chain that the rest of the request shows, given its neighbours; a block that starts there may
also be silent, as often as blocks are that follow a full one. The draw is a function of the request's key and the
position, so that it is the same in any order of telemetry. A proposal that fell short stops blocks that start where it
did or earlier; one that starts later is taken to go on.
"""

from collections.abc import Sequence

from policies.types import MAX_BLOCK_LENGTH

UNSEEN = -1
_PRIOR = 2.0
"""Transitions that the request's mean is worth against its own chain."""


class Strip:
    """The 0/1 sequence of one drafter over the positions of one request. Blocks are marked in their order."""

    __slots__ = ("_after_full", "_followers", "_silent_followers", "shorts", "values")

    def __init__(self, positions: int) -> None:
        self.values = [UNSEEN] * positions
        self.shorts: dict[int, int] = {}
        """Where a proposal started that was kept whole but fell short, and how many drafts it had."""
        self._after_full = -1
        self._followers = 0
        self._silent_followers = 0

    def mark(self, position: int, kept: int, requested: int, proposed: int, seen: int) -> None:
        """A block that starts at `position`: of `proposed` drafts, where `requested` were asked, `seen` were looked at
        and `kept` were kept."""
        values = self.values
        if position == self._after_full:
            self._followers += 1
            self._silent_followers += proposed == 0
        end = position + kept
        if end >= len(values):
            end = len(values)
        elif kept < seen or proposed == 0:
            values[end] = 0
        else:
            self._after_full = end + 1
            if kept == proposed < requested:
                self.shorts[position] = kept
        for place in range(position, end):
            values[place] = 1

    @property
    def proposing(self) -> float:
        """The share of blocks that propose anything, of those that follow a full one."""
        return 1.0 - self._silent_followers / (self._followers + 1.0)


def reblock(strip: Strip, seed: int, tokens: list[int], blocks: list[int], *, ended: bool) -> None:
    """Add the tokens and blocks of each block length 1..16 to `tokens` and `blocks`, both indexed by the length.

    A gap of two or more unseen positions ends a sequence. Of one that goes on unseen only blocks are counted whose
    whole length lies in it: which ones do is known before they are tried. Where the text has `ended`, its last block
    is counted too, and is cut by the end, as it is when it is served.
    """
    values = strip.values
    stays, comes = _chain(values)
    first = 0
    size = len(values)
    while first < size:
        while first < size and values[first] == UNSEEN:
            first += 1
        end = first
        while end < size and (values[end] != UNSEEN or (end + 1 < size and values[end + 1] != UNSEEN)):
            end += 1
        if end - first > 1:
            lengths = _lengths(strip, first, end, stays, comes, seed)
            if ended and end >= size - 1:
                _cut_to_the_end([*lengths, *[0] * (size - end)], tokens, blocks)
            else:
                _cut(lengths, tokens, blocks)
        first = end + 1


def _chain(values: Sequence[int]) -> tuple[float, float]:
    """The probability of a 1 after a 1, and after a 0."""
    ones = zeros = after_one = after_zero = 0
    before = UNSEEN
    for value in values:
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


def _lengths(strip: Strip, first: int, end: int, stays: float, comes: float, seed: int) -> list[int]:
    """For each position, the drafts that a block of unlimited length which starts there keeps within the sequence."""
    values, shorts, proposing = strip.values, strip.shorts, strip.proposing
    lengths = [0] * (end - first)
    run = 0
    for place in range(end - 1, first - 1, -1):
        value = values[place]
        if value == UNSEEN:
            chance = stays if values[place - 1] else comes
            if place + 1 < end:
                following = values[place + 1]
                here = chance * (stays if following else 1.0 - stays)
                chance = here / (here + (1.0 - chance) * (comes if following else 1.0 - comes))
            draw = _uniform(seed, place)
            run = run + 1 if draw < chance else 0
            lengths[place - first] = run if draw < chance * proposing else 0
            continue
        run = run + 1 if value else 0
        if place in shorts and run > shorts[place]:
            run = shorts[place]
        lengths[place - first] = run
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


def _cut_to_the_end(lengths: list[int], tokens: list[int], blocks: list[int]) -> None:
    size = len(lengths)
    # The last token of a text is never a draft: a block asks for no more than is left but one.
    lengths = [min(kept, size - 1 - place) for place, kept in enumerate(lengths)]
    for length in range(1, MAX_BLOCK_LENGTH + 1):
        place = count = 0
        while place < size:
            kept = lengths[place]
            place += (kept if kept < length else length) + 1
            count += 1
        tokens[length] += size
        blocks[length] += count


def _uniform(seed: int, place: int) -> float:
    """A number in [0, 1) from the two: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    value = (seed * 0x9E3779B97F4A7C15 + place * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return ((value ^ value >> 31) >> 11) / 9007199254740992.0

"""What other block lengths would have emitted on the same text: the correction for acceptance that comes in bursts.

A block ends at a rejection or at its bonus, so long blocks start more often right after a rejection than short ones do.
Where acceptance comes in bursts, cutting logged blocks short therefore says too little of short ones (the project's
notes, 0.6: by 4 to 12 % in a two-state chain). For a drafter whose proposals depend on the text alone, the text does
not depend on the drafting, so acceptance is a 0/1 sequence over its positions, of which blocks show most: a kept draft
is a 1, a rejected one a 0. The sequence can be cut into blocks of any length (5.3).

Not seen are the bonus of a full block, cycles in which nobody was asked, and what other drafters emitted in a cycle
behind what was seen at its start: beside a drafter that emits much, another one that is silent shows only the first
position of each cycle, so what is seen of it is not what there is. Such positions are drawn from the two-state chain
that the request shows, given what is seen on either side; a block that starts there may also be silent, as often as
blocks are that follow a full one. The draw is a function of the request's key and the position, so that it is the same
in any order of telemetry. Where a cycle began with another drafter's block and this one was not asked, as when a copied
proposal took its place, nothing says that the text is like the rest: a sequence ends there, as it does where nothing is
seen for long. A proposal that fell short stops blocks that start where it did or earlier; one that starts later is
taken to go on.
"""

from collections.abc import Collection, Sequence

from policies.types import MAX_BLOCK_LENGTH

UNSEEN = -1
_PRIOR = 2.0
"""Transitions that the request's mean is worth against its own chain."""
_LONGEST_GAP = 4
"""Unseen positions in a row that are drawn, lest most of what is counted is."""
_ROUNDS = 4
"""Of expectation-maximisation."""


class Strip:
    """The 0/1 sequence of one drafter over the positions of one request. Blocks are marked in their order."""

    __slots__ = ("_after_full", "_begins", "_behind_full", "_followers", "_silent_followers", "shorts", "values")

    def __init__(self, positions: int, begins: Collection[int]) -> None:
        """`begins` are the positions at which blocks of other drafters began."""
        self.values = [UNSEEN] * positions
        self.shorts: dict[int, int] = {}
        """Where a proposal started that was kept whole but fell short, and how many drafts it had."""
        self._begins = begins
        self._behind_full: set[int] = set()
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
            self._behind_full.add(end)
            if kept == proposed < requested:
                self.shorts[position] = kept
        for place in range(position, end):
            values[place] = 1

    def ends_at(self, place: int) -> bool:
        """Whether another drafter's block began at `place`, and this one was not asked."""
        return self.values[place] == UNSEEN and place in self._begins and place not in self._behind_full

    @property
    def proposing(self) -> float:
        """The share of blocks that propose anything, of those that follow a full one."""
        return 1.0 - self._silent_followers / (self._followers + 1.0)


def reblock(strip: Strip, seed: int, tokens: list[int], blocks: list[int], *, ended: bool) -> None:
    """Add the tokens and blocks of each block length 1..16 to `tokens` and `blocks`, both indexed by the length.

    A block counts if it starts before the end of what is seen of a sequence, whatever it keeps: were only those counted
    that lie in it whole, rejections at its end would be left out. What it keeps beyond is drawn. Where the text has
    `ended`, its last block is cut by the end, as it is when it is served.
    """
    values = strip.values
    stays, comes = _chain(values)
    size = len(values)
    first = 0
    while first < size:
        if values[first] == UNSEEN:
            first += 1
            continue
        end = seen = first + 1
        while end < size and end - seen < _LONGEST_GAP and not strip.ends_at(end):
            end += 1
            if values[end - 1] != UNSEEN:
                seen = end
        if ended and seen >= size - 1:
            seen = size
        beyond = seen + MAX_BLOCK_LENGTH
        if ended and beyond >= size:
            # The last token of a text is never a draft: a block asks for no more than is left but one.
            lengths = _lengths(strip, first, size, stays, comes, seed)
            lengths = [min(kept, size - 1 - place) for place, kept in enumerate(lengths, start=first)]
        else:
            lengths = _lengths(strip, first, beyond, stays, comes, seed)
        _cut(lengths, seen - first, tokens, blocks)
        first = end


def _chain(values: Sequence[int]) -> tuple[float, float]:
    """The probability of a 1 after a 1, and after a 0: from positions next to each other, and from those with one
    unseen position between them by expectation-maximisation."""
    steps = [[0, 0], [0, 0]]
    leaps = [[0, 0], [0, 0]]
    known = kept = 0
    before = earlier = UNSEEN
    for value in values:
        if value >= 0:
            known += 1
            kept += value
            if before >= 0:
                steps[before][value] += 1
            elif earlier >= 0:
                leaps[earlier][value] += 1
        before, earlier = value, before
    share = (kept + 0.5) / (known + 1.0)
    stays, comes = _steady(steps, share)
    if not any(map(any, leaps)):
        return stays, comes
    for _ in range(_ROUNDS):
        after: list[list[float]] = [[*row] for row in steps]
        for start in (0, 1):
            to_one = stays if start else comes
            for stop in (0, 1):
                count = leaps[start][stop]
                if count:
                    through_one = to_one * (stays if stop else 1.0 - stays)
                    through_zero = (1.0 - to_one) * (comes if stop else 1.0 - comes)
                    one = count * through_one / (through_one + through_zero)
                    after[start][1] += one
                    after[start][0] += count - one
                    after[1][stop] += one
                    after[0][stop] += count - one
        stays, comes = _steady(after, share)
    return stays, comes


def _steady(after: Sequence[Sequence[float]], share: float) -> tuple[float, float]:
    """The same from `after[a][b]`, transitions from a to b; `share` are the ones among the positions."""
    ones, zeros = sum(after[1]), sum(after[0])
    mean = (after[0][1] + after[1][1] + share) / (ones + zeros + 1.0)
    return (after[1][1] + _PRIOR * mean) / (ones + _PRIOR), (after[0][1] + _PRIOR * mean) / (zeros + _PRIOR)


def _lengths(strip: Strip, first: int, end: int, stays: float, comes: float, seed: int) -> list[int]:
    """For each position, the drafts that a block of unlimited length which starts there keeps before `end`; what is
    not seen is drawn from its end on."""
    values, shorts, proposing = strip.values, strip.shorts, strip.proposing
    memory = stays - comes
    level = comes / (1.0 - memory)
    size = len(values)
    lengths = [0] * (end - first)
    run = 0
    place = end - 1
    following = UNSEEN
    while place >= first:
        value = values[place] if place < size else UNSEEN
        if value == UNSEEN:
            known = place if place < size else size
            while known >= size or values[known] == UNSEEN:
                known -= 1
            # Steps of a two-state chain from what is seen before it.
            left = values[known] - level
            for unseen in range(place, known, -1):
                chance = level + left * memory ** (unseen - known)
                if following != UNSEEN:
                    here = chance * (stays if following else 1.0 - stays)
                    chance = here / (here + (1.0 - chance) * (comes if following else 1.0 - comes))
                draw = _uniform(seed, unseen)
                following = 1 if draw < chance else 0
                run = run + 1 if following else 0
                lengths[unseen - first] = run if draw < chance * proposing else 0
            place = known
            continue
        following = value
        run = run + 1 if value else 0
        if place in shorts and run > shorts[place]:
            run = shorts[place]
        lengths[place - first] = run
        place -= 1
    return lengths


def _cut(lengths: Sequence[int], seen: int, tokens: list[int], blocks: list[int]) -> None:
    for length in range(1, MAX_BLOCK_LENGTH + 1):
        place = count = 0
        while place < seen:
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

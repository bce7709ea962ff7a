"""What cycles cost each running sequence, and how long the next one may be.

The bound is on a sequence's whole life: the seconds of its cycles may not exceed `max_neighbour_slowdown` times the
larger of

    plain: what plain cycles would have taken for the tokens that it emitted
    alone: what the same cycles would have taken with its own drafts alone

since neither what it would have waited without anybody's drafts, nor what it waits for its own, is its neighbours'
doing. What operators forced is part of a plain cycle. Seconds are the cost model's, as it was when they were spent, and
what cycles with drafts took beyond that where several in a row did.

A cycle is as long for all that run in it. So one number bounds it: the seconds beyond a plain cycle that everybody who
runs may still wait, even one who emits a single token in it. Nobody is counted on to be lucky, since any cycle may be a
request's last one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, log2
from typing import NamedTuple

from policies.cycle_policy import CyclePolicy, DraftCost, PassCost

KEPT = 0.65
"""The share of the bound that ledgers give out. With the reserve, a request of two dozen tokens ends at 1.082 where 1.1
is promised; the rest is for the cost model, which is off by 1 % over a life after some seconds, and more at times."""
RESERVE = 0.4
"""Plain cycles that a sequence may be behind at any time. Drafting comes in steps, which a young request could not wait
for otherwise: a tenth of one cycle is less than one step of a learned drafter."""
_LEARNED_CYCLES = 8
"""Passes without drafts of about so many sequences that took what was predicted, after which the cost model is known to
have learned them. A calibration may be off by a tenth at any load, which is as much as all that is promised; other
passes say little of it, and everything is measured by it."""
_OFF = 0.05
"""Share by which one cycle may take something else than predicted, and say nothing."""
_RUN = 12
"""Cycles in a row of about so many rows that are off to the same side, after which their load is trusted no more. What
others take of a machine for a few cycles is no reason, nor is noise: where it is 10 %, three in ten cycles are off."""
_SPREADS = 1.5
"""The same in standard deviations of cycles like it, where that is more: on a machine that others use too, cycles are
off by more than that without anybody being wrong about them."""
_NOISE_CYCLES = 64.0
"""Over which the spread is averaged."""
_OF_DIFFERENCES = 0.886
"""Standard deviation of a normal variable over the mean absolute difference of two."""
_MOST = 1.5
"""A cycle counts as at most so many times what was predicted."""
_BANDS = 3
"""Loads are about the same within a third of an octave."""


_LIFT = 0.5
"""Of a token of the sequence that all wait for. With twice as much, those that are behind get drafts that would bring
more elsewhere: over ten replays of five scenarios 0.5 took half a percent less time than 0, and 1 no less than 0.5."""

SURE_DRAFTS = 2
"""Of the drafts that are asked for, those that count as a sequence's own doing before they are drafted: its drafter may
end earlier, and then what it waits for are the others' drafts."""


class Ledger:
    """Of one sequence, in seconds; for one thread."""

    __slots__ = ("alone", "plain", "taken")

    def __init__(self) -> None:
        self.plain = 0.0
        self.alone = 0.0
        self.taken = 0.0

    def enter(self, plain: float, alone: float, taken: float) -> None:
        """One cycle: plain cycles for what it emitted in it, the cycle with its drafts alone, the cycle as it was."""
        self.plain += plain
        self.alone += alone
        self.taken += taken


class CostTrust:
    """How far the cost model is trusted, by what has been measured at a load. Of one engine; for one thread.

    What cycles cost may change at any time. A cost model has to tell that from a stall and takes seconds, in which
    whole requests run; to wait for nobody meanwhile is cheap.
    """

    __slots__ = ("_last", "_off", "_plain", "_spread")

    def __init__(self) -> None:
        self._plain: Counter[int] = Counter()
        """Passes without drafts that took what was predicted, by band of load."""
        self._off: dict[int, int] = {}
        """By octave of rows: the last so many cycles took longer than predicted; below 0 if they were shorter."""
        self._last: dict[int, float] = {}
        """By octave of rows: the last cycle's seconds over those predicted."""
        self._spread = 0.0
        """Of cycles of one octave that follow each other."""

    def at(self, load: int) -> float:
        """The share of what may be waited that is given out with `load` sequences."""
        return 1.0 if load <= 1 else min(1.0, self._plain[_band(load)] / _LEARNED_CYCLES)

    def count(self, load: int, verified: int, seconds: float, predicted: float) -> float:
        """A cycle of `load` sequences with `verified` drafts in its pass has run; what it took, and was to take.

        Returns the seconds that everybody waited beyond what was predicted, as far as it is no accident of one cycle.
        """
        octave = (load + verified - 1).bit_length()
        ratio = min(seconds / predicted, _MOST)
        self._spread += (_OF_DIFFERENCES * abs(ratio - self._last.get(octave, ratio)) - self._spread) / _NOISE_CYCLES
        self._last[octave] = ratio
        most_off = max(_OFF, _SPREADS * self._spread)
        off = 0
        if ratio > 1.0 + most_off:
            off = max(self._off.get(octave, 0), 0) + 1
        elif ratio < 1.0 - most_off:
            off = min(self._off.get(octave, 0), 0) - 1
        self._off[octave] = off
        if abs(off) >= _RUN:
            del self._plain[_band(load)]
            del self._off[octave]
        elif load > 1 and not verified and not off:
            self._plain[_band(load)] += 1
        return predicted * (ratio - 1.0) if verified and off > 1 else 0.0


def _band(load: int) -> int:
    return round(_BANDS * log2(load))


def _bound(max_neighbour_slowdown: float, trust: float) -> float:
    return 1.0 + trust * KEPT * (max_neighbour_slowdown - 1.0)


def _left(ledger: Ledger, own: float, plain_seconds: float, bound: float) -> float:
    """Seconds that a sequence's next cycle may take, if it emits one token in it."""
    plain, alone = ledger.plain, ledger.alone + own
    return bound * ((plain if plain > alone else alone) + plain_seconds) - ledger.taken


def spare_seconds(
    ledgers: Iterable[tuple[Ledger, float]], plain_seconds: float, max_neighbour_slowdown: float, trust: float = 1.0
) -> float:
    """How much longer than `plain_seconds`, those of a plain cycle, the next cycle may be; below 0 where somebody has
    waited too long already.

    Args:
        ledgers: of all that run, each with the seconds that its own drafts may add to the cycle.
        plain_seconds: of the next cycle.
        max_neighbour_slowdown: what is promised.
        trust: see `CostTrust`.
    """
    bound = _bound(max_neighbour_slowdown, trust)
    least = inf
    for ledger, own in ledgers:
        left = _left(ledger, own, plain_seconds, bound)
        if left < least:
            least = left
    return _trusted(least - (1.0 - trust * RESERVE) * plain_seconds, plain_seconds, trust)


def _trusted(spare: float, plain_seconds: float, trust: float) -> float:
    """What is given out of `spare` seconds."""
    if spare <= 0.0:
        return spare
    # With no trust at all it is not believed either that a cycle with drafts is shorter than a plain one.
    return trust * spare if trust > 0.0 else -plain_seconds


def lifts(ledgers: Sequence[Ledger], policy: CyclePolicy, kv_tokens: int, trust: float = 1.0) -> list[float]:
    """By how much more an expected token counts for each sequence, since it lets all the others draft.

    All wait for the one that is furthest behind. Each token that it emits makes the cycles after it longer by about a
    plain one, which is worth more than a token; also of those who would be the next ones to hold everybody up.
    """
    cost, load = policy.cost, len(ledgers)
    if cost is None or load < 2:
        return [1.0] * load
    plain_seconds = cost.seconds(load, load, kv_tokens)
    bound = _bound(policy.max_neighbour_slowdown, trust)
    cycles = [_left(ledger, 0.0, plain_seconds, bound) / plain_seconds for ledger in ledgers]
    least = min(cycles)
    near = 1.0 - max(0.0, least - 1.0)
    return [1.0 + _LIFT * max(0.0, near - (each - least)) for each in cycles]


class Own(NamedTuple):
    """What one sequence's drafts may add to a cycle."""

    drafter: str
    """Empty where nothing that could be left out is asked."""
    drafts: int
    rows: int
    """Of them that it may have in the target's pass."""


NOTHING = Own("", 0, 0)


def cycle_spare(
    waiting: Sequence[tuple[Ledger, Own]], policy: CyclePolicy, kv_tokens: int, trust: float = 1.0
) -> float:
    """Seconds that the next cycle of all of `waiting` may be longer than a plain one; 0 without a cost model."""
    cost, load = policy.cost, len(waiting)
    if cost is None or load == 0:
        return 0.0
    plain_seconds = cost.seconds(load, load, kv_tokens)
    ledgers = []
    for ledger, (drafter, drafts, rows) in waiting:
        own = cost.seconds(load + rows, load, kv_tokens) - plain_seconds if rows else 0.0
        price = policy.draft_costs.get(drafter)
        if price is not None:
            own += price.seconds(1, drafts, drafts)
        ledgers.append((ledger, own))
    return spare_seconds(ledgers, plain_seconds, policy.max_neighbour_slowdown, trust)


def spare_if_asked(
    sequences: Sequence[tuple[Ledger, str]], policy: CyclePolicy, kv_tokens: int, trust: float = 1.0
) -> Callable[[Sequence[int]], float]:
    """`cycle_spare` before anything is drafted, as a function of how many drafts are asked for each of `sequences`.

    They are told with their drafters, empty where what is asked could not be left out. Who runs alone waits for nobody;
    with others, what becomes of drafts is not known yet.
    """
    cost, load = policy.cost, len(sequences)
    if cost is None or load < 2:

        def spare_alone(asked: Sequence[int]) -> float:
            owns = [
                (ledger, Own(drafter, drafts, drafts) if drafter and drafts else NOTHING)
                for (ledger, drafter), drafts in zip(sequences, asked, strict=True)
            ]
            return cycle_spare(owns, policy, kv_tokens, trust)

        return spare_alone
    plain_seconds = cost.seconds(load, load, kv_tokens)
    bound = _bound(policy.max_neighbour_slowdown, trust)
    reserve = (1.0 - trust * RESERVE) * plain_seconds
    owns: dict[str, tuple[float, ...]] = {}
    rows = []
    for ledger, drafter in sequences:
        own = owns.get(drafter)
        if own is None:
            price = policy.draft_costs.get(drafter)
            sure = range(1, SURE_DRAFTS + 1)
            own = owns[drafter] = (
                0.0,
                *(0.0 if price is None else price.seconds(1, drafts, drafts) for drafts in sure),
            )
        rows.append((ledger.plain, ledger.alone, ledger.taken, own))

    def spare(asked: Sequence[int]) -> float:
        least = inf
        for (plain, alone, taken, own), drafts in zip(rows, asked, strict=True):
            if drafts:
                alone += own[drafts] if drafts < SURE_DRAFTS else own[SURE_DRAFTS]
            # As `_left`.
            left = bound * ((plain if plain > alone else alone) + plain_seconds) - taken
            if left < least:
                least = left
        return _trusted(least - reserve, plain_seconds, trust)

    return spare


class Turn(NamedTuple):
    """What one sequence did in a cycle."""

    ledger: Ledger
    emitted: int
    verified: int
    drafter: str
    """Empty where nothing was asked of any."""
    proposed: int
    forced: bool


def drafting_seconds(proposals: Iterable[tuple[str, int]], draft_costs: Mapping[str, DraftCost]) -> float:
    """What drafters take for proposals (drafter, drafts) of one cycle, each of them in one call."""
    work: dict[str, tuple[int, int, int]] = {}
    for name, proposed in proposals:
        asked, steps, rows = work.get(name, (0, 0, 0))
        work[name] = asked + 1, proposed if proposed > steps else steps, rows + proposed
    return sum([draft_costs[name].seconds(*done) for name, done in work.items() if name in draft_costs])


def settle(
    turns: Sequence[Turn],
    cost: PassCost,
    draft_costs: Mapping[str, DraftCost],
    kv_tokens: int,
    left: Iterable[tuple[str, int]] = (),
    shadow_seconds: float = 0.0,
) -> float:
    """Enter one cycle into the ledgers of all that ran in it; returns the seconds that it was to take.

    Args:
        turns: of every sequence.
        cost: the target's.
        draft_costs: by drafter; one without an entry counts as free.
        kv_tokens: of all sequences as the cycle began.
        left: (drafter, drafts) of copied proposals that were not taken.
        shadow_seconds: what shadows took, as measured.
    """
    load = len(turns)
    rows = forced_rows = load
    asked = [*left]
    forced = []
    for turn in turns:
        rows += turn.verified
        if turn.drafter:
            asked.append((turn.drafter, turn.proposed))
            if turn.forced:
                forced_rows += turn.verified
                forced.append((turn.drafter, turn.proposed))
    forced_drafting = drafting_seconds(forced, draft_costs) if forced else 0.0
    plain = cost.seconds(forced_rows, load, kv_tokens) + forced_drafting
    taken = plain
    if asked or shadow_seconds:
        taken = cost.seconds(rows, load, kv_tokens) + drafting_seconds(asked, draft_costs) + shadow_seconds
    passes = {0: plain}
    """By how many drafts are verified beside those that are forced."""
    # Shapes that are seldom run are known least, and what is a part of a cycle takes no longer than all of it.
    plain_seconds = min(plain, taken)
    for turn in turns:
        alone = plain
        if turn.drafter and not turn.forced:
            verified, proposed = turn.verified, turn.proposed
            if verified not in passes:
                passes[verified] = cost.seconds(forced_rows + verified, load, kv_tokens) + forced_drafting
            alone = passes[verified]
            price = draft_costs.get(turn.drafter)
            if price is not None:
                alone += price.seconds(1, proposed, proposed)
        turn.ledger.enter(plain_seconds * turn.emitted, min(alone, taken), taken)
    return taken

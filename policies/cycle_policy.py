"""What one cycle reads: kill switches, the window, survivals and costs; see `policies.types` for the words."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from operator import sub

from policies.types import MAX_BLOCK_LENGTH

_CERTAIN = (1.0,) * MAX_BLOCK_LENGTH
_COUNTS = tuple(map(float, range(MAX_BLOCK_LENGTH + 1)))


@dataclass(frozen=True, slots=True)
class Survival:
    """S_j by confidence bucket for one drafter in one context: ``by_confidence[bucket][j - 1]``."""

    by_confidence: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        # An estimate that rises along the block is read as flat: nobody gets to a position but by the one before.
        rows = self.by_confidence
        falling = tuple([row if sorted(row, reverse=True) == [*row] else tuple(accumulate(row, min)) for row in rows])
        object.__setattr__(self, "by_confidence", falling)

    def of(self, confidence: int) -> tuple[float, ...]:
        """The curve of a bucket; the last one when the drafter reports a bucket beyond those learned."""
        if not self.by_confidence:
            return ()
        return self.by_confidence[min(confidence, len(self.by_confidence) - 1)]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a block of one drafter is expected to bring in one context, before anything is drafted."""

    survival: tuple[float, ...]
    """S_1..S_n, unconditioned on confidence: silent and short proposals count as rejected."""
    offered: tuple[float, ...]
    """``offered[j - 1]``: the share of blocks in which at least j tokens are proposed if that many are requested."""
    tokens: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """``tokens[K]``: drafts of a block of K that are expected to be kept, K = 0..n."""
    rows: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """``rows[K]``: drafts of a block of K that are expected to be proposed, K = 0..n."""
    steps: tuple[tuple[float, float], ...] = field(init=False, repr=False, compare=False)
    """``steps[j]``: tokens and rows of position j alone, j = 0..n - 1."""
    silence: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """``silence[j]``: the probability that nothing is proposed at position j, j = 0..n - 1."""
    lengths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The block lengths that are best at some price of a row, falling to 0."""
    prices: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """Rising: from ``prices[i]`` tokens a row on, ``lengths[i + 1]`` is better than ``lengths[i]``."""

    def __post_init__(self) -> None:
        # What is kept was offered, whatever two estimates say.
        if len(self.offered) != len(self.survival):
            raise ValueError(f"{len(self.survival)} survivals, and shares offered of {len(self.offered)} positions")
        tokens = tuple(accumulate(self.survival, initial=0.0))
        rows = tuple(accumulate(map(max, self.offered, self.survival), initial=0.0))
        added_rows = tuple(map(sub, rows[1:], rows))
        if added_rows == _CERTAIN[: len(added_rows)]:
            # Of copied proposals, which are at hand, thousands are kept: what is alike in them is kept once.
            rows, added_rows = _COUNTS[: len(rows)], _CERTAIN[: len(added_rows)]
        steps = tuple(zip(map(sub, tokens[1:], tokens), added_rows, strict=True))
        lengths, prices = [0], [inf]
        last_tokens = last_rows = 0.0
        last_price = inf
        for length in range(1, len(tokens)):
            more, added = tokens[length], rows[length]
            if added == last_rows:
                break
            price = (more - last_tokens) / (added - last_rows)
            while price >= last_price:
                lengths.pop()
                prices.pop()
                last, last_price = lengths[-1], prices[-1]
                price = (more - tokens[last]) / (added - rows[last])
            lengths.append(length)
            prices.append(price)
            last_tokens, last_rows, last_price = more, added, price
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "silence", tuple([1.0 - offers if offers != 1.0 else 0.0 for _, offers in steps]))
        object.__setattr__(self, "lengths", tuple(reversed(lengths)))
        object.__setattr__(self, "prices", tuple(reversed(prices[1:])))


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Seconds that one drafter takes in one cycle, on top of the target's pass. Drafting is sequential: each step is
    one pass of the drafter over all the sequences that it serves."""

    call_seconds: float
    sequence_seconds: float
    step_seconds: float
    row_seconds: float

    def seconds(self, sequences: float, steps: float, rows: float) -> float:
        """For `sequences` asked, `steps` drafts in the longest proposal, `rows` drafts in all; 0 if none is asked."""
        if sequences <= 0:
            return 0.0
        return (
            self.call_seconds + self.sequence_seconds * sequences + self.step_seconds * steps + self.row_seconds * rows
        )


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings that may change while the engine serves; None keeps what the engine was started with."""

    ngram_min_match: int | None = None
    ngram_max_match: int | None = None
    suffix_min_score: float | None = None
    """A proposal of the suffix drafter ends before the product of its probabilities falls under this."""
    draft_stop: float | None = None
    """A learned drafter's proposal ends before the product of its confidences falls under this."""
    draft_temperature: float | None = None
    """What the drafter's own sampling temperature is multiplied by; 1 is the request's. Not used for greedy ones."""
    prefill_chunk: int | None = None
    """Tokens of prompt in one step; the whole engine's, so it is read from ``*`` alone. The engine takes no more than
    its memory was planned for."""


@dataclass(frozen=True, slots=True)
class Copier:
    """A drafter that copies from the text, and proposes in a context before the drafter that a sequence was given."""

    drafter: str
    most_load: int
    """With more sequences than this it is not worth its own time."""
    outlooks: tuple[Outlook, ...]
    """By confidence bucket: of a proposal at hand, so that what is offered is certain up to its length."""

    def of(self, confidence: int) -> Outlook:
        """The outlook of a bucket; the last one when the drafter reports a bucket beyond those learned."""
        return self.outlooks[min(confidence, len(self.outlooks) - 1)]


NO_KNOBS = Knobs()
"""Everything as the engine was started."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of one cycle of the target: ``f(tokens) + sequence_seconds * load + kv_token_seconds * kv_tokens``.

    `f` is linear between the knots and continues with the last slope beyond them.
    """

    token_knots: tuple[int, ...]
    knot_seconds: tuple[float, ...]
    sequence_seconds: float
    kv_token_seconds: float

    def seconds(self, tokens: float, load: int, kv_tokens: int) -> float:
        """Predicted seconds of a cycle with `tokens` rows in the pass, `load` sequences, `kv_tokens` of context."""
        knots, values = self.token_knots, self.knot_seconds
        last = len(knots) - 1
        base = values[0]
        if last > 0 and tokens > knots[0]:
            upper = bisect_left(knots, tokens, 1, last)
            slope = (values[upper] - values[upper - 1]) / (knots[upper] - knots[upper - 1])
            base = values[upper - 1] + slope * (tokens - knots[upper - 1])
        return base + self.sequence_seconds * load + self.kv_token_seconds * kv_tokens


@dataclass(frozen=True, slots=True)
class Window:
    """A switchback window. `plain` windows measure the baseline; the others what is served."""

    window_id: int
    plain: bool
    trial: int = 0
    """Not 0: this trial of the live study, whose knobs are in force in place of production's. Never with `plain`."""


@dataclass(frozen=True, slots=True)
class CyclePolicy:
    """What one cycle reads, swapped whole. It may only lower a decision's cap."""

    version: int
    kill: bool
    window: Window
    survivals: Mapping[tuple[str, str, str], Survival]
    """Keyed by (drafter, route, language)."""
    default_survivals: Mapping[str, Survival]
    """Keyed by drafter: the pooled curve, for contexts not seen yet."""
    cost: PassCost | None
    """None before the calibration: then nothing but forced decisions speculates."""
    draft_costs: Mapping[str, DraftCost]
    """By drafter; one without an entry counts as free."""
    margin: float
    """Predicted gain that speculation must show over plain before it is used, e.g. 0.02."""
    max_neighbour_slowdown: float
    """No running sequence's predicted seconds per token may exceed this multiple of plain."""
    killed_routes: frozenset[str] = frozenset()
    """Routes whose kill switch is on; `kill` is the one for all."""
    outlooks: Mapping[tuple[str, str, str], Outlook] = field(default_factory=dict)
    """Keyed by (drafter, route, language); for deciding how much to draft."""
    default_outlooks: Mapping[str, Outlook] = field(default_factory=dict)
    """Keyed by drafter, for contexts not seen yet."""
    tpot_limits: Mapping[str, float] = field(default_factory=dict)
    """Seconds per output token that a route's objective allows; routes without an objective are left out."""
    knobs: Mapping[str, Knobs] = field(default_factory=dict)
    """By route; ``*`` for the others."""
    copiers: Mapping[tuple[str, str], Copier] = field(default_factory=dict)
    """Keyed by (route, language). Its proposal takes the place of that of the decision's drafter where it promises more
    (`policies.copying`), but for forced decisions."""
    hold: bool = False
    """The safety budget is spent: nothing but forced decisions speculates, and nothing is shadowed at a cost."""

    def plain_on(self, route: str) -> bool:
        """Whether every sequence of a route decodes plain, and nothing proposes beside it."""
        return self.kill or self.window.plain or route in self.killed_routes

    def knobs_of(self, route: str) -> Knobs:
        """The knobs of a route: its own entry, else that of ``*``."""
        return self.knobs.get(route) or self.knobs.get("*", NO_KNOBS)


INITIAL_CYCLE_POLICY = CyclePolicy(
    version=0,
    kill=False,
    window=Window(0, plain=False),
    survivals={},
    default_survivals={},
    cost=None,
    draft_costs={},
    margin=0.02,
    max_neighbour_slowdown=1.10,
)

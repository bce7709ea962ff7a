"""The safety budget at work: what is open in each context while it lasts."""

from collections import Counter
from typing import NamedTuple

from policies.stats import CycleStats
from tuner.known_contexts import Key
from tuner.learning import Learning
from tuner.safety import Budget, Gate, SafetyState

_SLOWEST_AT_START = 1.5
_SLOWEST = 2.5
"""Drafting as measured may have met a stall."""
_SLOWEST_FADE = 0.998
_REACTION_SECONDS = 0.05
"""From a cycle to the first that obeys what was judged after it: the telemetry's way here, the policy's way back."""
_SPARE = 0.5
"""The part of the cap above which shadows run and unknown drafters are tried."""
_ROUNDING = 1e-9
"""Share of the drafting that is none: what is left of it when what was forced is taken away."""


class Forced(NamedTuple):
    """What operators made a cycle do."""

    rows: int
    accepted: int
    draft_seconds: float

    @classmethod
    def of(cls, stats: CycleStats) -> "Forced":
        """Drafters share their seconds by the drafts that they proposed."""
        sequences = [one for one in stats.sequences if one.forced and one.requested]
        if not sequences:
            return _NOTHING_FORCED
        proposed, of_all = Counter[str](), Counter[str]()
        for one in stats.sequences:
            # A drafter takes time as well where it finds nothing.
            drafts = max(one.proposed, 1) if one.requested else 0
            of_all[one.drafter] += drafts
            proposed[one.drafter] += drafts if one.forced else 0
        return cls(
            sum(one.verified for one in sequences),
            sum(one.accepted for one in sequences),
            sum(
                seconds * proposed[drafter] / of_all[drafter]
                for drafter, seconds in stats.draft_seconds.items()
                if proposed[drafter]
            ),
        )


_NOTHING_FORCED = Forced(0, 0, 0.0)


class Safeguard:
    """Not thread-safe."""

    def __init__(self, share: float, learning: Learning) -> None:
        """`share` is what a window may lose against plain."""
        self._learning = learning
        cost = learning.cost
        self._budget = Budget(share, cost.seconds(1, 1, 256) if cost is not None else 0.0)
        self._work = 0.0
        self._slowest = _SLOWEST_AT_START
        """The largest ratio of a cycle to the plain one, of late. What cycles verify is ours to say, and only what is
        accepted of it is not: if nothing is, cycles like those of late lose so much."""
        self.gate = Gate.OPEN

    @property
    def state(self) -> SafetyState:
        return self._budget.state

    def fold(self, stats: CycleStats) -> None:
        """Count a cycle. What operators force is part of the plain cycle, with its tokens."""
        cost = self._learning.cost
        if cost is None or stats.killed or stats.cycle_seconds <= 0.0:
            return
        load = stats.load
        emitted = sum(one.emitted for one in stats.sequences)
        plain_seconds = cost.seconds(load, load, stats.kv_tokens)
        self._work += emitted * plain_seconds / load
        self._budget.expect(plain_seconds / load)
        self._slowest = 1.0 + (self._slowest - 1.0) * _SLOWEST_FADE
        drafting = sum(stats.draft_seconds.values()) + stats.shadow_seconds + stats.copying_seconds
        forced = Forced.of(stats)
        weighed = drafting - forced.draft_seconds
        if stats.tokens == load + forced.rows and weighed <= _ROUNDING * drafting:
            self._budget.fold_plain(plain_seconds)
            return
        if forced.rows or forced.draft_seconds:
            plain_seconds = cost.seconds(load + forced.rows, load, stats.kv_tokens) + forced.draft_seconds
        predicted = drafting + cost.seconds(stats.tokens, load, stats.kv_tokens)
        self._slowest = max(self._slowest, min(predicted, _SLOWEST * plain_seconds) / plain_seconds)
        self._budget.fold(emitted, plain_seconds / (load + forced.accepted), stats.cycle_seconds, predicted)

    def finish(self) -> None:
        """A request has ended; what was emitted since the one before counts as its work."""
        self._budget.finish(self._work)
        self._work = 0.0

    def judge(self) -> bool:
        """Whether the gate moved; after each cycle."""
        if self._learning.cost is None:
            return False
        was, self.gate = self.gate, self._budget.judge(_REACTION_SECONDS * (1.0 - 1.0 / self._slowest))
        return self.gate is not was

    @property
    def spare(self) -> bool:
        """Whether there is enough left of the budget to look at what may be no gain."""
        state = self._budget.state
        return state.budget_seconds > _SPARE * state.cap_seconds

    def allows(self, drafter: str, key: Key) -> bool:
        """Whether `drafter` may be weighed in a context now."""
        if self.gate is Gate.OPEN:
            return True
        menu = self._learning.menus.get(key)
        if menu is None or drafter not in menu.bounds:
            return False
        return menu.bounds[drafter][menu.place(self._learning.load)][0] > 1.0

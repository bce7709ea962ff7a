"""The safety budget at work: what is open in each context while it lasts."""

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
        """Count a cycle."""
        cost = self._learning.cost
        if cost is None or stats.killed:
            return
        load = stats.load
        emitted = sum(one.emitted for one in stats.sequences)
        plain_seconds = cost.seconds(load, load, stats.kv_tokens)
        self._work += emitted * plain_seconds / load
        self._budget.expect(plain_seconds / load)
        self._slowest = 1.0 + (self._slowest - 1.0) * _SLOWEST_FADE
        drafting = sum(stats.draft_seconds.values()) + stats.shadow_seconds + stats.copying_seconds
        if stats.tokens == load and drafting == 0.0:
            self._budget.fold_plain(plain_seconds)
            return
        predicted = drafting + cost.seconds(stats.tokens, load, stats.kv_tokens)
        self._slowest = max(self._slowest, min(predicted, _SLOWEST * plain_seconds) / plain_seconds)
        self._budget.fold(emitted, plain_seconds / load, stats.cycle_seconds, predicted)

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

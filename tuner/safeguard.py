"""The safety budget at work: what is open in each context while it lasts."""

from policies.stats import CycleStats
from tuner.known_contexts import Key
from tuner.learning import Learning
from tuner.safety import Budget, Gate, SafetyState


class Safeguard:
    """Not thread-safe."""

    def __init__(self, share: float, cap: int, learning: Learning) -> None:
        """`share` is what a window may lose against plain, `cap` the largest block length."""
        self._cap = cap
        self._learning = learning
        cost = learning.cost
        self._budget = Budget(share, cost.seconds(1, 1, 256) if cost is not None else 0.0)
        self._work = 0.0
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
        drafting = sum(stats.draft_seconds.values()) + stats.shadow_seconds
        if stats.tokens == load and drafting == 0.0:
            self._budget.fold_plain(plain_seconds)
            return
        predicted = drafting + cost.seconds(stats.tokens, load, stats.kv_tokens)
        self._budget.fold(emitted, plain_seconds / load, stats.cycle_seconds, predicted)

    def finish(self) -> None:
        """A request has ended; what was emitted since the one before counts as its work."""
        self._budget.finish(self._work)
        self._work = 0.0

    def judge(self, seconds: float) -> bool:
        """Whether the gate moved. What is open now is so for about `seconds`, the time between two calls."""
        cost = self._learning.cost
        if cost is None:
            return False
        load = self._learning.load
        kv_tokens = round(load * self._learning.kv_each)
        plain_seconds = cost.seconds(load, load, kv_tokens)
        slowest = cost.seconds(load * (1 + self._cap), load, kv_tokens) + max(
            (each.seconds(load, self._cap, load * self._cap) for each in self._learning.draft_costs.values()),
            default=0.0,
        )
        was, self.gate = self.gate, self._budget.judge(seconds * max(0.0, 1.0 - plain_seconds / slowest))
        return self.gate is not was

    def allows(self, drafter: str, key: Key) -> bool:
        """Whether `drafter` may be weighed in a context now."""
        if self.gate is Gate.OPEN:
            return True
        menu = self._learning.menus.get(key)
        if menu is None or drafter not in menu.bounds:
            return False
        return menu.bounds[drafter][0] > menu.plain(menu.place(self._learning.load))

"""What each route may still lose against plain while lanes are tried: the embedded engine's budget, by requests.

See `tuner.safety`: with x the share that a window of 500 requests may lose, every request on a lane that speculates
moves the route's budget by (1 + x / 2) times a lower bound of what plain would have taken for its tokens at its load,
less what it took. Here the seconds are a request's own, from its first token to its last.
"""

import math

from tuner.fleet.pools.snapshot import Trials
from tuner.safety import WINDOW_REQUESTS, Budget, Gate, SafetyState

_ROUTES = 256
"""That have a budget of their own; the others share one."""
_REST = "*"
_LOST = 0.5
"""Of its plain work, what a request may lose on a lane that nobody knows."""
_AT_ONCE = 8
_BOUND = 1.645
"""Standard errors from the estimate of plain to its lower bound."""


class Budgets:
    """Not thread-safe."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._budgets: dict[str, Budget] = {}
        self._gates: dict[str, Gate] = {}
        self._ended: dict[str, int] = {}

    def fold(self, route: str, tokens: int, seconds: float, plain: tuple[float, float], predicted: float) -> None:
        """Count a request on a lane that speculates.

        Args:
            route: of the request.
            tokens: after the first, which took `seconds`.
            seconds: see above.
            plain: seconds that plain takes for one token at its load, and the standard error of their logarithm.
            predicted: seconds that were expected of it, which tell a stall from work.
        """
        plain_seconds, error = plain
        low = plain_seconds * math.exp(-_BOUND * error)
        budget = self._of(route)
        budget.fold(tokens, low, seconds, max(predicted, tokens * plain_seconds))
        budget.finish(tokens * plain_seconds)

    def fold_plain(self, route: str, seconds: float) -> None:
        """Count a request on a plain lane."""
        budget = self._of(route)
        budget.fold_plain(seconds)
        budget.finish(seconds)

    def end_trial(self, route: str) -> None:
        """A request that tried something has come to an end, whatever became of it."""
        self._of(route)
        key = self._key(route)
        self._ended[key] = self._ended.get(key, 0) + 1

    def judge(self) -> bool:
        """Whether a gate moved."""
        moved = False
        for route, budget in self._budgets.items():
            work = self._work(budget)
            gate = budget.judge(2 * _LOST * work) if work else Gate.OPEN
            moved |= gate is not self._gates.get(route)
            self._gates[route] = gate
        return moved

    def trials(self) -> dict[str, Trials]:
        """By route, for the chooser."""
        found = {}
        for route, budget in self._budgets.items():
            each = _LOST * self._work(budget)
            at_once = int(budget.left / each) if each else Trials().at_once
            gate = self._gates.get(route, Gate.OPEN)
            found[route] = Trials(gate, min(max(at_once, 1), _AT_ONCE), self._ended.get(route, 0))
        return found

    @property
    def state(self) -> SafetyState:
        """Of the route that has the least left of its own."""
        states = [budget.state for budget in self._budgets.values() if budget.state.cap_seconds > 0.0]
        return min(states, key=lambda state: state.budget_seconds / state.cap_seconds, default=SafetyState())

    def _work(self, budget: Budget) -> float:
        """Plain seconds of a request; 0.0 before plain is known."""
        return budget.cap / (self._share / 2 * WINDOW_REQUESTS) if self._share else 0.0

    def _key(self, route: str) -> str:
        return route if route in self._budgets or len(self._budgets) < _ROUTES else _REST

    def _of(self, route: str) -> Budget:
        return self._budgets.setdefault(self._key(route), Budget(self._share, 0.0))

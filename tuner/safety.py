"""The budget that keeps an engine from being slower than plain by more than a stated share.

With x the share (0.02), the budget is

    Z <- min(cap, Z + (1 + x / 2) * tokens * plain seconds of a token - seconds)
    cap = x / 2 * plain work of 500 requests

over cycles, with a lower bound of what plain takes (conservative bandits, Wu et al. 2016, with the budget normalised by
work). As long as Z stays positive, any stretch of 500 requests takes at most (1 + x / 2) times its plain work and the
cap on top: no window loses more than x, up to the error of the plain estimate.

Z is kept as what is missing from the cap, since the cap follows the lengths of the requests that are served. Cycles in
which nothing was drafted are plain by construction: they earn x / 2 of their seconds.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

WINDOW_REQUESTS = 500
_START_TOKENS = 32.0
"""Output tokens of a request, before any has ended."""
_STALL = 1.5
"""Seconds beyond this multiple of those predicted are the system's, not speculation's."""
_RESERVE = 0.3
"""The last part of the cap is kept for arms whose lower bound beats plain."""
_REOPEN = 0.15
"""A part of the cap by which Z must have risen again before what was closed is opened: no flutter at the edge."""
_DEBT = 0.25
"""Z falls below 0 by at most this part of the cap. Nothing but plain serves by then, so what is lost beyond it is no
arm's doing but a machine's that became slower, of which the plain estimate does not know yet."""


class Gate(StrEnum):
    """What the budget allows."""

    OPEN = "open"
    PROVEN = "proven"
    """Only arms whose lower bound beats plain."""
    HELD = "held"
    """Nothing but what operators force."""


@dataclass(frozen=True, slots=True)
class SafetyState:
    """The budget, for people and metrics."""

    gate: Gate = Gate.OPEN
    budget_seconds: float = 0.0
    """Z; engine seconds that may still be lost against plain."""
    cap_seconds: float = 0.0
    held: int = 0
    """How often it left nothing open, since the start."""


class Budget:
    """Not thread-safe."""

    def __init__(self, share: float, token_seconds: float) -> None:
        """`share` is x; `token_seconds` plain seconds of a token, until requests have ended."""
        self._share = share
        self._recent: deque[float] = deque(maxlen=WINDOW_REQUESTS)
        self._recent_work = 0.0
        self._start_work = _START_TOKENS * token_seconds
        self._missing = 0.0
        self._gate = Gate.OPEN
        self._held = 0

    @property
    def cap(self) -> float:
        """Seconds; of the last 500 requests, or of as many like those that have ended."""
        mean = self._recent_work / len(self._recent) if self._recent else self._start_work
        return self._share / 2 * WINDOW_REQUESTS * mean

    @property
    def left(self) -> float:
        """Z in seconds."""
        return self.cap - self._missing

    @property
    def state(self) -> SafetyState:
        return SafetyState(self._gate, self.left, self.cap, self._held)

    def expect(self, token_seconds: float) -> None:
        """Until requests have ended: what plain takes for one of their tokens at the load that is served."""
        self._start_work = _START_TOKENS * token_seconds

    def fold(self, emitted: int, token_seconds: float, seconds: float, predicted: float) -> None:
        """Count a cycle in which something was drafted.

        Args:
            emitted: tokens of all its sequences.
            token_seconds: a lower bound of what plain takes for one of them at this load.
            seconds: as measured; `predicted` what the cost model says, which tells a stall of the system from work.
        """
        seconds = min(seconds, _STALL * predicted)
        self._move((1.0 + self._share / 2) * emitted * token_seconds - seconds)

    def fold_plain(self, seconds: float) -> None:
        """Count a cycle in which nothing was drafted."""
        self._move(self._share / 2 * seconds)

    def finish(self, work: float) -> None:
        """A request has ended whose tokens take plain `work` seconds of the engine."""
        if len(self._recent) == WINDOW_REQUESTS:
            self._recent_work -= self._recent[0]
        self._recent.append(work)
        self._recent_work += work

    def judge(self, worst: float) -> Gate:
        """What is open until the next call, if at most `worst` seconds can be lost until then."""
        cap = self.cap
        spare = self.left - worst
        was, self._gate = self._gate, Gate.OPEN
        if spare <= (_REOPEN * cap if was is Gate.HELD else 0.0):
            self._gate = Gate.HELD
            self._held += was is not Gate.HELD
        elif spare <= (_RESERVE + (0.0 if was is Gate.OPEN else _REOPEN)) * cap:
            self._gate = Gate.PROVEN
        return self._gate

    def _move(self, credit: float) -> None:
        self._missing = min(max(0.0, self._missing - credit), (1.0 + _DEBT) * self.cap)

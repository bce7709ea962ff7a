"""Cascade (arXiv 2506.20675): utility-driven speculation, a block length for each request.

Published: utility is what speculation multiplies a request's tokens an iteration by, over what it multiplies the time
of an iteration by. Short test phases alternate with long set phases: a test tries a block length for a few iterations;
under 1 the request goes on plain for the set phase, and each time that this happens again the set phase is twice as
long; over 1 it tries more lengths, climbing as long as the utility rises, and sets the best.

What the simulator forces: lengths of phases are those that we recall from the paper (4 iterations a trial, at most 4
trials, 16 iterations a set phase), since its text was not at hand, and the factor of waiting stops at 8. The climb
starts at 3 and goes in steps of 1, up if the first trial paid and down where going up did not. Its time of a plain
iteration is measured at the beginning of a request; here it is the calibration's, at the load and context of each
cycle: generous, since requests share cycles and nobody needs to be plain for it. For one request it was made: with
many, each decides by the time of the cycles that it shares. It gets the best single drafter in hindsight.
"""

from typing import Any

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.hindsight import Single
from tuner.replay.player import Running, World

TRIAL_ITERATIONS = 4
MOST_TRIALS = 4
SET_ITERATIONS = 16
MOST_BACK_OFF = 8
FIRST_LENGTH = 3


class _Request:
    """The phases of one request."""

    __slots__ = ("back_off", "cost", "iterations", "length", "set", "start", "step", "tokens", "tried")

    def __init__(self) -> None:
        self.start = FIRST_LENGTH
        self.back_off = 1
        self.test()

    def test(self) -> None:
        """A test phase begins, at the length that was the best last time."""
        self.set = False
        self.step = 1
        self.tried: dict[int, float] = {}
        self._try(self.start)

    def _try(self, length: int) -> None:
        self.length = length
        self.iterations = TRIAL_ITERATIONS
        self.tokens = 0
        self.cost = 0.0

    def after(self, emitted: int, cost: float) -> None:
        """An iteration that emitted so much, and took so many times a plain one's time."""
        self.iterations -= 1
        self.tokens += emitted
        self.cost += cost
        if self.iterations:
            return
        if self.set:
            self.test()
            return
        self.tried[self.length] = self.tokens / self.cost
        following = self._climb()
        if following is not None:
            self._try(following)
            return
        best = max(self.tried, key=self.tried.__getitem__)
        self.set = True
        if self.tried[best] < 1.0:
            self.length, self.iterations = 0, SET_ITERATIONS * self.back_off
            self.back_off = min(2 * self.back_off, MOST_BACK_OFF)
        else:
            self.length, self.iterations = best, SET_ITERATIONS
            self.start, self.back_off = best, 1

    def _climb(self) -> int | None:
        """The length to try next; None where the test is over."""
        tried, length = self.tried, self.length
        if len(tried) == 1:
            if tried[length] < 1.0:
                return None
            following = length + self.step
        elif tried[length] > tried[length - self.step]:
            following = length + self.step
        elif len(tried) == 2 and self.step == 1:
            self.step = -1
            following = self.start - 1
        else:
            return None
        if len(tried) == MOST_TRIALS or following in tried or not 1 <= following <= MAX_BLOCK_LENGTH:
            return None
        return following


class Cascade:
    """Test and set phases for each request."""

    name = "cascade"

    def __init__(self, single: Single) -> None:
        self._drafter = single.drafter
        self._plain_seconds: list[float] = []
        self._kv_token_seconds = 0.0

    def start(self, world: World, memory: Any) -> None:
        """The time of plain iterations."""
        target = world.calibrated.target
        self._plain_seconds = [target.seconds(load, load, 0) for load in range(world.slots + 1)]
        self._kv_token_seconds = target.kv_token_seconds

    def save(self) -> Any:
        """Nothing outlives a request."""
        return None

    def admit(self, one: Running, load: int) -> None:
        """A test phase."""
        one.drafter = self._drafter
        one.notes = _Request()

    def plan(self, running: list[Running]) -> None:
        """Each request's own length."""
        for one in running:
            one.requested = one.notes.length

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """Tokens and time of one more iteration."""
        kv_tokens = sum([one.kv_tokens for one in running])
        cost = seconds / (self._plain_seconds[len(running)] + self._kv_token_seconds * kv_tokens)
        for one in running:
            one.notes.after(one.emitted, cost)

    def finish(self, one: Running) -> None:
        """Nothing outlives a request."""

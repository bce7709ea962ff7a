"""What the chooser remembers between requests: of a context what served last, of a route what is being tried."""

import math
import random
from collections import OrderedDict, deque

from tuner.fleet.pools.rows import Kind

_MOST_CONTEXTS = 4096
_TRIAL_SECONDS = 600.0
"""After which a request whose end was not told counts as ended."""


class Course:
    """One context, from request to request."""

    def __init__(self, draw: random.Random) -> None:
        self.kind: Kind | None = None
        """Given last where what is learned decides."""
        self._draw = draw
        self._share = 0.0
        self._due = draw.random()

    def tries(self, share: float) -> bool:
        """Whether this request is one of the `share` that try something.

        Shares of requests are added up, and one is tried at a random place of each whole number: each has its chance,
        as if it were drawn alone, and none waits long, as it may where each is drawn alone.
        """
        self._share += share
        if not share or self._share < self._due:
            return False
        self._due = math.floor(self._due) + 1 + self._draw.random()
        return True


class Courses:
    """The contexts that were asked for last; not thread-safe."""

    def __init__(self) -> None:
        self._courses: OrderedDict[tuple[str, str, str], Course] = OrderedDict()

    def of(self, key: tuple[str, str, str], draw: random.Random) -> Course:
        """That of (model, route, language); a new one draws from `draw`."""
        course = self._courses.get(key)
        if course is None:
            course = self._courses[key] = Course(draw)
            if len(self._courses) > _MOST_CONTEXTS:
                self._courses.popitem(last=False)
        self._courses.move_to_end(key)
        return course


class Exploring:
    """Requests of one route that explore and have not ended, as far as is known: their ends are told without names."""

    def __init__(self) -> None:
        self.trying = 0
        """Those of them that were given another lane than the best."""
        self._running: deque[tuple[float, bool]] = deque()
        self._ended = 0

    def begin(self, now: float, *, trying: bool) -> None:
        """One more, at `now` (Unix seconds)."""
        self._running.append((now, trying))
        self.trying += trying

    def end(self, ended: int, now: float) -> None:
        """`ended` of them came to an end since the start; those that are too old have too."""
        for _ in range(min(ended - self._ended, len(self._running))):
            self._forget()
        self._ended = ended
        while self._running and now - self._running[0][0] > _TRIAL_SECONDS:
            self._forget()

    def _forget(self) -> None:
        self.trying -= self._running.popleft()[1]

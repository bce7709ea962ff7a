"""Whether an upstream gets requests: by what came of those before, with a way back."""

from enum import Enum, auto

from tuner.fleet.proxy.options import ProxyOptions


class _State(Enum):
    HEALTHY = auto()
    DOWN = auto()
    """Asked for its health when the pause is over."""
    HALF_OPEN = auto()
    """It said that it is well; one request at a time shows whether it is."""


class Health:
    """Of one upstream. What a client did wrong is no evidence."""

    def __init__(self, options: ProxyOptions) -> None:
        self._options = options
        self._state = _State.HEALTHY
        self._trial = False
        self._asking = False
        self._pause = options.retry_seconds
        self._retry_at = 0.0
        self.failures = 0
        """In a row."""
        self.sentence = ""

    @property
    def healthy(self) -> bool:
        return self._state is _State.HEALTHY

    @property
    def takes(self) -> bool:
        """Whether a request may go there while others are healthy."""
        return self._state is _State.HEALTHY or (self._state is _State.HALF_OPEN and not self._trial)

    def began(self) -> None:
        """A request goes there."""
        self._trial = self._state is _State.HALF_OPEN

    def succeeded(self) -> None:
        self._state = _State.HEALTHY
        self._trial = False
        self._pause = self._options.retry_seconds
        self.failures = 0
        self.sentence = ""

    def said_nothing(self) -> None:
        """A request ended that tells neither way: the client left, or was wrong."""
        self._trial = False

    def failed(self, sentence: str, now: float, at_once: bool = False) -> None:
        """A request failed by the upstream's doing; `at_once`: nothing listens there."""
        self.failures += 1
        if self._state is not _State.HEALTHY or at_once or self.failures >= self._options.failures_to_unhealthy:
            self._rest(sentence, now)

    def not_ready(self, sentence: str, now: float) -> None:
        """It answers, and says that it cannot serve yet: no failure."""
        self._pause = self._options.retry_seconds
        self._rest(sentence, now)

    def asks(self, now: float) -> bool:
        """Whether it is to be asked for its health now; `asked` tells what came of it."""
        if self._asking or self._state is not _State.DOWN or now < self._retry_at:
            return False
        self._asking = True
        return True

    def asked(self, well: bool, sentence: str, now: float) -> None:
        """What came of asking for its health; nothing changes if a request told more in between."""
        self._asking = False
        if self._state is not _State.DOWN:
            return
        if well:
            self._state = _State.HALF_OPEN
            self._trial = False
        else:
            self._rest(sentence, now)

    def _rest(self, sentence: str, now: float) -> None:
        if self._state is not _State.DOWN or now >= self._retry_at:
            self._retry_at = now + self._pause
            self._pause = min(2.0 * self._pause, self._options.max_retry_seconds)
        self._state = _State.DOWN
        self._trial = False
        self.sentence = sentence

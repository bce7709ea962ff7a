"""What the data path measured, on its way to the control process, which may be gone for a while."""

from collections.abc import Iterable

from tuner.fleet.link import Exchanges, Link
from tuner.fleet.types import Exchange

KEPT = 10_000
"""Exchanges that wait at most; those that come then are dropped and counted."""
AT_ONCE = 200
"""Exchanges in one message: to pack it holds up the data path."""


class Handing:
    """The sink of the proxy; all of it is called in the proxy's loop."""

    def __init__(self) -> None:
        self._waiting: list[Exchange] = []
        self.dropped = 0
        """Exchanges for which there was no room."""

    def record(self, exchange: Exchange) -> None:
        """Keep it until it is handed over."""
        if len(self._waiting) < KEPT:
            self._waiting.append(exchange)
        else:
            self.dropped += 1

    def flush(self, link: Link | None) -> bool:
        """Hand some over; False for none. What is not taken waits for the next time, or the next control process."""
        measured = tuple(self._waiting[:AT_ONCE])
        if not measured or link is None or not link.send(Exchanges(measured)):
            return False
        del self._waiting[: len(measured)]
        return True

    def take_back(self, unsent: Iterable[object]) -> None:
        """Messages that a control process that ended did not get."""
        back = [one for message in unsent if isinstance(message, Exchanges) for one in message.exchanges]
        self.dropped += max(0, len(back) + len(self._waiting) - KEPT)
        self._waiting = (back + self._waiting)[:KEPT]

"""Where conversations were served last, and draws that stay the same for all requests of one."""

from collections import OrderedDict
from typing import NamedTuple

MOST_SESSIONS = 20_000
_MASK = (1 << 64) - 1


class Home(NamedTuple):
    """The upstream that served a session last, and the tokens of prompt that it saw then."""

    upstream: str
    tokens: float


class Sessions:
    """The latest sessions, in memory; not thread-safe."""

    def __init__(self) -> None:
        self._homes: OrderedDict[int, Home] = OrderedDict()

    def home(self, session: int | None) -> Home | None:
        return None if session is None else self._homes.get(session)

    def note(self, session: int | None, home: Home) -> None:
        """A request of `session` goes to `home`."""
        if session is None:
            return
        self._homes[session] = home
        self._homes.move_to_end(session)
        if len(self._homes) > MOST_SESSIONS:
            self._homes.popitem(last=False)

    def __len__(self) -> int:
        return len(self._homes)


def fraction(session: int, salt: int) -> float:
    """In [0, 1), the same for every request of `session`, and independent for each `salt` (splitmix64, Steele et al.
    2014)."""
    value = (session * 0x9E3779B97F4A7C15 + (salt + 1) * 0xD1B54A32D192ED03) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) / (_MASK + 1)

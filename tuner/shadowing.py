"""Which drafters run beside which requests, so that a drafter which does not serve goes on being known.

A shadow proposes beside a request and is scored against what the target emits; nobody verifies it. What it costs is its
drafting, so all shadows together live on an allowance: a share of the busy time, with a start of their own and a grant
whenever something changed. The chance of a request to get a shadow says how much is to be learned from it: certain
while little is known of a drafter that might turn out to be the better one, and small ever after, but never zero while
there is an allowance, so that a gate that closed can open again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tuner.choice import Menu

SHARE = 0.003
"""Of the busy time, in the long run."""
_START_CYCLES = 40.0
_GRANT_CYCLES = 20.0
"""Of plain cycles at load 1, worth of shadows: at the start, and after each change."""
_MOST_CYCLES = 60.0
_FLOOR = 0.02
_CONTENDER_FLOOR = 0.08


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the drafters in one context."""

    menu: Menu
    place: int
    """Of the load that is served."""
    serving: str
    blocks: Mapping[str, float]
    """By drafter."""
    cheap: Collection[str] = ()
    """Those that cost next to nothing: they are looked at whatever relatives say of them, since text that repeats
    itself is like no other."""


class Allowance:
    """Seconds that shadows may still take; not thread-safe."""

    def __init__(self, cycle_seconds: float) -> None:
        """`cycle_seconds` is a plain cycle at load 1."""
        self._cycle_seconds = cycle_seconds
        self._seconds = _START_CYCLES * cycle_seconds

    @property
    def seconds(self) -> float:
        return self._seconds

    def fold(self, cycle_seconds: float, shadow_seconds: float) -> None:
        """Count a cycle."""
        seconds = self._seconds + SHARE * cycle_seconds - shadow_seconds
        self._seconds = min(seconds, _MOST_CYCLES * self._cycle_seconds)

    def grant(self) -> None:
        """Something changed: look again."""
        self._seconds = min(self._seconds + _GRANT_CYCLES * self._cycle_seconds, _MOST_CYCLES * self._cycle_seconds)


def chances(known: Known, needed: float) -> tuple[tuple[str, float], ...]:
    """(drafter, probability) for the drafters that do not serve; `needed` blocks make one known."""
    best = known.menu.worth[known.serving][known.place]
    found: list[tuple[str, float]] = []
    for drafter in known.menu.options:
        if drafter == known.serving:
            continue
        contends = known.menu.bounds[drafter][known.place][1] > best
        looked_at = contends or drafter in known.cheap
        chance = min(1.0, needed / (known.blocks.get(drafter, 0.0) + 1.0)) if looked_at else 0.0
        found.append((drafter, max(chance, _CONTENDER_FLOOR if contends else _FLOOR)))
    return tuple(found)


def drawn(wanted: Iterable[tuple[str, float]], serving: str, chance: float) -> tuple[str, ...]:
    """The drafters of one request's shadows; `chance` is uniform in [0, 1), and one draw serves them all."""
    return tuple(drafter for drafter, probability in wanted if drafter != serving and chance < probability)

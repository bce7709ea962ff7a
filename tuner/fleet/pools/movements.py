"""What was found to take another time than before, told once."""

import math
from collections.abc import Sequence

from tuner.fleet.pools.rows import ContextKey, Kind
from tuner.fleet.pools.speeds import Moved
from tuner.learning import ChangeKind, FoundChange


class Movements:
    """Not thread-safe."""

    def __init__(self, started_at: float) -> None:
        """What moved before `started_at`, in Unix seconds, is not told."""
        self._started_at = started_at
        self._told: dict[tuple[str, Kind, ContextKey | None], float] = {}
        """When it was told last."""

    def new(self, moved: Sequence[Moved], now: float) -> list[FoundChange]:
        """Those of `moved` that were not told; a reading finds the same ones again until they are forgotten."""
        found = []
        for one in moved:
            key = one.lane, one.kind, one.context
            if one.at <= max(self._started_at, self._told.get(key, -math.inf)):
                continue
            self._told[key] = now
            where = ("", "") if one.context is None else (one.context.route, one.context.language)
            what = f"lane {one.lane}" if one.lane else f"{one.kind.drafter} at {one.kind.block_length}"
            note = f"{what} takes another time for a token than before: what was seen before counts no more"
            kind = ChangeKind.COST if one.lane else ChangeKind.ACCEPTANCE
            found.append(FoundChange(kind, one.kind.drafter, *where, note))
        return found

"""How long a planned cycle may be."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from policies.plan_groups import Group
from policies.plan_search import Choice
from policies.prospect import Prospect

_ROUNDED = 1.0 + 1e-9


class WaitBounds:
    """What all sequences allow: see `policies.allocate.allocate`."""

    __slots__ = ("_groups", "_limits", "_most_seconds", "_others", "_plain_seconds", "_prospects", "_surely")

    def __init__(
        self, prospects: Sequence[Prospect], groups: Sequence[Group], plain: Choice, most_seconds: float
    ) -> None:
        """`most_seconds` are those that a cycle may take whatever is chosen; objectives may allow less."""
        self._prospects = prospects
        self._groups = groups
        self._plain_seconds = plain.seconds
        self._most_seconds = most_seconds
        self._limits: list[float] = []
        """The least objective of each group."""
        self._others = most_seconds
        """Seconds that are allowed by all but the objectives of sequences which are weighed."""
        self._surely = min([one.tpot_limit for one in prospects if one.tpot_limit is not None], default=most_seconds)
        """Seconds that are allowed whatever is emitted, if `most_seconds` are not fewer."""

    def most(self) -> float:
        """Seconds that are allowed at most, whatever is chosen."""
        if self._surely >= self._most_seconds:
            return self._most_seconds
        return self._allowed([group.cap for group in self._groups])

    def allow(self, choice: Choice) -> bool:
        """Whether no sequence waits too long for what it is expected to emit."""
        seconds = choice.seconds
        return seconds <= self._most_seconds and (seconds <= self._surely or seconds <= self._allowed(choice.lengths))

    def least(self, seconds: float) -> list[int] | None:
        """The length that each group must have at least in a cycle of `seconds`; None if none is enough."""
        if seconds > self._others * _ROUNDED:
            return None
        if seconds <= self._surely:
            return [0] * len(self._groups)
        found = []
        for limit, group in zip(self._limits, self._groups, strict=True):
            length = bisect_left(group.tokens, seconds / limit / _ROUNDED - 1.0)
            if length > group.cap:
                return None
            found.append(length)
        return found

    def _allowed(self, lengths: Sequence[int]) -> float:
        if not self._limits:
            self._look_closer()
        allowed = self._others
        for limit, group, length in zip(self._limits, self._groups, lengths, strict=True):
            allowed = min(allowed, limit * (1.0 + group.tokens[length]))
        return allowed

    def _look_closer(self) -> None:
        weighed: set[int] = set()
        for group in self._groups:
            weighed.update(group.members)
            self._limits.append(min([self._limit(self._prospects[index]) for index in group.members]))
        for index, one in enumerate(self._prospects):
            if index not in weighed:
                self._others = min(self._others, self._limit(one) * _alone(one))

    def _limit(self, one: Prospect) -> float:
        """The objective, unless the plain cycle breaks it too."""
        limit = one.tpot_limit
        return limit if limit is not None and self._plain_seconds <= limit * _alone(one) else inf


def _alone(one: Prospect) -> float:
    """Tokens that a sequence is expected to emit in the plain cycle."""
    return 1.0 + (one.outlook.tokens[min(one.cap, len(one.outlook.survival))] if one.forced else 0.0)

"""How long a planned cycle may be."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf

from policies.plan_groups import Group
from policies.plan_search import Choice
from policies.prospect import Prospect

_ROUNDED = 1.0 + 1e-9


class WaitBounds:
    """What all sequences allow: see `policies.allocate.allocate`."""

    __slots__ = (
        "_groups",
        "_limits",
        "_most",
        "_others",
        "_plain_seconds",
        "_prospects",
        "_spare_of",
        "_surely",
    )

    def __init__(
        self,
        prospects: Sequence[Prospect],
        groups: Sequence[Group],
        plain: Choice,
        surely: float,
        spare_of: Callable[[Sequence[int]], float],
    ) -> None:
        """`spare_of` says how much longer than `plain` a cycle may be whatever comes of it, by the length that each
        sequence is asked for; objectives may allow less, of which `surely` is the least of all, infinite without any.
        """
        self._prospects = prospects
        self._groups = groups
        self._plain_seconds = plain.seconds
        self._spare_of = spare_of
        self._most: dict[tuple[int, ...], float] = {}
        """By lengths, the seconds that are allowed with them."""
        self._limits: list[float] = []
        """The least objective of each group."""
        self._others = inf
        """Seconds that are allowed by the objectives of sequences which are not weighed."""
        self._surely = surely
        """Seconds that are allowed by all objectives whatever is emitted."""

    def most(self, lengths: Sequence[int]) -> float:
        """Seconds that are allowed with these lengths, whatever is emitted, but for objectives."""
        key = tuple(lengths)
        most = self._most.get(key)
        if most is None:
            asked = [0] * len(self._prospects)
            for group, length in zip(self._groups, lengths, strict=False):
                if length:
                    for index in group.members:
                        asked[index] = length
            most = self._most[key] = self._plain_seconds + self._spare_of(asked)
        return most

    def allow(self, choice: Choice) -> bool:
        """Whether no sequence waits too long for what it is expected to emit."""
        seconds = choice.seconds
        return seconds <= self.most(choice.lengths) and (
            seconds <= self._surely or seconds <= self._allowed(choice.lengths)
        )

    def least(self, choice: Choice) -> list[int] | None:
        """The length that each group must have at least in a cycle as long as `choice`, nothing if none must have any;
        None if none is enough."""
        seconds = choice.seconds
        if seconds > self.most(choice.lengths) * _ROUNDED:
            return None
        if seconds <= self._surely:
            return []
        self._allowed(choice.lengths)
        if seconds > self._others * _ROUNDED:
            return None
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

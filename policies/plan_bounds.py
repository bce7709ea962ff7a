"""How long the sequences of a planned cycle may wait for each other."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from policies.plan_groups import Group
from policies.plan_search import Choice
from policies.prospect import Prospect

_ROUNDED = 1.0 + 1e-9


class WaitBounds:
    """What each sequence allows: see `policies.allocate.allocate`."""

    __slots__ = ("_bound_seconds", "_groups", "_others", "_plain_seconds", "_prospects", "_surely", "_terms")

    def __init__(
        self, prospects: Sequence[Prospect], groups: Sequence[Group], plain: Choice, bound_seconds: float
    ) -> None:
        self._prospects = prospects
        self._groups = groups
        self._plain_seconds = plain.seconds
        self._bound_seconds = bound_seconds
        self._terms: list[tuple[float, float]] = []
        """The least slack and the least objective of each group."""
        self._others = inf
        """Seconds that the sequences which are not weighed allow."""
        least_limit = min([one.tpot_limit for one in prospects if one.tpot_limit is not None], default=inf)
        self._surely = min(bound_seconds + min([one.slack_seconds for one in prospects]), least_limit)
        """Seconds that are allowed whatever is emitted."""

    def most(self) -> float:
        """Seconds that are allowed at most, whatever is chosen."""
        return self._allowed([group.cap for group in self._groups])

    def allow(self, choice: Choice) -> bool:
        """Whether no sequence waits too long for what it is expected to emit."""
        return choice.seconds <= self._surely or choice.seconds <= self._allowed(choice.lengths)

    def least(self, seconds: float) -> list[int] | None:
        """The length that each group must have at least in a cycle of `seconds`; None if none is enough."""
        if seconds > self._others * _ROUNDED:
            return None
        found = []
        for (slack, limit), group in zip(self._terms, self._groups, strict=True):
            needed = max((seconds - slack) / self._bound_seconds, seconds / limit)
            length = bisect_left(group.tokens, needed / _ROUNDED - 1.0)
            if length > group.cap:
                return None
            found.append(length)
        return found

    def _allowed(self, lengths: Sequence[int]) -> float:
        if not self._terms:
            self._look_closer()
        bound, allowed = self._bound_seconds, self._others
        for (slack, limit), group, length in zip(self._terms, self._groups, lengths, strict=True):
            expected = 1.0 + group.tokens[length]
            allowed = min(allowed, bound * expected + slack, limit * expected)
        return allowed

    def _look_closer(self) -> None:
        weighed: set[int] = set()
        for group in self._groups:
            weighed.update(group.members)
            members = [self._prospects[index] for index in group.members]
            self._terms.append(
                (min([one.slack_seconds for one in members]), min([self._limit(one) for one in members]))
            )
        for index, one in enumerate(self._prospects):
            if index not in weighed:
                expected = _alone(one)
                most = min(self._bound_seconds * expected + one.slack_seconds, self._limit(one) * expected)
                self._others = min(self._others, most)

    def _limit(self, one: Prospect) -> float:
        """The objective, unless the plain cycle breaks it too."""
        limit = one.tpot_limit
        return limit if limit is not None and self._plain_seconds <= limit * _alone(one) else inf


def _alone(one: Prospect) -> float:
    """Tokens that a sequence is expected to emit in the plain cycle."""
    return 1.0 + (one.outlook.tokens[min(one.cap, len(one.outlook.survival))] if one.forced else 0.0)

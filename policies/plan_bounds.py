"""How long the sequences of a planned cycle may wait for each other."""

from collections.abc import Sequence
from math import inf

from policies.plan_search import Choice, Group
from policies.prospect import Prospect


class WaitBounds:
    """What each sequence allows: see `policies.allocate.allocate`."""

    def __init__(
        self, prospects: Sequence[Prospect], groups: Sequence[Group], plain: Choice, bound_seconds: float
    ) -> None:
        self._prospects = prospects
        self._groups = groups
        self._plain_seconds = plain.seconds
        self._bound_seconds = bound_seconds
        self._terms: list[tuple[float, float]] = []
        """The least slack and the least objective of each group."""
        least_slack = min([one.slack_seconds for one in prospects])
        least_limit = min([one.tpot_limit for one in prospects if one.tpot_limit is not None], default=inf)
        self._surely = min(bound_seconds + least_slack, least_limit)
        """Seconds that are allowed whatever is emitted."""
        self._others = inf
        """Seconds that the sequences which are not weighed allow."""

    def allow(self, choice: Choice) -> bool:
        """Whether no sequence waits too long for what it is expected to emit."""
        seconds = choice.seconds
        if seconds <= self._surely or not choice.lengths:
            return True
        if not self._terms:
            self._look_closer()
        if seconds > self._others:
            return False
        for (slack, limit), group, length in zip(self._terms, self._groups, choice.lengths, strict=True):
            expected = 1.0 + group.outlook.tokens[length]
            if seconds > self._bound_seconds * expected + slack or seconds > limit * expected:
                return False
        return True

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

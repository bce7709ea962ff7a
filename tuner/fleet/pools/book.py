"""The policies in force in a fleet, judged by what is known of its lanes."""

from policies.types import Context
from tuner.fleet.pools.verdict import Findings, judge
from tuner.known_contexts import Key
from tuner.policy_versions import PolicyVersions


class Book(PolicyVersions):
    """Not thread-safe."""

    def __init__(self, model: str, min_change_seconds: float) -> None:
        super().__init__(min_change_seconds)
        self._model = model

    def update(self, key: Key, found: Findings, unix_seconds: float, monotonic_seconds: float) -> None:
        """Judge one context again."""
        context = Context(self._model, *key)
        self._enter(
            key,
            lambda previous, learned: judge(context, found, previous, learned),
            unix_seconds,
            monotonic_seconds,
        )

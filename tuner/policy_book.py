"""The policies in force, by context, judged by what is known of drafters, and when it is time to judge again."""

import math

from policies.types import PLAIN, Context, Policy, PolicyState
from tuner.choice import Menu
from tuner.known_contexts import Key
from tuner.policy_versions import PolicyVersions
from tuner.verdict import Bounds, Findings, judge

_EVIDENCE_SECONDS = 10.0
"""Between two looks at the measured gain of a context of which nothing else changed."""


class PolicyBook(PolicyVersions):
    """Not thread-safe."""

    def __init__(self, model: str, bounds: Bounds, min_change_seconds: float) -> None:
        super().__init__(min_change_seconds)
        self._model = model
        self._bounds = bounds
        self._judged_at: dict[Key, float] = {}
        self._menus: dict[Key, Menu | None] = {}
        """By which each was judged."""

    def resume(self, policy: Policy) -> None:
        """See `PolicyVersions.resume`."""
        super().resume(policy)
        self._judged_at[policy.context.route, policy.context.language] = -math.inf

    def learned_drafter(self, key: Key) -> str:
        """Who serves most in what was last learned of `key`."""
        learned = self._learned.get(key)
        return learned.drafter if learned is not None else PLAIN

    def allow(self, key: Key) -> None:
        """Let what is learned of `key` change at once, since what it rests on changed."""
        self._judged_at[key] = self._changed_at[key] = -math.inf

    def is_due(self, key: Key, menu: Menu | None, monotonic_seconds: float) -> bool:
        """Whether judging `key` again could change what is learned, or its evidence is old."""
        policy = self._policies.get(key)
        if policy is None:
            return True
        passed = monotonic_seconds - self._judged_at[key]
        if menu is not self._menus.get(key) and policy.state is PolicyState.LEARNING:
            return True
        needed = self._min_change_seconds if menu is not self._menus.get(key) else _EVIDENCE_SECONDS
        return passed >= needed

    def update(self, key: Key, found: Findings, unix_seconds: float, monotonic_seconds: float) -> None:
        """Judge one context again."""
        self._judged_at[key] = monotonic_seconds
        self._menus[key] = found.menu
        context = Context(self._model, *key)
        self._enter(
            key,
            lambda previous, learned: judge(context, found, self._bounds, previous, learned),
            unix_seconds,
            monotonic_seconds,
        )

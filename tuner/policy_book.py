"""The policies in force, by context: their versions, and how often what is learned may change them."""

import math
from dataclasses import replace

from policies.types import MAX_VERSION, PLAIN, Arm, Context, Policy, PolicyState, Reason
from tuner.choice import Menu
from tuner.known_contexts import Key
from tuner.verdict import Bounds, Findings, judge

_EVIDENCE_SECONDS = 10.0
"""Between two looks at the measured gain of a context of which nothing else changed."""
_LEARNED_STATES = (PolicyState.LEARNING, PolicyState.ON, PolicyState.OFF)


class PolicyBook:
    """Not thread-safe."""

    def __init__(self, model: str, bounds: Bounds, min_change_seconds: float) -> None:
        self._model = model
        self._bounds = bounds
        self._min_change_seconds = min_change_seconds
        self._policies: dict[Key, Policy] = {}
        self._learned: dict[Key, Arm] = {}
        """The arm last learned, which a pin or a kill switch may cover for a while."""
        self._versions: dict[Key, int] = {}
        self._changed_at: dict[Key, float] = {}
        self._judged_at: dict[Key, float] = {}
        self._menus: dict[Key, Menu | None] = {}
        """By which each was judged."""
        self._pending: list[Policy] = []

    @property
    def policies(self) -> dict[Key, Policy]:
        """A copy of what is in force."""
        return dict(self._policies)

    @property
    def versions(self) -> dict[Key, int]:
        """The newest version number ever given to each context."""
        return dict(self._versions)

    def raise_version(self, key: Key, version: int) -> None:
        """Versions of `key` go on after `version`. Raises ValueError where none can come after it."""
        if version > MAX_VERSION:
            raise ValueError(f"version {version} of {'/'.join(key)} is beyond {MAX_VERSION}, the largest there can be")
        self._versions[key] = max(version, self._versions.get(key, 0))

    def resume(self, policy: Policy) -> None:
        """Put a policy of an earlier run in force, without its measured gain, which belongs to that run."""
        key = policy.context.route, policy.context.language
        self._policies[key] = replace(policy, evidence=replace(policy.evidence, speedup=None))
        self._changed_at[key] = self._judged_at[key] = -math.inf
        if policy.reason is Reason.LEARNED:
            self._learned[key] = policy.arm

    def learned_drafter(self, key: Key) -> str:
        """Who serves most in what was last learned of `key`."""
        learned = self._learned.get(key)
        return learned.drafter if learned is not None else PLAIN

    def allow(self, key: Key) -> None:
        """Let what is learned of `key` change at once, since what it rests on changed."""
        self._judged_at[key] = self._changed_at[key] = -math.inf

    def take_changes(self) -> list[Policy]:
        """The new versions since the last call, in order."""
        pending, self._pending = self._pending, []
        return pending

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
        """Judge one context again.

        What operators set takes effect at once. What is learned makes at most one version in `min_change_seconds`.
        """
        self._judged_at[key] = monotonic_seconds
        self._menus[key] = found.menu
        previous = self._policies.get(key)
        policy = judge(Context(self._model, *key), found, self._bounds, previous, self._learned.get(key))
        if previous is not None:
            learned_change = previous.state in _LEARNED_STATES and policy.state in _LEARNED_STATES
            too_soon = learned_change and monotonic_seconds - self._changed_at[key] < self._min_change_seconds
            if policy.version == previous.version or too_soon:
                self._policies[key] = replace(previous, evidence=policy.evidence)
                return
        self._changed_at[key] = monotonic_seconds
        self._versions[key] = self._versions.get(key, 0) + 1
        policy = replace(policy, version=self._versions[key], created_at=unix_seconds)
        if policy.reason is Reason.LEARNED:
            self._learned[key] = policy.arm
        self._policies[key] = policy
        self._pending.append(policy)

"""The policies in force, by context, with their versions, and how often what is learned may change them."""

import math
from collections.abc import Callable
from dataclasses import replace

from policies.types import MAX_VERSION, Arm, Policy, PolicyState, Reason
from tuner.known_contexts import Key

_LEARNED_STATES = (PolicyState.LEARNING, PolicyState.ON, PolicyState.OFF)


class PolicyVersions:
    """Not thread-safe."""

    def __init__(self, min_change_seconds: float) -> None:
        self._min_change_seconds = min_change_seconds
        self._policies: dict[Key, Policy] = {}
        self._learned: dict[Key, Arm] = {}
        """The arm last learned, which a pin or a kill switch may cover for a while."""
        self._versions: dict[Key, int] = {}
        self._changed_at: dict[Key, float] = {}
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
        self._changed_at[key] = -math.inf
        if policy.reason is Reason.LEARNED:
            self._learned[key] = policy.arm

    def take_changes(self) -> list[Policy]:
        """The new versions since the last call, in order."""
        pending, self._pending = self._pending, []
        return pending

    def _enter(
        self,
        key: Key,
        judged: Callable[[Policy | None, Arm | None], Policy],
        unix_seconds: float,
        monotonic_seconds: float,
    ) -> None:
        """Put in force what `judged` says of the policy before and the arm last learned.

        What operators set takes effect at once. What is learned makes at most one version in `min_change_seconds`.
        """
        previous = self._policies.get(key)
        policy = judged(previous, self._learned.get(key))
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

"""The policies in force in a fleet, by context: their versions, and how often what is learned may change them."""

import math
from dataclasses import replace

from policies.types import MAX_VERSION, Arm, Context, Policy, PolicyState, Reason
from tuner.fleet.pools.verdict import Findings, judge
from tuner.known_contexts import Key

_LEARNED_STATES = (PolicyState.LEARNING, PolicyState.ON, PolicyState.OFF)


class Book:
    """Not thread-safe."""

    def __init__(self, model: str, min_change_seconds: float) -> None:
        self._model = model
        self._min_change_seconds = min_change_seconds
        self._policies: dict[Key, Policy] = {}
        self._learned: dict[Key, Arm] = {}
        self._changed_at: dict[Key, float] = {}
        self._pending: list[Policy] = []
        self.versions: dict[Key, int] = {}
        """The newest version number ever given to each context."""

    @property
    def policies(self) -> dict[Key, Policy]:
        """A copy of what is in force."""
        return dict(self._policies)

    def raise_version(self, key: Key, version: int) -> None:
        """Versions of `key` go on after `version`. Raises ValueError where none can come after it."""
        if version > MAX_VERSION:
            raise ValueError(f"version {version} of {'/'.join(key)} is beyond {MAX_VERSION}, the largest there can be")
        self.versions[key] = max(version, self.versions.get(key, 0))

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

    def update(self, key: Key, found: Findings, unix_seconds: float, monotonic_seconds: float) -> None:
        """Judge one context again. What operators set takes effect at once; what is learned makes at most one version
        in `min_change_seconds`."""
        previous = self._policies.get(key)
        policy = judge(Context(self._model, *key), found, previous, self._learned.get(key))
        if previous is not None:
            learned_change = previous.state in _LEARNED_STATES and policy.state in _LEARNED_STATES
            too_soon = learned_change and monotonic_seconds - self._changed_at[key] < self._min_change_seconds
            if policy.version == previous.version or too_soon:
                self._policies[key] = replace(previous, evidence=policy.evidence)
                return
        self._changed_at[key] = monotonic_seconds
        self.versions[key] = self.versions.get(key, 0) + 1
        policy = replace(policy, version=self.versions[key], created_at=unix_seconds)
        if policy.reason is Reason.LEARNED:
            self._learned[key] = policy.arm
        self._policies[key] = policy
        self._pending.append(policy)

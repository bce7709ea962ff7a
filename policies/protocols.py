"""The two protocols between the engine and whatever steers it, and the simplest thing that satisfies one of them."""

import itertools
from typing import Protocol

from policies.stats import CycleStats, RequestStats
from policies.types import PLAIN, PLAIN_ARM, Arm, Context, Decision, Reason, RequestFeatures


class DecisionSource(Protocol):
    """Says, for one request, which drafter may be used and how far."""

    def decide(self, context: Context, features: RequestFeatures) -> Decision:
        """Resolve the policy in memory: no I/O, no lock that a writer holds, and never an exception.

        On any fault of its own it answers with the plain arm and `Reason.ERROR`.
        """
        ...


class TelemetrySink(Protocol):
    """Takes what the engine measured. Callers may be any thread; neither call blocks or raises."""

    def record_cycle(self, stats: CycleStats) -> None:
        """Keep or drop (and count) one cycle."""
        ...

    def record_request(self, stats: RequestStats) -> None:
        """Keep or drop (and count) one finished request."""
        ...


class FixedPolicy:
    """One arm for everything, without learning: a `DecisionSource` that needs no tuner."""

    def __init__(self, arm: Arm = PLAIN_ARM) -> None:
        self.arm = arm
        self._serial = itertools.count()

    def decide(self, context: Context, features: RequestFeatures) -> Decision:
        """The arm, forced, unless the client opted out."""
        arm = PLAIN_ARM if features.opt_out else self.arm
        reason = Reason.CLIENT_OPT_OUT if features.opt_out else Reason.ENGINE_DEFAULT
        return Decision(
            decision_id=f"fixed.{arm.drafter}-{arm.cap}.{reason.value}.{next(self._serial)}",
            context=context,
            drafter=arm.drafter if arm.cap else PLAIN,
            cap=arm.cap,
            forced=True,
            reason=reason,
            policy_version=0,
        )

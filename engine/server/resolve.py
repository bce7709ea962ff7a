"""Asks the decision source, and never lets its faults reach a request."""

import logging
from collections.abc import Callable

from policies.protocols import DecisionSource
from policies.types import PLAIN, Context, Decision, Reason, RequestFeatures

_log = logging.getLogger(__name__)


class Resolver:
    """A `DecisionSource` whose answers can be relied on: what raises, or names a drafter that this engine does not
    have, becomes the plain arm with `Reason.ERROR`."""

    def __init__(self, decisions: DecisionSource, drafters: Callable[[], tuple[str, ...]]) -> None:
        """`drafters` are those that the engine has now."""
        self._decisions = decisions
        self._drafters = drafters

    def decide(self, context: Context, features: RequestFeatures) -> Decision:
        try:
            decision = self._decisions.decide(context, features)
        except Exception:  # noqa: BLE001 - whatever is wrong there, the request is served plain, and the log says so
            _log.exception("the decision source failed for %s/%s", context.route, context.language)
            return plain_for_fault(context)
        if decision.drafter not in self._drafters():
            _log.error("decision %s names the unknown drafter %s", decision.decision_id, decision.drafter)
            return plain_for_fault(context)
        return decision


def plain_for_fault(context: Context) -> Decision:
    """The plain arm, because something other than the request is wrong."""
    return Decision(
        decision_id=f"fault.{PLAIN}-0.{Reason.ERROR.value}",
        context=context,
        drafter=PLAIN,
        cap=0,
        forced=True,
        reason=Reason.ERROR,
        policy_version=0,
    )

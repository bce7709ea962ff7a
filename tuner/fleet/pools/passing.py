"""Where a request goes that nobody steers, and what its answer tells."""

from collections.abc import Collection

from policies.types import UNKNOWN_LENGTH, Decision
from tuner.fleet.pools.sessions import Home
from tuner.fleet.pools.snapshot import LaneSpeed
from tuner.fleet.types import Asked

_ROOM = 2
"""A session stays where it was served while no more than so many requests above the least loaded are in progress."""


def decision_headers(decision: Decision, lane: str, debug: bool) -> tuple[tuple[str, str], ...]:
    """The headers of an answer; more of them where the client asked for `debug`."""
    told = (("x-paceline-decision", decision.decision_id), ("x-paceline-policy", str(decision.policy_version)))
    if not debug:
        return told
    return (
        *told,
        ("x-paceline-reason", decision.reason.value),
        ("x-paceline-drafter", decision.drafter),
        ("x-paceline-cap", "unknown" if decision.cap == UNKNOWN_LENGTH else str(decision.cap)),
        ("x-paceline-language", decision.context.language),
        ("x-paceline-route", decision.context.route),
        ("x-paceline-lane", lane),
    )


def least_loaded(upstreams: Collection[str], asked: Asked, home: Home | None) -> str:
    """The upstream with the fewest requests in progress, or the session's own if that is nearly as free."""
    least = min(upstreams, key=lambda name: asked.in_flight[name])
    if home is None or home.upstream not in upstreams:
        return least
    return home.upstream if asked.in_flight[home.upstream] <= asked.in_flight[least] + _ROOM else least


def least_loaded_lane(lanes: Collection[LaneSpeed], asked: Asked, home: Home | None) -> LaneSpeed:
    """The first of `lanes` on the upstream that is least loaded."""
    upstream = least_loaded([one.lane.upstream for one in lanes], asked, home)
    return next(one for one in lanes if one.lane.upstream == upstream)

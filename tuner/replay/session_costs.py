"""What cycles cost in one session of an engine, from its calibration and cycles that it served: all count alike.

The live model of costs forgets and suspects changes, since it serves for months. A session takes minutes, so nothing is
forgotten here. And a cycle in which a drafter with layers of its own ran has a slower pass of the target, whose weights
have to be read from memory again: that is a cost of drafting, so it is found and added to the drafter's call.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from policies.cycle_policy import PassCost
from policies.stats import CycleStats, EngineInfo
from tuner.cost.draft_cost import DraftCosts
from tuner.cost.model import CostModel
from tuner.replay.trace import Costs

_ROUNDS = 5
"""Of fitting the pass, and what drafters add to it, in turn."""
_STALL = 2.0
"""A cycle that takes so many times what the calibration says is a stall, and left out."""
_REFIT_CYCLES = 50
_HEAVY = 0.01
"""A drafter of which one draft takes less than this share of a plain pass leaves the cache as it was."""


@dataclass(frozen=True, slots=True)
class SessionCosts:
    """The costs, and what starting up takes."""

    costs: Costs
    startup_seconds: Mapping[str, float]
    """By drafter: for each token of a text that it has to read first."""


def session_costs(info: EngineInfo, cycles: Sequence[CycleStats]) -> SessionCosts:
    """Raises ValueError where the engine was not calibrated."""
    calibrated = CostModel(info).cost
    if calibrated is None:
        raise ValueError("without a calibration nothing has a cost; start the engine with one")
    speed = statistics.median([_ratio(stats, calibrated) for stats in cycles] or [1.0])
    served = [stats for stats in cycles if stats.load and _ratio(stats, calibrated) < _STALL * speed]
    timed = DraftCosts(info.draft_calibration).costs
    plain = calibrated.seconds(1, 1, 0)
    added = {name: 0.0 for name, price in timed.items() if price.seconds(1, 1, 1) > _HEAVY * plain}
    cost = calibrated
    for _ in range(_ROUNDS):
        passes = tuple(
            replace(
                stats,
                cycle_seconds=_pass_seconds(stats) - sum(added.get(name, 0.0) for name in stats.draft_seconds),
                draft_seconds={},
                shadow_seconds=0.0,
            )
            for stats in served
        )
        fitted = CostModel(replace(info, calibration=info.calibration + passes)).cost
        assert fitted is not None
        cost = fitted
        for name in added:
            left = [_pass_seconds(stats) - _seconds(stats, cost) for stats in served if name in stats.draft_seconds]
            if left:
                added[name] = max(0.0, statistics.median(left))
    drafts = DraftCosts(info.draft_calibration)
    for number, stats in enumerate(served, start=1):
        drafts.fold(stats)
        if number % _REFIT_CYCLES == 0:
            drafts.refit()
    drafts.refit()
    drafting = {
        name: replace(price, call_seconds=price.call_seconds + added.get(name, 0.0))
        for name, price in drafts.costs.items()
    }
    return SessionCosts(Costs(cost, drafting), {name: drafts.startup_seconds(name, 1) for name in info.drafters})


def _pass_seconds(stats: CycleStats) -> float:
    return stats.cycle_seconds - sum(stats.draft_seconds.values()) - stats.shadow_seconds


def _seconds(stats: CycleStats, cost: PassCost) -> float:
    return cost.seconds(stats.tokens, stats.load, stats.kv_tokens)


def _ratio(stats: CycleStats, cost: PassCost) -> float:
    return _pass_seconds(stats) / _seconds(stats, cost)

"""A trace out of what an engine recorded and measured."""

import random
import statistics
from collections.abc import Sequence

from policies.cycle_policy import DraftCost
from policies.stats import CycleStats, EngineInfo
from policies.types import PLAIN
from tuner.replay.session_costs import session_costs
from tuner.replay.trace import Costs, Trace, TracedRequest

LOADS = (1, 2, 4, 8, 16)
STRETCH = 12
"""Requests between two changes of load."""
STALL = 2.0
"""A cycle that takes so many times what it should is a stall, and no noise."""
_NORMAL_MAD = 1.4826
"""Standard deviation over the median absolute deviation of a normal distribution."""
_FREE = DraftCost(0.0, 0.0, 0.0, 0.0)
"""Of a drafter that could not be timed."""


class RecordingError(Exception):
    """What was recorded is no trace; one sentence for people."""


def make_trace(
    requests: Sequence[TracedRequest], info: EngineInfo, cycles: Sequence[CycleStats], machine: str, seed: int
) -> Trace:
    """The requests, served in stretches of loads that `seed` draws, by the machine that `info` was calibrated on.

    `cycles` are some that it served: they count in the costs, and its noise is theirs. Raises RecordingError where the
    engine was not calibrated or nothing was recorded.
    """
    if not info.calibration:
        raise RecordingError("The engine was started without a calibration, so that nothing has a cost.")
    if not requests:
        raise RecordingError("No request came to a second token; ask for more requests or more tokens.")
    drafters = tuple(name for name in info.drafters if name != PLAIN)
    costs = session_costs(info, cycles).costs
    costs = Costs(costs.target, {name: costs.drafters.get(name, _FREE) for name in drafters})
    spread, share, factor = noise_of(cycles, costs)
    return Trace(
        drafters=drafters,
        requests=tuple(requests),
        loads=loads_of(len(requests), info.slots, seed),
        costs=costs,
        slots=info.slots,
        seconds_sd=spread,
        stall_share=share,
        stall_factor=factor,
        confidence_buckets={
            name: max(1, *(max(one.drafts[name].confidence, default=0) for one in requests)) for name in drafters
        },
        machine=machine,
    )


def loads_of(requests: int, slots: int, seed: int) -> tuple[int, ...]:
    """How many run together once each request is admitted: stretches in which the load stays the same."""
    order = random.Random(seed)
    possible = [load for load in LOADS if load <= slots]
    loads: list[int] = []
    while len(loads) < requests:
        loads += [order.choice(possible)] * STRETCH
    return tuple(loads[:requests])


def noise_of(cycles: Sequence[CycleStats], costs: Costs) -> tuple[float, float, float]:
    """Of what cycles took over what they should have: the relative standard deviation without stalls, the share of
    stalls, and how many times as long they took."""
    ratios = [
        (stats.cycle_seconds - sum(stats.draft_seconds.values()) - stats.shadow_seconds)
        / costs.target.seconds(stats.tokens, stats.load, stats.kv_tokens)
        for stats in cycles
    ]
    if not ratios:
        return 0.0, 0.0, 1.0
    centre = statistics.median(ratios)
    stalls = [ratio / centre for ratio in ratios if ratio > STALL * centre]
    quiet = [abs(ratio / centre - 1.0) for ratio in ratios if ratio <= STALL * centre]
    return (
        _NORMAL_MAD * statistics.median(quiet),
        len(stalls) / len(ratios),
        statistics.fmean(stalls) if stalls else 1.0,
    )

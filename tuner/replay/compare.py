"""What runs of controllers say together: regret against the oracle's run of the same trace, intervals over seeds, how
soon a change or a new context is mastered, and how often a bound was broken.

Everything is paired: a controller and the oracle served the same requests, with the same tokens, at the same loads.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.types import Interval
from tuner.jackknife import student_t
from tuner.replay.played import Floats, Outcome
from tuner.replay.trace import Trace

WARM_UP_SHARE = 0.1
"""Requests at the start that do not count in regret."""
WINDOW_BOUND_PERCENT = 2.0
"""No window of 500 requests may be slower than plain by more."""
NEIGHBOUR_BOUND = 1.10
"""No sequence may be slowed by its neighbours by more than this factor."""
TRAIL_REQUESTS = 25
"""Requests over which recovery is judged, and for how many more it has to last."""
RECOVERED_PERCENT = 2.0


@dataclass(frozen=True, slots=True)
class Run:
    """One controller on one trace."""

    scenario: str
    controller: str
    seed: int
    regret_percent: float
    """After the warm-up."""
    whole_regret_percent: float
    worst_window_percent: float
    worst_neighbour: float
    seconds: float
    plain_seconds: float
    """What the same tokens would have taken in plain cycles of the same load and context."""
    counted_seconds: float
    """After the warm-up."""
    shadow_seconds: float
    cycles: int
    played_seconds: float
    """By this machine's clock: what running it took. Not part of any result."""
    request_seconds: Floats
    """(R,): see `tuner.replay.played.Outcome`; empty for plain and the fixed arms, which learn nothing."""


def make_run(
    scenario: str,
    controller: str,
    seed: int,
    outcome: Outcome,
    oracle: Outcome,
    played_seconds: float,
    *,
    learns: bool,
) -> Run:
    """A run, compared with the oracle's. `learns`: whether how soon it did is to be told."""
    first = warm_up(len(outcome.request_seconds))
    counted = float(outcome.request_seconds[first:].sum())
    return Run(
        scenario=scenario,
        controller=controller,
        seed=seed,
        regret_percent=100.0 * (counted / float(oracle.request_seconds[first:].sum()) - 1.0),
        whole_regret_percent=100.0 * (outcome.seconds / oracle.seconds - 1.0),
        worst_window_percent=outcome.worst_window_percent,
        worst_neighbour=outcome.worst_neighbour,
        seconds=outcome.seconds,
        plain_seconds=float(outcome.request_plain_seconds.sum()),
        counted_seconds=counted,
        shadow_seconds=outcome.shadow_seconds,
        cycles=outcome.cycles,
        played_seconds=played_seconds,
        request_seconds=outcome.request_seconds if learns else np.empty(0),
    )


def warm_up(requests: int) -> int:
    """The first request that counts in regret."""
    return int(WARM_UP_SHARE * requests)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean with Student's 95 % interval; from one value alone it reaches from minus to plus infinity."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def share_interval(hits: int, count: int) -> Interval:
    """A share with its 95 % interval (Wilson 1927), which says something for 0 of n as well."""
    z = 1.959964
    share = hits / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def requests_until_recovered(runs: Sequence[Floats], oracles: Sequence[Floats], first: int, last: int) -> int:
    """Requests from `first` on after which the mean over seeds stays within 2 % of the oracle; all of them up to
    `last` if it never does.

    It is read from windows of 25 requests that lie behind `first`, and has to last for 25 more. A single run's window
    is noisy, since what runs beside a request differs: a window is within 2 % where the mean over the seeds is, or is
    not above it by more than the 95 % interval of that mean.

    Args:
        runs, oracles: each request's share of seconds, by seed.
        first, last: requests; the change, and the next one or the end.
    """
    ratios = np.array(
        [
            _trailing(mine[first:last]) / _trailing(oracle[first:last])
            for mine, oracle in zip(runs, oracles, strict=True)
        ]
    )
    if ratios.shape[1] <= TRAIL_REQUESTS:
        return last - first
    excess = 100.0 * (ratios.mean(axis=0) - 1.0)
    if len(runs) > 1:
        excess -= 100.0 * student_t(len(runs) - 1) * ratios.std(axis=0, ddof=1) / math.sqrt(len(runs))
    within = excess <= RECOVERED_PERCENT
    lasting = np.convolve(within, np.ones(TRAIL_REQUESTS + 1, dtype=np.int64), mode="valid") == TRAIL_REQUESTS + 1
    found = np.flatnonzero(lasting)
    return int(found[0]) + TRAIL_REQUESTS if len(found) else last - first


def _trailing(seconds: Floats) -> Floats:
    sums = np.concatenate(([0.0], np.cumsum(seconds)))
    return np.asarray(sums[TRAIL_REQUESTS:] - sums[:-TRAIL_REQUESTS], dtype=np.float64)


def arrival_requests(trace: Trace) -> list[int]:
    """The requests of the context that comes into the traffic under way, in order."""
    return [i for i, one in enumerate(trace.requests) if (one.route, one.language) == trace.arrival]


def arrival_regret(run: Floats, oracle: Floats, arrived: Sequence[int], skip: int, count: int) -> float:
    """Regret in percent over `count` requests of a new context, after its first `skip`."""
    chosen = list(arrived[skip : skip + count])
    return 100.0 * (float(run[chosen].sum()) / float(oracle[chosen].sum()) - 1.0)

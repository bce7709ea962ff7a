"""What a run did, cycle by cycle and request by request, and what that cost: without noise, since truth is known.

A request lives in consecutive cycles from the one that admits it, so a run is told by the first cycle of each request
and one row for each of its cycles. Both ways of running, `tuner.replay.simulate` and `tuner.replay.fixed_play`, end
here: the accounts are the same code.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.cycle_policy import PassCost
from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.trace import Costs, Trace

WINDOW_REQUESTS = 500
"""Consecutive finished requests over which a run is compared with plain serving."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Played:
    """Rows are one sequence in one cycle, ordered by request and then by cycle. R requests, C cycles, N rows."""

    first_cycle: Ints
    """(R,)"""
    cycle_count: Ints
    """(R,)"""
    drafter: Ints
    """(N,): 0 where nothing was asked, else 1 + the drafter's place in `Trace.drafters`."""
    proposed: Ints
    """(N,)"""
    verified: Ints
    """(N,)"""
    emitted: Ints
    """(N,)"""
    shadow_seconds: Floats
    """(C,): what shadows took."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run took. Seconds are the machine's, without the noise of what a controller was told."""

    seconds: float
    """Of all cycles."""
    request_seconds: Floats
    """(R,): each request's share of its cycles, a cycle being shared equally by the sequences that run in it. Requests
    emit the same tokens under every controller, so these compare like with like, whatever was running at a boundary."""
    request_plain_seconds: Floats
    """(R,): the same share of what its tokens would have taken in plain cycles of that load and context."""
    worst_window_percent: float
    """The largest loss against plain in any 500 consecutive finished requests; negative if all of them gained."""
    worst_neighbour: float
    """The largest, over requests, of the seconds of its cycles over the larger of the plain seconds of its tokens and
    the seconds of the same cycles had only its own drafts been verified."""
    load_tokens: Floats
    """(slots + 1,): tokens that were emitted at each load."""
    load_seconds: Floats
    """(slots + 1,): seconds of the cycles at each load."""
    shadow_seconds: float
    cycles: int


def pass_seconds(cost: PassCost, slots: int) -> Floats:
    """Seconds of a pass for 0 to ``slots * 17`` tokens, load and context left out."""
    without = PassCost(cost.token_knots, cost.knot_seconds, 0.0, 0.0)
    return np.array([without.seconds(tokens, 0, 0) for tokens in range(slots * (MAX_BLOCK_LENGTH + 1) + 1)])


def account(trace: Trace, played: Played) -> Outcome:
    """The accounts of a run over `trace`."""
    requests = len(trace.requests)
    owner = np.repeat(np.arange(requests), played.cycle_count)
    offset = np.cumsum(played.cycle_count) - played.cycle_count
    cycle = np.arange(len(owner)) - offset[owner] + played.first_cycle[owner]
    cycles = len(played.shadow_seconds)
    load = np.bincount(cycle, minlength=cycles)
    reached = np.cumsum(played.emitted)
    before = reached - played.emitted
    prompt = np.array([one.prompt_tokens for one in trace.requests], dtype=np.int64)
    kv_tokens = _sums(cycle, prompt[owner] + 1 + before - before[offset][owner], cycles)

    verified = _sums(cycle, played.verified, cycles).astype(np.int64)
    eras = _eras(trace, played.first_cycle, cycles)
    seconds, plain, alone = np.empty(cycles), np.empty(cycles), np.empty(len(owner))
    for first, last, costs in eras:
        here = slice(first, last)
        rows = (cycle >= first) & (cycle < last)
        table = pass_seconds(costs.target, trace.slots)
        rest = costs.target.sequence_seconds * load[here] + costs.target.kv_token_seconds * kv_tokens[here]
        plain[here] = table[load[here]] + rest
        seconds[here] = table[load[here] + verified[here]] + rest
        at = cycle[rows]
        alone[rows] = table[load[at] + played.verified[rows]] + rest[at - first]
        for place, name in enumerate(trace.drafters, start=1):
            asked = rows & (played.drafter == place)
            if not asked.any():
                continue
            price, proposed = costs.drafters[name], played.proposed[asked]
            alone[asked] += (
                price.call_seconds + price.sequence_seconds + (price.step_seconds + price.row_seconds) * proposed
            )
            where = cycle[asked] - first
            count = np.bincount(where, minlength=last - first)
            steps = np.zeros(last - first, dtype=np.int64)
            np.maximum.at(steps, where, proposed)
            drafted = _sums(where, proposed, last - first)
            seconds[here] += (
                price.call_seconds * (count > 0)
                + price.sequence_seconds * count
                + price.step_seconds * steps
                + price.row_seconds * drafted
            )
    seconds += played.shadow_seconds

    emitted = _sums(cycle, played.emitted, cycles)
    life = _sums(owner, seconds[cycle], requests)
    own_plain = _sums(owner, played.emitted * plain[cycle], requests)
    own_alone = _sums(owner, alone, requests)
    shares = _sums(owner, (seconds / load)[cycle], requests)
    plain_shares = _sums(owner, played.emitted * (plain / load)[cycle], requests)
    return Outcome(
        seconds=float(seconds.sum()),
        request_seconds=shares,
        request_plain_seconds=plain_shares,
        worst_window_percent=_worst_window(
            np.sort(played.first_cycle + played.cycle_count), seconds, emitted * plain / load
        ),
        worst_neighbour=float((life / np.maximum(own_plain, own_alone)).max()),
        load_tokens=_sums(load, emitted, trace.slots + 1),
        load_seconds=_sums(load, seconds, trace.slots + 1),
        shadow_seconds=float(played.shadow_seconds.sum()),
        cycles=cycles,
    )


def _sums(places: Ints, values: Floats | Ints, length: int) -> Floats:
    return np.asarray(np.bincount(places, weights=values, minlength=length), dtype=np.float64)


def _worst_window(ends: Ints, seconds: Floats, plain: Floats) -> float:
    """`ends`: for each request in order of finishing, the cycles that had run by then."""
    taken = np.concatenate(([0.0], np.cumsum(seconds)))
    baseline = np.concatenate(([0.0], np.cumsum(plain)))
    bounds = np.concatenate(([0], ends))
    width = min(WINDOW_REQUESTS, len(ends))
    begins, stops = bounds[:-width], bounds[width:]
    # Requests that finish in one cycle can leave a window of fewer requests empty.
    some = stops > begins
    losses = (taken[stops] - taken[begins])[some] / (baseline[stops] - baseline[begins])[some]
    return 100.0 * float(losses.max() - 1.0)


def _eras(trace: Trace, first_cycle: Ints, cycles: int) -> list[tuple[int, int, Costs]]:
    """(first cycle, the one behind the last, what cycles cost)."""
    firsts = [0, *(int(first_cycle[request]) for request, _ in trace.later_costs)]
    costs = [trace.costs, *(later for _, later in trace.later_costs)]
    lasts = [*firsts[1:], cycles]
    return [era for era in zip(firsts, lasts, costs, strict=True) if era[1] > era[0]]

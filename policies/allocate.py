"""How many of the proposed tokens of each running sequence one cycle verifies. Pure, and quick: it runs every cycle.

Verifying position j of a sequence adds S_j expected tokens and one row to the target's pass. The rows of all sequences
are taken in falling order of S_j, and every total is weighed by expected tokens per second, since the cost of a pass
has steps and stopping at the first bad margin would miss what lies behind one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.cycle_policy import PassCost


@dataclass(frozen=True, slots=True)
class Candidate:
    """One running sequence. Every one is listed, also those that propose nothing: their number is the load."""

    proposed: int
    """Tokens on offer, already cut to the decision's cap."""
    survival: tuple[float, ...]
    """S_1..S_n for the confidence of this proposal; positions beyond it count as never accepted."""
    forced: bool
    """The proposal is verified whole and not weighed."""
    mean_emitted: float = 1.0
    """Tokens a cycle that this sequence has emitted so far. One that gained from its neighbours' cycles may wait for
    them in its own silent ones; one that never gains may not be made to wait."""


def allocate(
    candidates: Sequence[Candidate],
    cost: PassCost | None,
    kv_tokens: int,
    margin: float,
    max_neighbour_slowdown: float,
) -> tuple[int, ...]:
    """The verified length of each candidate's proposal, in their order.

    Forced proposals are taken whole and belong to the cycle that everything else is compared with. Of the other
    totals, those are allowed in which no sequence's predicted seconds per token, over the larger of what it is
    expected to emit now and what it emits on average, exceed `max_neighbour_slowdown` times the seconds of that
    cycle. The allowed total with the most tokens per second is used if it beats that cycle by more than `margin`
    (a share, e.g. 0.02), else none. The smaller of two equal totals wins; of two equal positions the one of the
    earlier candidate. Without a `cost` only forced proposals are verified.
    """
    load = len(candidates)
    verified = [0] * load
    emitted_by = [1.0] * load
    means = [candidate.mean_emitted for candidate in candidates]
    forced_tokens = 0
    gains: list[float] = []
    owners: list[int] = []
    for index, candidate in enumerate(candidates):
        proposed = candidate.proposed
        if not proposed:
            continue
        if candidate.forced:
            verified[index] = proposed
            forced_tokens += proposed
            emitted_by[index] += sum(candidate.survival[:proposed])
        elif cost is not None:
            previous = 1.0
            for survival in candidate.survival[:proposed]:
                # An estimate that rises along the block would let a position be taken without the one before it.
                previous = min(previous, survival)
                if previous <= 0.0:
                    break
                gains.append(previous)
                owners.append(index)
    if cost is None or not gains:
        return tuple(verified)

    order = sorted(range(len(gains)), key=gains.__getitem__, reverse=True)
    taken = _best_total(
        order, gains, owners, emitted_by, means, load + forced_tokens, cost, kv_tokens, margin, max_neighbour_slowdown
    )
    for position in order[:taken]:
        verified[owners[position]] += 1
    return tuple(verified)


def _best_total(
    order: Sequence[int],
    gains: Sequence[float],
    owners: Sequence[int],
    emitted_by: list[float],
    means: Sequence[float],
    base_tokens: int,
    cost: PassCost,
    kv_tokens: int,
    margin: float,
    max_neighbour_slowdown: float,
) -> int:
    """How many positions of `order` to verify.

    `emitted_by` is what each sequence is expected to emit so far, and is used up; `means` what it emits on average.
    The walk along the knots repeats `PassCost.seconds`, without a search for each total.
    """
    load = len(emitted_by)
    knots, values = cost.token_knots, cost.knot_seconds
    fixed_seconds = cost.sequence_seconds * load + cost.kv_token_seconds * kv_tokens
    base_seconds = cost.seconds(base_tokens, load, kv_tokens)
    slowest_seconds = max_neighbour_slowdown * base_seconds
    emitted = sum(emitted_by)
    best_rate = emitted / base_seconds * (1.0 + margin)
    best_total = 0
    reached = [max(pair) for pair in zip(emitted_by, means, strict=True)]
    slowest = min(reached)

    last = len(knots) - 1
    upper = 0
    knot_tokens, knot_value, slope = knots[0], values[0], 0.0
    tokens = base_tokens
    for taken, position in enumerate(order, start=1):
        tokens += 1
        if upper < last and tokens > knots[upper]:
            upper += 1
            while upper < last and knots[upper] < tokens:
                upper += 1
            knot_tokens, knot_value = knots[upper - 1], values[upper - 1]
            slope = (values[upper] - knot_value) / (knots[upper] - knot_tokens)
        seconds = knot_value + slope * (tokens - knot_tokens) + fixed_seconds
        gain = gains[position]
        owner = owners[position]
        emitted += gain
        emitted_by[owner] += gain
        if emitted_by[owner] > reached[owner]:
            was, reached[owner] = reached[owner], emitted_by[owner]
            if was == slowest:
                slowest = min(reached)
        rate = emitted / seconds
        if rate > best_rate and seconds <= slowest_seconds * slowest:
            best_rate = rate
            best_total = taken
    return best_total

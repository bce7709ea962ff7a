"""What each drafter is worth to each context in the cycles that are served, in which contexts share the cost.

A learned drafter's steps are paid once for all sequences that use it, and the rows of the target's pass get dearer or
cheaper with the rows of the others. So which drafter is best for a context depends on what the other contexts use. At a
price of a second (the tokens per second that the traffic reaches) and of a row (that price times the slope of the pass
where its rows lie), contexts are independent of each other but for the steps, so the search is over which learned
drafters are in use and how deep each of them drafts (the prices as in Dinkelbach 1967; the rest is facility location).
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from policies.cycle_policy import DraftCost, PassCost
from tuner.cost.rates import Array, Profile, pass_seconds

_ROUNDS = 4
"""In which prices settle."""
_MOST_LEARNED = 4
"""Of more drafters that take steps, those with the most to offer alone are looked at together."""
_FREE = DraftCost(0.0, 0.0, 0.0, 0.0)

Ends = tuple[Profile, Profile, Profile]
"""By the mean of what is known, and by the lower and upper ends of its interval."""


class _Stack:
    """One drafter in all contexts; arrays over [end, context, cut, block length]."""

    def __init__(self, profiles: Sequence[Ends], price: DraftCost) -> None:
        ends = list(zip(*profiles, strict=True))
        self.gains = np.stack([np.stack([one.emitted for one in each]) for each in ends]) - 1.0
        self.rows = np.stack([one.rows for one in ends[0]])
        self.variance = np.stack([one.variance for one in ends[0]])
        self.offered = np.stack([one.offered for one in ends[0]])
        self.asked = np.stack([one.asked for one in ends[0]])
        self.price = price

    def values(self, rate: float, row_price: float) -> Array:
        """[end, context, depth]: tokens beyond plain, less what they cost but for calls and steps, at the best cut and
        any block length up to the depth. Those of depth 0 are nothing."""
        price = self.price
        each = self.gains - row_price * self.rows
        each = each - rate * (price.sequence_seconds + price.row_seconds * self.offered)[:, None, :]
        each[..., 0] = 0.0
        return np.asarray(np.maximum.accumulate(each.max(axis=2), axis=2), dtype=np.float64)

    def chosen(self, context: int, rate: float, row_price: float, depth: int) -> tuple[float, float, float, float]:
        """(tokens beyond plain, rows, their variance, drafts offered) of the best block in one context."""
        price = self.price
        each = self.gains[0, context, :, : depth + 1] - row_price * self.rows[context, :, : depth + 1]
        each = each - rate * (price.sequence_seconds + price.row_seconds * self.offered[context, : depth + 1])
        cut, length = np.unravel_index(int(each.argmax()), each.shape)
        return (
            float(self.gains[0, context, cut, length]),
            float(self.rows[context, cut, length]),
            float(self.variance[context, cut, length]),
            float(self.offered[context, length]),
        )


def worth(
    profiles: Mapping[str, Sequence[Ends]],
    shares: Sequence[float],
    draft_costs: Mapping[str, DraftCost],
    cost: PassCost,
    load: int,
    kv_each: float,
) -> dict[str, Array]:
    """Tokens that a cycle of each context is worth with each drafter, less its price beyond that of a plain cycle.

    Args:
        profiles: by drafter, of each context.
        shares: of the contexts in the sequences that run; they sum to 1.
        load: sequences that run together.

    Returns:
        By drafter, arrays over [end, context]; plain is worth 1.
    """
    stacks = {name: _Stack(own, draft_costs.get(name, _FREE)) for name, own in profiles.items()}
    learned = [name for name, stack in stacks.items() if stack.price.step_seconds > 0.0]
    weights = np.asarray(shares)
    fixed_seconds = cost.sequence_seconds * load + cost.kv_token_seconds * load * kv_each
    rows, spread, emitted, drafting = 0.0, 0.0, float(load), 0.0
    found: dict[str, Array] = {}
    for _ in range(_ROUNDS):
        seconds = fixed_seconds + drafting + _pass(cost, load + rows)
        rate = emitted / seconds
        reach = max(spread, 2.0)
        low = max(load + rows - reach, float(load))
        row_price = rate * max(0.0, (_pass(cost, load + rows + reach) - _pass(cost, low)) / (load + rows + reach - low))
        values = {name: stack.values(rate, row_price) for name, stack in stacks.items()}
        found, use, depths = _best_use(stacks, values, learned, weights, rate, load)
        gained = used = variance = drafting = 0.0
        for name, stack in stacks.items():
            depth = depths.get(name, stack.offered.shape[1] - 1)
            share = offered = 0.0
            for context in np.flatnonzero(use == list(stacks).index(name)):
                gain, own_rows, own_variance, own_offered = stack.chosen(int(context), rate, row_price, depth)
                if own_offered > 0.0:
                    share += float(weights[context])
                    gained += weights[context] * gain
                    used += weights[context] * own_rows
                    variance += weights[context] * (own_variance + own_rows**2)
                    offered += weights[context] * own_offered
            if share > 0.0:
                there = 1.0 - (1.0 - share) ** load
                price = stack.price
                drafting += there * (price.call_seconds + price.step_seconds * depths.get(name, 0))
                drafting += load * (price.sequence_seconds * share + price.row_seconds * offered)
        rows, emitted = load * float(used), load * (1.0 + float(gained))
        spread = float(np.sqrt(load * max(variance - used**2, 0.0)))
    return found


def _best_use(
    stacks: Mapping[str, _Stack],
    values: Mapping[str, Array],
    learned: Sequence[str],
    weights: Array,
    rate: float,
    load: int,
) -> tuple[dict[str, Array], Array, dict[str, int]]:
    """What each drafter is worth in each context if the best ones are in use; who serves, as places in `stacks`; and
    how deep the learned ones draft."""
    free = [name for name in stacks if name not in learned]
    base: Array = np.maximum.reduce([np.zeros(len(weights)), *(values[name][0, :, -1] for name in free)])
    if len(learned) > _MOST_LEARNED:
        alone = {name: float(weights @ np.maximum(values[name][0, :, -1] - base, 0.0)) for name in learned}
        learned = sorted(learned, key=alone.__getitem__, reverse=True)[:_MOST_LEARNED]
    best, best_depths = 0.0, dict[str, int]()
    for count in range(1, len(learned) + 1):
        for names in itertools.combinations(learned, count):
            depths = {name: min(2, values[name].shape[2] - 1) for name in names}
            total = -np.inf
            for _ in range(2):
                for name in names:
                    others = [values[other][0, :, depths[other]] for other in names if other != name]
                    floor = np.max([base, *others], axis=0)
                    gain = np.maximum(values[name][0] - floor[:, None], 0.0)
                    users = weights @ (gain > 0.0)
                    price = stacks[name].price
                    there = 1.0 - (1.0 - np.minimum(users, 1.0)) ** load
                    steps = price.call_seconds + price.step_seconds * np.arange(gain.shape[1])
                    net = load * (weights @ gain) - rate * there * steps
                    depths[name] = min(max(1, int(net.argmax())), len(net) - 1)
            floor = np.max([base, *(values[name][0, :, depths[name]] for name in names)], axis=0)
            total = load * float(weights @ (floor - base))
            owner = np.argmax([base, *(values[name][0, :, depths[name]] for name in names)], axis=0)
            for place, name in enumerate(names, start=1):
                users = float(weights @ (owner == place))
                price = stacks[name].price
                total -= rate * (1.0 - (1.0 - users) ** load) * (price.call_seconds + price.step_seconds * depths[name])
            if total > best:
                best, best_depths = total, depths
    found = {}
    for name, stack in stacks.items():
        if name in best_depths:
            found[name] = 1.0 + values[name][:, :, best_depths[name]]
        elif stack.price.step_seconds > 0.0:
            # Nobody uses it: who starts pays for the steps alone.
            price = stack.price
            steps = rate * (price.call_seconds + price.step_seconds * np.arange(values[name].shape[2]))
            steps[0] = 0.0
            found[name] = 1.0 + (values[name] - steps).max(axis=2)
        else:
            found[name] = 1.0 + values[name][:, :, -1]
    use = np.argmax([found[name][0] for name in stacks], axis=0)
    return found, np.asarray(use), best_depths


def _pass(cost: PassCost, tokens: float) -> float:
    return float(pass_seconds(cost, np.asarray([tokens], dtype=np.float64))[0])

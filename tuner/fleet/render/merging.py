"""One schedule for all routes, since an engine takes one table whatever it serves.

At each load the block length is the one with which the mix of routes takes the fewest seconds per token. With a block
length K a route takes ``cost(K) / emitted(K)`` of its plain seconds per token. ``emitted(K) = 1 + S_1 + ... + S_K`` is
from its own survivals; ``cost(K)``, a cycle's seconds over those of a plain one, is the same for all routes. A policy
tells the cost at its own block length, since its predicted gain is ``emitted(K) / cost(K)``; between the block lengths
of several policies, and down to 0, where it is 1, it is interpolated. Seconds of a mix add up, so the gain of a mix is
a harmonic mean with the traffic as weights. Where nothing is known to gain, what more than half of the traffic asks for
at least is taken, unless it is known not to gain.

Only what was learned counts: a pin, a kill switch or a configured arm says what an operator wanted.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from policies.types import ANY_LOAD, PLAIN, UNKNOWN_LENGTH, Arm, Policy, Reason
from tuner.fleet.types import UNKNOWN_DRAFTER
from tuner.wording import counted

_FIRST_LOAD = 1
_NEAR = 0.995
"""Of two block lengths that are so near in what they gain, the shorter one is taken."""

_UNTOLD = "its server does not tell what drafts there, or how far"


class NothingLearnedError(Exception):
    """No context has a verdict; what there is instead, and the remedy."""


@dataclass(frozen=True, slots=True)
class Known:
    """A context's policy, and how much of the traffic it has."""

    policy: Policy
    requests: int

    @property
    def name(self) -> str:
        """``route/language``."""
        return f"{self.policy.context.route}/{self.policy.context.language}"


@dataclass(frozen=True, slots=True)
class Share:
    """One route at one stretch of loads."""

    known: Known
    weight: float
    """Its share of the traffic that is counted."""
    own: int
    """The block length of its own policy with the drafter of all; 0: plain."""
    gains: tuple[tuple[int, float], ...]
    """(block length, predicted gain over plain): 0, and of those that routes ask for the ones that are known."""
    other: str = ""
    """Who drafts there in its own policy, if it is not the drafter of all."""

    def gain(self, block_length: int) -> float | None:
        return dict(self.gains).get(block_length)


@dataclass(frozen=True, slots=True)
class Step:
    """What all routes get at ``load_low <= load <= load_high``."""

    load_low: int
    load_high: int
    block_length: int
    shares: tuple[Share, ...]

    @property
    def loads(self) -> str:
        """For people."""
        if self.load_high >= ANY_LOAD:
            return f"load {self.load_low} and above"
        return f"load {self.load_low}" + (f"-{self.load_high}" if self.load_high > self.load_low else "")

    @property
    def asked(self) -> tuple[int, ...]:
        """The block lengths that routes ask for here, rising, without 0."""
        return tuple(sorted({share.own for share in self.shares} - {0}))

    def gain(self, block_length: int) -> float | None:
        """Of the mix over plain; None if one of its routes is not known."""
        total = 0.0
        for share in self.shares:
            gain = share.gain(block_length)
            if gain is None:
                return None
            total += share.weight / gain
        return 1.0 / total


@dataclass(frozen=True, slots=True)
class Merged:
    """One schedule of one drafter for all routes."""

    model: str
    drafter: str
    steps: tuple[Step, ...]
    """In rising order of load, without gaps, from 1 to `ANY_LOAD`."""
    counted: tuple[Known, ...]
    """Those with a verdict for this drafter, or for plain."""
    left_out: tuple[tuple[Known, str], ...]
    """The others, and why."""

    @property
    def longest(self) -> int:
        """0: plain at every load."""
        return max(step.block_length for step in self.steps)

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """(load_low, load_high, block length), neighbours of one length joined."""
        found: list[tuple[int, int, int]] = []
        for step in self.steps:
            if found and found[-1][2] == step.block_length:
                found[-1] = (found[-1][0], step.load_high, step.block_length)
            else:
                found.append((step.load_low, step.load_high, step.block_length))
        return found

    def at(self, lengths: Sequence[int]) -> "Merged":
        """With other block lengths, one a step: where an engine cannot do what is best."""
        return replace(
            self,
            steps=tuple(replace(step, block_length=one) for step, one in zip(self.steps, lengths, strict=True)),
        )

    def single(self) -> "Merged":
        """One block length for every load that was served: what gains most over all of them, or the lower median."""
        served = [step for step in self.steps if step.load_high < ANY_LOAD] or list(self.steps)
        options = sorted({0, *(length for step in served for length in step.asked)})
        gains = {length: [step.gain(length) for step in served] for length in options}
        known = {length: [gain for gain in found if gain is not None] for length, found in gains.items()}
        if known == gains:
            over_all = [(length, len(found) / sum(1.0 / gain for gain in found)) for length, found in known.items()]
            best = _shortest_of_the_best(over_all)
        else:
            best = sorted(step.block_length for step in served)[(len(served) - 1) // 2]
        return self.at([best] * len(self.steps))


def merge(known: Sequence[Known]) -> Merged:
    """One schedule from policies, which have one context each.

    Raises:
        NothingLearnedError: none of them has a verdict.
    """
    learned = [one for one in known if one.policy.reason is Reason.LEARNED and _is_told(one.policy.arm)]
    if not learned:
        raise NothingLearnedError(_nothing(known))
    drafter = _drafter(learned)
    counts = [one for one in learned if not one.policy.arm.cap or _main(one.policy.arm) == drafter]
    others = tuple((one, _why(one, drafter)) for one in known if one not in counts)
    counts = [_with_survival_of(one, drafter) for one in counts]
    model = learned[0].policy.context.model
    return Merged(model, drafter, tuple(_steps(counts, drafter)), tuple(counts), others)


def _nothing(known: Sequence[Known]) -> str:
    if not known:
        return "no context has been seen yet: serve traffic first"
    if any(one.policy.reason is Reason.LEARNED for one in known):
        return f"{_UNTOLD}: set fleet.upstreams.NAME.drafter and fleet.upstreams.NAME.block_length"
    reasons = [one.policy.reason for one in known]
    found = f"none of {counted(len(known), 'context')} has a verdict"
    if learning := reasons.count(Reason.EXPLORE):
        found += f", {learning} still learning: serve more traffic"
    if by_mode := reasons.count(Reason.ROUTE_DEFAULT):
        found += f", {by_mode} on routes whose mode steers nothing: set it to canary or auto"
    return found


def _is_told(arm: Arm) -> bool:
    """Whether it is known what drafts in it, and how far, so that a launch can be written of it."""
    return all(
        not step.block_length or (step.block_length != UNKNOWN_LENGTH and step.drafter != UNKNOWN_DRAFTER)
        for step in arm.schedule
    )


def _drafter(learned: Sequence[Known]) -> str:
    """The one that most of the traffic asks for, at the loads that were served lately."""
    weights: dict[str, int] = defaultdict(int)
    for one in learned:
        if one.policy.arm.cap:
            weights[_main(one.policy.arm)] += max(one.requests, 1)
    return max(weights, key=lambda name: weights[name], default=_main(learned[0].policy.arm))


def _main(arm: Arm) -> str:
    """The drafter of an arm that speculates: that of the loads served lately, unless plain serves there."""
    return arm.drafter if arm.drafter in arm.drafters or not arm.drafters else arm.drafters[0]


def _with_survival_of(known: Known, drafter: str) -> Known:
    """Without survivals that are another drafter's: the evidence has those of the one that serves lately."""
    policy = known.policy
    if policy.arm.drafter == drafter or not policy.evidence.survival:
        return known
    return replace(known, policy=replace(policy, evidence=replace(policy.evidence, survival=())))


def _why(known: Known, drafter: str) -> str:
    if not _is_told(known.policy.arm):
        return _UNTOLD
    match known.policy.reason:
        case Reason.LEARNED:
            return f"its drafter is {_main(known.policy.arm)}, and how {drafter} would do there is not known"
        case Reason.EXPLORE:
            return "it is still learning"
        case other:
            return f"its policy was not learned ({other.value})"


def _steps(counts: Sequence[Known], drafter: str) -> Iterator[Step]:
    total = sum(max(one.requests, 1) for one in counts)
    edges = sorted(
        {_FIRST_LOAD, ANY_LOAD + 1}
        | {edge for one in counts for step in one.policy.arm.schedule for edge in (step.load_low, step.load_high + 1)}
    )
    for low, after in pairwise(edge for edge in edges if _FIRST_LOAD <= edge <= ANY_LOAD + 1):
        arms = [one.policy.arm for one in counts]
        drafters = [arm.drafter_at(low) if arm.block_length(low) else PLAIN for arm in arms]
        others = ["" if name in (drafter, PLAIN) else name for name in drafters]
        lengths = [0 if other else arm.block_length(low) for arm, other in zip(arms, others, strict=True)]
        options = sorted({0, *lengths})
        costs = _costs(counts, lengths, low)
        shares = tuple(
            Share(one, max(one.requests, 1) / total, length, _gains(one, length, options, costs, low), other)
            for one, length, other in zip(counts, lengths, others, strict=True)
        )
        step = Step(low, after - 1, 0, shares)
        gains = [(option, gain) for option in options if (gain := step.gain(option)) is not None]
        chosen, wanted = _shortest_of_the_best(gains), _half_of(shares)
        yield replace(step, block_length=wanted if not chosen and step.gain(wanted) is None else chosen)


def _shortest_of_the_best(gains: Sequence[tuple[int, float]]) -> int:
    best = max(gain for _, gain in gains)
    return min(length for length, gain in gains if gain >= _NEAR * best)


def _half_of(shares: Sequence[Share]) -> int:
    """The longest block length that more than half of the traffic asks for, or for a longer one."""
    asked = sorted({share.own for share in shares}, reverse=True)
    return next(one for one in asked if sum(share.weight for share in shares if share.own >= one) > 0.5)


def _costs(counts: Sequence[Known], lengths: Sequence[int], load: int) -> list[tuple[int, float]]:
    """(block length, seconds of a cycle over those of a plain one) that the policies tell, rising in both."""
    told: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for one, length in zip(counts, lengths, strict=True):
        gain = _predicted(one, load)
        if length and gain is not None and one.policy.evidence.survival:
            told[length].append((max(one.requests, 1), _emitted(one, length) / gain))
    found = [(0, 1.0)]
    for length in sorted(told):
        weights = sum(weight for weight, _ in told[length])
        mean = sum(weight * cost for weight, cost in told[length]) / weights
        found.append((length, max(mean, found[-1][1])))
    return found


def _gains(
    known: Known, own: int, options: Sequence[int], costs: Sequence[tuple[int, float]], load: int
) -> tuple[tuple[int, float], ...]:
    """At its own block length what the policy predicts; elsewhere by the costs, for as far as they are told.

    A plain route without survivals is taken at its worst: nothing is accepted there.
    """
    predicted = _predicted(known, load)
    found = [(0, 1.0)]
    for option in options[1:]:
        if option == own and predicted is not None:
            found.append((option, predicted))
        elif option <= costs[-1][0] and (known.policy.evidence.survival or not own):
            found.append((option, _emitted(known, option) / _between(costs, option)))
    return tuple(found)


def _predicted(known: Known, load: int) -> float | None:
    """The gain at the largest load of the evidence that is not above `load`: schedules hold up to the next load."""
    pairs = known.policy.evidence.predicted_speedup
    place = bisect_right([at for at, _ in pairs], load) - 1
    return pairs[place][1] if place >= 0 else None


def _emitted(known: Known, length: int) -> float:
    """1 + S_1 + ... + S_K; beyond what is known a position is kept as often as the last one was."""
    survival = known.policy.evidence.survival
    total, last = 1.0, 1.0
    hazard = 0.0
    for position in range(length):
        if position < len(survival):
            hazard = survival[position] / last if last else 0.0
            last = survival[position]
        else:
            last *= hazard
        total += last
    return total


def _between(costs: Sequence[tuple[int, float]], length: int) -> float:
    for (below, low), (above, high) in pairwise(costs):
        if below <= length <= above:
            return low + (high - low) * (length - below) / (above - below)
    return costs[-1][1]

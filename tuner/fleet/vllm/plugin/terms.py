"""What the orders in force say of one request: worked out once for each, and read in every step."""

from policies.candidate import Candidate
from policies.cycle_policy import Outlook, Survival
from policies.types import Decision
from tuner.fleet.vllm.plugin.following import InForce
from tuner.fleet.vllm.plugin.launch import Launch

UNKNOWN = Outlook((), ())
"""Of a drafter of which nothing has been learned yet."""


class Terms:
    """Of one request, while the orders stay."""

    __slots__ = ("_candidates", "_survival", "cap", "forced", "in_force", "outlook", "tpot_limit", "watched")

    def __init__(self, decision: Decision, most: int, launch: Launch, in_force: InForce) -> None:
        """`most` is the largest block length of the request, whoever steers."""
        policy = in_force.policy
        context = decision.context
        self.in_force = in_force
        self.cap = 0
        """The longest block."""
        self.watched = 0
        """How many drafts to make of which none is verified."""
        self.forced = decision.forced or not in_force.steered
        """Whether nobody weighs it."""
        self._survival: Survival | None = None
        self._candidates: dict[tuple[int, int], Candidate] = {}
        self.outlook = UNKNOWN
        self.tpot_limit = policy.tpot_limits.get(context.route)
        most = min(most, launch.block_length)
        if most <= 0 or policy.plain_on(context.route):
            return
        name, key = launch.drafter, (launch.drafter, context.route, context.language)
        free = name not in policy.draft_costs
        if decision.drafter != name:
            if free and name in decision.shadows:
                self.watched = min(decision.cap or most, most)
            return
        cap = decision.cap
        if cap and not (in_force.steered or decision.forced):
            cap = launch.block_length
        if policy.hold and not self.forced:
            self.watched = min(cap, most) if free and launch.shows_drafts else 0
            return
        self.cap = min(cap, most)
        self._survival = policy.survivals.get(key) or policy.default_survivals.get(name)
        self.outlook = policy.outlooks.get(key) or policy.default_outlooks.get(name, UNKNOWN)

    def candidate(self, proposed: int, confidence: int) -> Candidate:
        """The request with so many drafts on offer."""
        key = proposed, confidence
        found = self._candidates.get(key)
        if found is None:
            curve: tuple[float, ...] = ()
            if proposed and self._survival is not None:
                curve = self._survival.of(confidence)
            found = self._candidates[key] = Candidate(proposed, curve, self.forced, self.tpot_limit)
        return found

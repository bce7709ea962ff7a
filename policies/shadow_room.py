"""How much may be drafted beside the requests of one cycle. Everybody who runs waits for it, and nobody gains."""

from policies.cycle_policy import CyclePolicy
from policies.types import MAX_BLOCK_LENGTH

LEAST_LENGTH = 4
"""A shorter shadow tells too little for what its call takes."""


class ShadowRoom:
    """For one cycle: shadows are let in one by one while the longest that they may take is within what everybody may
    still wait."""

    def __init__(self, policy: CyclePolicy, spare_seconds: float) -> None:
        """`spare_seconds` is what the plan leaves: `policies.plan.Plan.spare_seconds`."""
        self._policy = policy
        self._spare_seconds = spare_seconds
        self.granted_seconds = 0.0
        """What those that were let in take at most."""
        self._asked: dict[str, tuple[int, int]] = {}
        """By drafter: sequences, and drafts of each."""

    def length(self, drafter: str) -> int:
        """How many drafts a shadow of `drafter` beside one more sequence may have, which are then counted; 0 where
        there is no room for it. The first one says it for all of the cycle."""
        sequences, length = self._asked.get(drafter, (0, MAX_BLOCK_LENGTH))
        price = self._policy.draft_costs.get(drafter)
        if price is not None:
            before = price.seconds(sequences, length, sequences * length)
            while True:
                seconds = price.seconds(sequences + 1, length, (sequences + 1) * length) - before
                if self.granted_seconds + seconds <= self._spare_seconds:
                    break
                length -= 1
                if sequences or length < LEAST_LENGTH:
                    return 0
            self.granted_seconds += seconds
        self._asked[drafter] = sequences + 1, length
        return length

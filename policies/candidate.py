"""A running sequence as the allocation of a cycle sees it."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Candidate:
    """One running sequence. Every one is listed, also those that propose nothing: their number is the load."""

    proposed: int
    """Tokens on offer, already cut to the decision's cap."""
    survival: tuple[float, ...]
    """S_1..S_n for the confidence of this proposal, which never rise; positions beyond it count as never accepted.
    Sequences that share one tuple are weighed in less time."""
    forced: bool
    """The proposal is verified whole and not weighed."""
    tpot_limit: float | None = None
    """Seconds per output token that its route's objective allows."""

    def lifted(self, lift: float) -> "Candidate":
        """The same where each of its tokens counts `lift` times, see `policies.ledger.lifts`. Not where it is forced,
        which is not weighed, nor where it has an objective, which is judged by what is expected."""
        if lift <= 1.0 or self.forced or self.tpot_limit is not None:
            return self
        return replace(self, survival=tuple([lift * each for each in self.survival]))

"""What cycles cost each running sequence, and how long it may wait for its neighbours in the next one.

The bound is on a sequence's whole life: the seconds of its cycles may not exceed `max_neighbour_slowdown` times the
larger of

    plain: what plain cycles would have taken for the tokens that it emitted
    alone: what the same cycles would have taken with its own drafts alone

since neither what it would have waited without anybody's drafts, nor what it waits for its own, is its neighbours'
doing. All is by the cost model in force, and kept in units of the model's plain cycle of one sequence: where the
machine is found to be slower or faster than before, the past counts in what it would cost today.
"""


class Ledger:
    """Of one sequence; for one thread."""

    __slots__ = ("alone", "plain", "taken")

    def __init__(self) -> None:
        self.plain = 0.0
        self.alone = 0.0
        self.taken = 0.0

    def enter(self, plain: float, alone: float, taken: float) -> None:
        """One cycle, in units: plain cycles for what it emitted in it, the cycle with its drafts alone, the cycle."""
        self.plain += plain
        self.alone += alone
        self.taken += taken

    def slack(self, bound: float, expected: float = 0.0, own: float = 0.0) -> float:
        """Units that it grants the next cycle beyond `bound` plain ones; negative if it has waited too long already.

        Args:
            bound: `max_neighbour_slowdown`.
            expected: plain cycles' worth of tokens that it emits in the long run from a cycle like the next one, beyond
                those that are expected of the proposals at hand. A drafter that is silent now speaks later: a sequence
                that gains need not hold its neighbours back in the cycles in which it does not.
            own: what its own drafting adds to the next cycle.
        """
        return bound * max(self.plain + expected, self.alone + own) - self.taken

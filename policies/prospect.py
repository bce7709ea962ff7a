"""A running sequence as a plan sees it."""

from dataclasses import dataclass

from policies.cycle_policy import Outlook


@dataclass(frozen=True, slots=True)
class Prospect:
    """One running sequence. Every one is listed, also those that may not speculate: their number is the load."""

    drafter: str
    outlook: Outlook
    """Sequences that share one are weighed together."""
    cap: int
    """Largest block length that may be asked for; 0 for a sequence that stays plain."""
    forced: bool
    """The cap is asked for and not weighed."""
    tpot_limit: float | None = None
    """See `policies.allocate.Candidate`."""

"""The protocol of drafters: propose for a batch, and be told when sequences come and go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import RunningSequence


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a drafter offers for one sequence."""

    tokens: tuple[int, ...]
    confidence: int
    """The bucket of `policies.types` confidence: 0 when `tokens` is empty, else from 1 upwards."""


SILENT = Proposal((), 0)


class Drafter(Protocol):
    """One drafter serves every sequence whose decision names it."""

    name: str

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        """At most ``lengths[i] >= 1`` tokens that may follow ``sequences[i].tokens``; fewer or none are fine."""
        ...

    def release(self, request_key: int) -> None:
        """Forget what is kept for a sequence; an unknown key is ignored."""
        ...

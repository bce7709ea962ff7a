"""A step of vLLM, and who is in it."""

from collections.abc import Sequence
from typing import Protocol

from policies.cycle_policy import CyclePolicy
from tuner.fleet.vllm.plugin.seat import SILENT, Seat
from tuner.fleet.vllm.plugin.terms import Terms


class Running(Protocol):
    """vLLM's request, as far as it is read here."""

    request_id: str
    spec_token_ids: list[int]
    num_computed_tokens: int
    is_prefill_chunk: bool
    max_tokens: int

    @property
    def num_output_tokens(self) -> int: ...


class Place:
    """One request in one step."""

    __slots__ = ("chosen", "request_id", "seat", "tokens")

    def __init__(self, seat: Seat, request_id: str) -> None:
        self.seat = seat
        self.request_id = request_id
        self.chosen = 0
        """Tokens of the target; 0 where they are nobody's any more."""
        self.tokens: Sequence[int] = ()
        """Those of them that left vLLM's core."""


class Entry(Place):
    """One that decodes."""

    __slots__ = ("cap", "confidence", "kv_tokens", "proposed", "requested", "terms", "verified")

    def __init__(self, seat: Seat, request_id: str, terms: Terms, kv_tokens: int) -> None:
        super().__init__(seat, request_id)
        self.terms = terms
        self.kv_tokens = kv_tokens
        self.cap = 0
        """The longest block that it may have now."""
        self.requested = self.proposed = self.verified = 0
        self.confidence = SILENT


class Step:
    """One step of vLLM, from its opening to its end."""

    __slots__ = (
        "block_length",
        "drafting",
        "entries",
        "first_after_switch",
        "kv_tokens",
        "policy",
        "prefill_tokens",
        "prefilling",
        "rows",
        "started",
        "waiting",
    )

    def __init__(self, policy: CyclePolicy, entries: list[Entry], started: float) -> None:
        self.policy = policy
        self.entries = entries
        self.prefilling: list[Place] = []
        self.started = started
        self.kv_tokens = sum([entry.kv_tokens for entry in entries])
        self.block_length = self.drafting = 0
        """Drafts that it makes for each of so many requests."""
        self.first_after_switch = False
        self.rows = self.prefill_tokens = self.waiting = 0

    def leave_out(self, request_id: str, drafts: int) -> None:
        """So many drafts of a request count as never proposed."""
        for entry in self.entries:
            if entry.request_id == request_id:
                entry.verified -= drafts
                entry.proposed -= drafts
                if entry.proposed == 0:
                    entry.confidence = SILENT

"""A step of vLLM, and who is in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.cycle_policy import CyclePolicy
from policies.types import OTHER_ROUTE, UNDETERMINED, Context, Decision, Reason
from tuner.fleet.vllm.plugin.seat import Seat


class Running(Protocol):
    """vLLM's request, as far as it is read here."""

    request_id: str
    spec_token_ids: list[int]
    num_computed_tokens: int
    is_prefill_chunk: bool
    max_tokens: int

    @property
    def num_output_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Launch:
    """How vLLM was launched."""

    model: str
    drafter: str
    """`PLAIN` without one."""
    block_length: int
    block_lengths: tuple[int, ...]
    """That a step may draft: rising, 0 first."""
    shows_drafts: bool
    """Whether drafts are seen before they are verified: where vLLM schedules asynchronously, only their number is."""

    def level(self, length: int) -> int:
        """The least block length of a step that covers `length`."""
        return next((each for each in self.block_lengths if each >= length), self.block_lengths[-1])

    def decision(self) -> Decision:
        """Of requests that nobody decided about: what vLLM was launched with."""
        return Decision(
            decision_id="",
            context=Context(self.model, OTHER_ROUTE, UNDETERMINED),
            drafter=self.drafter,
            cap=self.block_length,
            forced=True,
            reason=Reason.ENGINE_DEFAULT,
            policy_version=0,
        )


class Entry:
    """One request in one step."""

    __slots__ = (
        "cap",
        "chosen",
        "confidence",
        "forced",
        "kv_tokens",
        "proposed",
        "request_id",
        "requested",
        "seat",
        "tokens",
        "verified",
        "watched",
    )

    def __init__(self, seat: Seat, request_id: str) -> None:
        self.seat = seat
        self.request_id = request_id
        self.cap = 0
        """The longest block that it may have now."""
        self.watched = 0
        """How many drafts to make of which none is verified."""
        self.forced = False
        self.kv_tokens = 0
        self.requested = self.proposed = self.verified = self.confidence = 0
        self.chosen = 0
        """Tokens of the target; 0 where they are nobody's any more."""
        self.tokens: Sequence[int] = ()
        """Those of them that left vLLM's core."""


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
        """Those that decode."""
        self.prefilling: list[Entry] = []
        self.started = started
        self.kv_tokens = sum([entry.kv_tokens for entry in entries])
        self.block_length = self.drafting = 0
        """Drafts that it makes for each of so many requests."""
        self.first_after_switch = False
        self.rows = self.prefill_tokens = self.waiting = 0

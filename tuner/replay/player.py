"""What a controller is to the simulator: ours and every baseline implement `Player`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.replay.trace import Costs, TracedRequest


class Running:
    """One running sequence. The simulator owns all of it but `drafter`, `cap`, `requested`, `verified`, `shadows`,
    `shadow_length`, `copier` and `notes`."""

    __slots__ = (
        "accepted",
        "cap",
        "confidence",
        "copied",
        "copied_confidence",
        "copier",
        "drafter",
        "emitted",
        "index",
        "kv_tokens",
        "notes",
        "output_tokens",
        "position",
        "proposed",
        "request",
        "requested",
        "shadow_length",
        "shadows",
        "verified",
    )

    def __init__(self, index: int, request: TracedRequest) -> None:
        self.index = index
        """Place in the trace; it serves as the request's key."""
        self.request = request
        self.output_tokens = request.output_tokens
        self.position = 0
        """Output tokens so far."""
        self.kv_tokens = request.prompt_tokens + 1
        self.drafter = PLAIN
        self.cap = 0
        """For the player's own use."""
        self.requested = 0
        """Block length asked for in this cycle; the simulator cuts it to what is left of the request less one."""
        self.proposed = 0
        self.confidence = 0
        self.verified = 0
        """Set to `proposed` before `Player.verify`, which may lower it."""
        self.accepted = 0
        self.emitted = 0
        self.shadows: tuple[str, ...] = ()
        """Drafters that propose beside this sequence and are never verified. Only a `WatchingPlayer` may set them; they
        cost what drafting costs. A shadow starts where a block of its drafter would: in the first cycle after its
        last one was decided."""
        self.shadow_length = MAX_BLOCK_LENGTH
        """Block length asked of each of them."""
        self.copier = ""
        """The drafter that proposes before the plan; empty for none. Only a `CopyingPlayer` may set it."""
        self.copied = 0
        """Before `Player.plan`: how many drafts it offers, of as many as could be used. They are verified where the
        plan sets `drafter` to it; else it is a shadow."""
        self.copied_confidence = 0
        self.notes: Any = None
        """Whatever the player keeps for this sequence."""


class Shadowed(NamedTuple):
    """A proposal that was not verified, scored: what `policies.stats.ShadowStats` tells of an engine's. A proposal of
    the sequence's own drafter of which nothing was verified is one as well."""

    one: Running
    drafter: str
    requested: int
    proposed: int
    matched: int
    confidence: int
    censored: bool
    """Always false in a replay: a block never asks for more than what is left of its request less one."""
    emitted: int
    """Tokens that came since it started."""


class Told(NamedTuple):
    """What an engine's `CycleStats` tells beyond the cycle's seconds. All seconds are measured, and parts of the
    cycle's; the rest is the target's pass."""

    draft_seconds: Mapping[str, float]
    """By drafter."""
    shadow_seconds: float
    copying_seconds: float
    """Of copied proposals that were not taken."""
    shadows: Sequence[Shadowed]
    """Those that were decided in this cycle."""


@dataclass(frozen=True, slots=True)
class World:
    """What a controller is told at its start, as an engine tells it after its calibration."""

    drafters: tuple[str, ...]
    """Without `PLAIN`."""
    slots: int
    calibrated: Costs
    """The true costs with the errors that a calibration has."""
    confidence_buckets: Mapping[str, int]
    """Largest confidence bucket of each drafter."""
    seed: int


class Player(Protocol):
    """A controller in a replay. One is made for each run; it may not look at `Running.request.drafts`, which is the
    future, except where its published form is told as much (then its docstring says so)."""

    name: str

    def start(self, world: World, memory: Any) -> None:
        """Before the first request, and again after a restart: `memory` is what `save` gave, or None."""
        ...

    def save(self) -> Any:
        """What a restart with memory gets; None where the published controller keeps nothing."""
        ...

    def admit(self, one: Running, load: int) -> None:
        """A request begins to decode; `load` sequences run, it included."""
        ...

    def plan(self, running: list[Running]) -> None:
        """Before drafting: set `drafter` and `requested` of each sequence."""
        ...

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """After the cycle: `accepted` and `emitted` are set; it took `seconds` as measured, and ended at `now`."""
        ...

    def finish(self, one: Running) -> None:
        """A request has ended."""
        ...


@runtime_checkable
class VerifyingPlayer(Player, Protocol):
    """A controller that may verify less than was proposed; what others propose is verified whole."""

    def verify(self, running: list[Running]) -> None:
        """After drafting: `proposed` and `confidence` are set; lower `verified` where less is to be verified."""
        ...


@runtime_checkable
class WatchingPlayer(Player, Protocol):
    """A controller that is told what an engine's `CycleStats` tells beyond the cycle's seconds."""

    def watch(self, told: Told) -> None:
        """Right before `observe`; the running sequences are as there, and those that end with the cycle are still among
        them."""
        ...


@runtime_checkable
class CopyingPlayer(Player, Protocol):
    """A controller that looks at copied proposals before it plans."""

    def ask(self, running: list[Running]) -> None:
        """Before `plan`: set `copier` of each sequence. All that one drafter is asked in a cycle is one call of it."""
        ...

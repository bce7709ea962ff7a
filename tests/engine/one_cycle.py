"""One cycle over a target whose text is its positions, with drafters that offer what a test gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.cycle import CycleResult, run_cycle
from engine.drafter import Drafter, Proposal
from engine.planning import plan_cycle
from engine.request import RunningSequence
from engine.rows import Rows
from engine.shadowing import due_shadows
from kernels.sampling import Block, Chosen
from policies.cycle_policy import INITIAL_CYCLE_POLICY, CyclePolicy, PassCost
from policies.shadow_room import ShadowRoom
from policies.types import Decision
from tests.engine.scripted import PIECES, decision, submit

FREE = PassCost((1, 32), (1.0, 1.0), 0.0, 0.0)
"""A pass that costs the same whatever is in it: everything that may be accepted is worth verifying."""

UNPROVEN = replace(INITIAL_CYCLE_POLICY, cost=FREE)
"""Drafting costs nothing, so that every drafter is asked; of none is anything known, so that nothing is verified."""


class Counting:
    """A target whose text is 0, 1, 2, ... by output position."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.parts: list[Rows] = []

    def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
        self.blocks, self.parts = blocks, parts
        chosen = []
        for block in blocks:
            kept = 0
            while kept < len(block.drafts) and block.drafts[kept] == block.position + kept:
                kept += 1
            chosen.append(Chosen(tuple(block.position + place for place in range(kept + 1))))
        return chosen


class Offering:
    """A drafter that offers what it was given."""

    def __init__(self, *proposals: Proposal) -> None:
        self.name = "ngram"
        self.memory_bytes = 0
        self.context_limit: int | None = None
        self._proposals = list(proposals)
        self.asked: list[int] = []
        self.observed: list[tuple[int, tuple[int, ...]]] = []

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        self.asked.extend(lengths)
        return [self._proposals.pop(0) for _ in sequences]

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        assert sequence.tokens[-len(emitted) :] == list(emitted)
        self.observed.append((sequence.key, tuple(emitted)))

    def release(self, request_key: int) -> None:
        """Nothing is kept."""


def running(
    chosen: Decision | None = None, *, key: int = 1, max_tokens: int = 100, stop_token_ids: tuple[int, ...] = ()
) -> RunningSequence:
    """A sequence that has emitted token 0, in the block of its key."""
    message = submit(
        key, (50, 51), max_tokens=max_tokens, stop_token_ids=stop_token_ids, chosen=chosen or decision("ngram", 8)
    )
    sequence = RunningSequence(message, 1000)
    sequence.blocks = [key]
    sequence.append([0], list(PIECES))
    return sequence


def cycle(
    sequences: Sequence[RunningSequence], *proposals: Proposal, policy: CyclePolicy = INITIAL_CYCLE_POLICY
) -> tuple[CycleResult, Counting, Offering]:
    """A cycle with one drafter, ``ngram``."""
    drafter = Offering(*proposals)
    result, target = cycle_with({"ngram": drafter}, sequences, policy=policy)
    return result, target, drafter


def cycle_with(
    drafters: Mapping[str, Drafter], sequences: Sequence[RunningSequence], policy: CyclePolicy = INITIAL_CYCLE_POLICY
) -> tuple[CycleResult, Counting]:
    """A cycle as the loop runs it, but for blocks, which are the sequences' own."""
    target = Counting()
    planned = plan_cycle(drafters, sequences, policy)
    room = ShadowRoom(policy, planned.spare_seconds)
    due = [
        due_shadows(one, planned.asked(one, length), drafters, policy, room)
        for one, length in zip(sequences, planned.requested, strict=True)
    ]
    result = run_cycle(target, drafters, sequences, planned.requested, policy, list(PIECES), due, planned)
    return result, target

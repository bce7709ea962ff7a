"""One cycle: draft, allocate, verify, commit, over all decoding sequences.

The cycle policy is read once. It may only lower what a request's decision allows: a kill switch or a plain window is
in force in the cycle that sees it first.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.drafter import SILENT, Drafter, Proposal
from engine.request import RunningSequence, Shadow
from kernels.sampling import Block
from policies.allocate import Candidate, allocate
from policies.types import (
    MAX_BLOCK_LENGTH,
    PLAIN,
    BlockEnd,
    CyclePolicy,
    FinishReason,
    SequenceStats,
    ShadowStats,
)


class Target(Protocol):
    """The target as a cycle sees it: rows in, chosen tokens out."""

    def verify(
        self, token_ids: list[int], slots: list[int], positions: list[int], blocks: list[Block]
    ) -> list[list[int]]:
        """Run one pass over the rows and return each block's emitted tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Emission:
    """What one sequence emitted in a cycle, and its end if it ended."""

    sequence: RunningSequence
    token_ids: tuple[int, ...]
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What a cycle did; `engine.loop` turns it into messages."""

    emissions: tuple[Emission, ...]
    sequences: tuple[SequenceStats, ...]
    shadows: tuple[ShadowStats, ...]
    tokens: int
    kv_tokens: int
    draft_seconds: Mapping[str, float]
    verify_seconds: float
    cycle_seconds: float


def run_cycle(
    target: Target,
    drafters: Mapping[str, Drafter],
    sequences: Sequence[RunningSequence],
    policy: CyclePolicy,
    token_bytes: list[bytes],
) -> CycleResult:
    """Advance every sequence in `sequences` by at least one token.

    `sequences` are decoding, in rising order of slot. Their state is changed; nothing else is.
    """
    started = time.perf_counter()
    requested = [_block_length(sequence, policy) for sequence in sequences]
    proposals, draft_seconds = _draft(drafters, sequences, requested)
    kv_tokens = sum(len(sequence.tokens) for sequence in sequences)
    lengths = _allocate(sequences, proposals, policy, kv_tokens)

    token_ids: list[int] = []
    slots: list[int] = []
    positions: list[int] = []
    blocks: list[Block] = []
    for sequence, proposal, length in zip(sequences, proposals, lengths, strict=True):
        drafts = proposal.tokens[:length]
        last = len(sequence.tokens) - 1
        blocks.append(
            Block(
                first_row=len(token_ids),
                drafts=drafts,
                sampling=sequence.sampling,
                position=sequence.output_length,
                prompt_tokens=sequence.prompt_tokens,
                output_counts=sequence.output_counts,
            )
        )
        token_ids.append(sequence.tokens[last])
        token_ids.extend(drafts)
        slots.extend([sequence.slot] * (length + 1))
        positions.extend(range(last, last + length + 1))
    verify_started = time.perf_counter()
    chosen = target.verify(token_ids, slots, positions, blocks)
    verify_seconds = time.perf_counter() - verify_started

    emissions: list[Emission] = []
    stats: list[SequenceStats] = []
    shadows: list[ShadowStats] = []
    total_draft_seconds = sum(draft_seconds.values())
    for sequence, proposal, asked, length, tokens in zip(sequences, proposals, requested, lengths, chosen, strict=True):
        accepted = len(tokens) - 1
        if sequence.shadow is None and length == 0 and proposal.tokens:
            sequence.shadow = Shadow(proposal.tokens, asked, proposal.confidence, sequence.decision.drafter)
        emitted, finish = sequence.append(tokens, token_bytes)
        shadow = _advance_shadow(sequence, tokens[:emitted], finish is not None)
        if shadow is not None:
            shadows.append(shadow)
        end = _block_end(length, accepted, emitted, len(tokens))
        # Inside a block that was cut, only the drafts before the cut were seen to be accepted.
        accepted = min(accepted, emitted)
        sequence.proposed += len(proposal.tokens)
        sequence.draft_seconds += total_draft_seconds / len(sequences)
        sequence.verify_seconds += verify_seconds / len(sequences)
        sequence.count_block(length, accepted, end)
        emissions.append(Emission(sequence, tuple(tokens[:emitted]), finish))
        stats.append(
            SequenceStats(
                request_key=sequence.key,
                context=sequence.decision.context,
                drafter=sequence.decision.drafter,
                requested=asked,
                proposed=len(proposal.tokens),
                verified=length,
                accepted=accepted,
                emitted=emitted,
                confidence=proposal.confidence,
                end=end,
            )
        )
    return CycleResult(
        emissions=tuple(emissions),
        sequences=tuple(stats),
        shadows=tuple(shadows),
        tokens=len(token_ids),
        kv_tokens=kv_tokens,
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        cycle_seconds=time.perf_counter() - started,
    )


def _block_length(sequence: RunningSequence, policy: CyclePolicy) -> int:
    """The block length that may be asked for in this cycle: a block of K emits up to K + 1 tokens."""
    decision = sequence.decision
    if policy.kill or policy.window.plain or decision.context.route in policy.killed_routes:
        return 0
    if decision.drafter == PLAIN:
        return 0
    return max(0, min(decision.cap, MAX_BLOCK_LENGTH, sequence.remaining - 1))


def _draft(
    drafters: Mapping[str, Drafter], sequences: Sequence[RunningSequence], requested: Sequence[int]
) -> tuple[list[Proposal], dict[str, float]]:
    """Each drafter proposes for its sequences in one call; seconds by drafter."""
    proposals = [SILENT] * len(sequences)
    seconds: dict[str, float] = {}
    wanted: dict[str, list[int]] = {}
    for index, (sequence, length) in enumerate(zip(sequences, requested, strict=True)):
        if length > 0:
            wanted.setdefault(sequence.decision.drafter, []).append(index)
    for name, indices in wanted.items():
        started = time.perf_counter()
        drafted = drafters[name].propose([sequences[i] for i in indices], [requested[i] for i in indices])
        for index, proposal in zip(indices, drafted, strict=True):
            proposals[index] = proposal
        seconds[name] = time.perf_counter() - started
    return proposals, seconds


def _allocate(
    sequences: Sequence[RunningSequence], proposals: Sequence[Proposal], policy: CyclePolicy, kv_tokens: int
) -> tuple[int, ...]:
    if not any(proposal.tokens for proposal in proposals):
        return (0,) * len(sequences)
    candidates = []
    for sequence, proposal in zip(sequences, proposals, strict=True):
        decision = sequence.decision
        survival = policy.survivals.get((decision.drafter, decision.context.route, decision.context.language))
        if survival is None:
            survival = policy.default_survivals.get(decision.drafter)
        curve = survival.of(proposal.confidence) if survival is not None and proposal.tokens else ()
        # The first output token came from the prompt's pass: it stands for one plain cycle that everybody starts with.
        mean_emitted = sequence.output_length / (sequence.cycles + 1)
        candidates.append(Candidate(len(proposal.tokens), curve, decision.forced, mean_emitted))
    return allocate(candidates, policy.cost, kv_tokens, policy.margin, policy.max_neighbour_slowdown)


def _block_end(verified: int, accepted: int, emitted: int, chosen: int) -> BlockEnd:
    if verified == 0:
        return BlockEnd.PLAIN
    if emitted < chosen:
        return BlockEnd.CENSORED
    return BlockEnd.FULL if accepted == verified else BlockEnd.REJECTED


def _advance_shadow(sequence: RunningSequence, emitted: Sequence[int], ended: bool) -> ShadowStats | None:
    """Compare the shadow with `emitted`; a value when it is decided.

    A block that is kept whole also emits its bonus token before the next block starts. The shadow waits for that
    token, so that shadows start where blocks would.
    """
    shadow = sequence.shadow
    if shadow is None:
        return None
    decided = False
    for token in emitted:
        if shadow.matched < len(shadow.tokens) and token == shadow.tokens[shadow.matched]:
            shadow.matched += 1
            continue
        decided = True
        break
    if not (decided or ended):
        return None
    sequence.shadow = None
    return ShadowStats(
        request_key=sequence.key,
        context=sequence.decision.context,
        drafter=shadow.drafter,
        requested=shadow.requested,
        proposed=len(shadow.tokens),
        matched=shadow.matched,
        confidence=shadow.confidence,
        censored=not decided,
    )

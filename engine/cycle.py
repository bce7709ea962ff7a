"""One cycle, once it is planned: draft, allocate, verify, commit, over all decoding sequences.

It reads the cycle policy that it was planned with (`engine.planning`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.drafter import SILENT, Drafter, Proposal
from engine.drafting import Drafted, draft, startup_tokens
from engine.faults import FAULT, NO_CHOICE, log_fault
from engine.grammar import GrammarError
from engine.planning import NO_PLAN, CyclePlan
from engine.request import RunningSequence
from engine.rows import Rows
from engine.shadowing import advance_shadows, cast_shadow, start_shadows
from engine.waiting import left_copies, settle_cycle, weighed_seconds
from kernels.sampling import Block, Chosen, Failure, TokenLogprob
from policies.allocate import Candidate, allocate
from policies.cycle_policy import CyclePolicy
from policies.ledger import NOTHING, Own, cycle_spare, lifts
from policies.stats import BlockEnd, FinishReason, SequenceStats, ShadowStats


class Target(Protocol):
    """The target as a cycle sees it: rows in, chosen tokens out."""

    def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
        """Run one pass over the rows and return what each block emits.

        No tokens for a block from whose first row nothing can be chosen.
        """
        ...


@dataclass(frozen=True, slots=True)
class Emission:
    """What one sequence emitted in a cycle, and its end if it ended."""

    sequence: RunningSequence
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What a cycle did; `engine.loop` turns it into messages."""

    emissions: tuple[Emission, ...]
    failed: tuple[RunningSequence, ...]
    """Their `failure` says why. They emitted nothing and are in no count."""
    sequences: tuple[SequenceStats, ...]
    shadows: tuple[ShadowStats, ...]
    tokens: int
    kv_tokens: int
    draft_seconds: Mapping[str, float]
    startup_tokens: Mapping[str, int]
    verify_seconds: float
    shadow_seconds: float
    copying_seconds: float
    cycle_seconds: float
    predicted_seconds: float
    """The same by the cost model; 0 without one."""


def run_cycle(
    target: Target,
    drafters: Mapping[str, Drafter],
    sequences: Sequence[RunningSequence],
    requested: Sequence[int],
    policy: CyclePolicy,
    token_bytes: list[bytes],
    shadows_due: Sequence[Mapping[str, int]] = (),
    planned: CyclePlan = NO_PLAN,
) -> CycleResult:
    """Advance every sequence in `sequences` by at least one token, or find that it cannot go on.

    `requested` are their block lengths, which their block tables cover: the plan's, or less where blocks were short;
    `shadows_due`, one for each sequence or empty, the drafters that are to propose beside it. Their state is changed;
    nothing else is.
    """
    started = time.perf_counter()
    drafted, draft_seconds = draft(drafters, sequences, requested, planned.copies)
    shadow_seconds = start_shadows(drafters, sequences, shadows_due) if shadows_due else 0.0
    for sequence in sequences:
        left = planned.copies.left(sequence)
        if left is not None:
            cast_shadow(sequence, left.drafter, left.proposal, left.requested)
    copying, copying_seconds = planned.copies.split_seconds()
    for name, seconds in copying.items():
        draft_seconds[name] = draft_seconds.get(name, 0.0) + seconds
    kv_tokens = sum(len(sequence.tokens) for sequence in sequences)
    untaken = left_copies(sequences, planned.copies)
    spent = weighed_seconds(sequences, drafted, untaken, policy) + shadow_seconds
    lengths = _allocate(sequences, drafted, requested, policy, kv_tokens, planned.rate, spent, planned.trust)

    parts: list[Rows] = []
    blocks: list[Block] = []
    first_row = 0
    for sequence, one, length in zip(sequences, drafted, lengths, strict=True):
        drafts = one.proposal.tokens[:length]
        parts.append(
            Rows((sequence.tokens[-1], *drafts), len(sequence.tokens) - 1, sequence.blocks, logit_count=length + 1)
        )
        blocks.append(next_block(sequence, first_row, drafts, one.proposal))
        first_row += length + 1
    verify_started = time.perf_counter()
    chosen = _verify(target, sequences, parts, blocks)
    verify_seconds = time.perf_counter() - verify_started

    emissions: list[Emission] = []
    failed: list[RunningSequence] = []
    stats: list[SequenceStats] = []
    shadows: list[ShadowStats] = []
    emitted_by: list[int] = []
    total_draft_seconds = sum(draft_seconds.values()) + copying_seconds
    for sequence, one, length, choice in zip(sequences, drafted, lengths, chosen, strict=True):
        tokens = choice.tokens
        if not tokens or sequence.failure is not None:
            sequence.failure = sequence.failure or choice.failure or NO_CHOICE
            failed.append(sequence)
            emitted_by.append(0)
            continue
        accepted = len(tokens) - 1
        proposal = one.proposal
        if length == 0 and proposal.tokens:
            cast_shadow(sequence, one.drafter, proposal, one.requested)
        emitted, finish = sequence.append(tokens, token_bytes)
        shadows += advance_shadows(sequence, tokens[:emitted], finish is not None)
        emitted_by.append(emitted)
        end = _block_end(length, accepted, emitted, len(tokens))
        # Inside a block that was cut, only the drafts before the cut were seen to be accepted.
        accepted = min(accepted, emitted)
        sequence.proposed += len(proposal.tokens)
        sequence.draft_seconds += total_draft_seconds / len(sequences)
        sequence.verify_seconds += verify_seconds / len(sequences)
        sequence.count_block(length, accepted, end)
        emissions.append(Emission(sequence, tokens[:emitted], choice.logprobs[:emitted], finish))
        stats.append(
            SequenceStats(
                request_key=sequence.key,
                context=sequence.decision.context,
                drafter=one.drafter,
                requested=one.requested,
                proposed=len(proposal.tokens),
                verified=length,
                accepted=accepted,
                emitted=emitted,
                confidence=proposal.confidence,
                end=end,
                forced=sequence.decision.forced,
            )
        )
    predicted = settle_cycle(sequences, drafted, emitted_by, lengths, untaken, shadow_seconds, policy, kv_tokens)
    for drafter in drafters.values():
        for emission in emissions:
            drafter.observe(emission.sequence, emission.token_ids)
    return CycleResult(
        emissions=tuple(emissions),
        failed=tuple(failed),
        sequences=tuple(stats),
        shadows=tuple(shadows),
        tokens=sum(sequence.verified + 1 for sequence in stats),
        kv_tokens=kv_tokens,
        draft_seconds=draft_seconds,
        startup_tokens=startup_tokens(drafted),
        verify_seconds=verify_seconds,
        shadow_seconds=shadow_seconds,
        copying_seconds=copying_seconds,
        cycle_seconds=planned.seconds + time.perf_counter() - started,
        predicted_seconds=predicted,
    )


def next_block(
    sequence: RunningSequence, first_row: int = 0, drafts: tuple[int, ...] = (), proposal: Proposal = SILENT
) -> Block:
    """The block that follows the sequence's text, with the first `drafts` of a proposal.

    Where the sequence's grammar cannot be followed any further, its `failure` says so.
    """
    sampling = sequence.sampling
    masks = None
    if sequence.matcher is not None:
        try:
            masks = sequence.matcher.masks(drafts)
        except GrammarError as error:
            sequence.failure = Failure(str(error), fault=False)
    return Block(
        first_row=first_row,
        drafts=drafts,
        sampling=sampling,
        position=sequence.output_length,
        prompt_tokens=sequence.prompt_tokens,
        output_counts=sequence.output_counts,
        tail=tuple(sequence.tokens[-sampling.tail_length :]) if sampling.tail_length else (),
        masks=masks,
        draft_probs=proposal.draft_probs[: len(drafts)] if proposal.draft_probs is not None else None,
        top_logprobs=sequence.top_logprobs,
    )


def _verify(
    target: Target, sequences: Sequence[RunningSequence], parts: list[Rows], blocks: list[Block]
) -> list[Chosen]:
    """What each block emits; nothing for a sequence whose own rows make the pass fail."""
    try:
        return target.verify(parts, blocks)
    except Exception as error:  # noqa: BLE001 - logged; the sequences that have no part in it go on
        log_fault(f"a pass over {len(parts)} sequences, each of which is now run alone,", error)
    chosen = []
    for sequence, part, block in zip(sequences, parts, blocks, strict=True):
        try:
            # The rows write what the first pass wrote, or was to write.
            chosen += target.verify([part], [replace(block, first_row=0)])
        except Exception as error:  # noqa: BLE001 - logged; the client of this sequence is told
            log_fault(f"sequence {sequence.key}", error)
            sequence.failure = FAULT
            chosen.append(Chosen(()))
    return chosen


def _allocate(
    sequences: Sequence[RunningSequence],
    drafted: Sequence[Drafted],
    room: Sequence[int],
    policy: CyclePolicy,
    kv_tokens: int,
    rate: float,
    draft_seconds: float,
    trust: float,
) -> tuple[int, ...]:
    """How many drafts of each are verified; `room` is what their block tables cover."""
    if not any(one.proposal.tokens for one in drafted):
        return (0,) * len(sequences)
    waiting = [
        (
            sequence.ledger,
            Own(one.drafter, len(one.proposal.tokens), min(len(one.proposal.tokens), most))
            if one.requested and not sequence.decision.forced
            else NOTHING,
        )
        for sequence, one, most in zip(sequences, drafted, room, strict=True)
    ]
    lifted = lifts([sequence.ledger for sequence in sequences], policy, kv_tokens, trust)
    candidates = []
    for sequence, one, most, lift in zip(sequences, drafted, room, lifted, strict=True):
        decision = sequence.decision
        curve = one.survival
        if curve is None:
            curve = ()
            survival = policy.survivals.get((decision.drafter, decision.context.route, decision.context.language))
            if survival is None:
                survival = policy.default_survivals.get(decision.drafter)
            if survival is not None and one.proposal.tokens:
                curve = survival.of(one.proposal.confidence)
        candidate = Candidate(
            proposed=min(len(one.proposal.tokens), most),
            survival=curve,
            forced=decision.forced,
            tpot_limit=policy.tpot_limits.get(decision.context.route),
        )
        candidates.append(candidate.lifted(lift))
    return allocate(
        candidates,
        policy.cost,
        kv_tokens,
        policy.margin,
        cycle_spare(waiting, policy, kv_tokens, trust),
        rate=rate,
        draft_seconds=draft_seconds,
    )


def _block_end(verified: int, accepted: int, emitted: int, chosen: int) -> BlockEnd:
    if verified == 0:
        return BlockEnd.PLAIN
    if emitted < chosen:
        return BlockEnd.CENSORED
    return BlockEnd.FULL if accepted == verified else BlockEnd.REJECTED

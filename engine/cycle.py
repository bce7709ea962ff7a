"""One cycle: plan, draft, allocate, verify, commit, over all decoding sequences.

The cycle policy is read once. It may only lower what a request's decision allows: a kill switch or a plain window is
in force in the cycle that sees it first.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.drafter import SILENT, Drafter, Proposal, proposals_of
from engine.faults import FAULT, NO_CHOICE, log_fault
from engine.grammar import GrammarError
from engine.request import RunningSequence
from engine.rows import Rows
from engine.shadowing import advance_shadows, cast_shadow, start_shadows
from engine.slack import draft_price, settle, slack_seconds
from kernels.sampling import Block, Chosen, Failure, TokenLogprob
from policies.allocate import Candidate, allocate
from policies.cycle_policy import CyclePolicy, Outlook
from policies.plan import Plan, Prospect, plan
from policies.stats import BlockEnd, FinishReason, SequenceStats, ShadowStats
from policies.types import MAX_BLOCK_LENGTH


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
    cycle_seconds: float


UNKNOWN = Outlook((), ())
"""Of a drafter of which nothing has been learned yet."""


def block_length(sequence: RunningSequence, policy: CyclePolicy) -> int:
    """The block length that may be asked for in this cycle: a block of K emits up to K + 1 tokens."""
    decision = sequence.decision
    if policy.plain_on(decision.context.route) or (policy.hold and not decision.forced):
        return 0
    return max(0, min(sequence.block_length, sequence.remaining - 1))


def plan_cycle(sequences: Sequence[RunningSequence], policy: CyclePolicy) -> Plan:
    """The block length to ask of each sequence's drafter: drafting that is not expected to pay is not even asked."""
    caps = tuple(block_length(sequence, policy) for sequence in sequences)
    if all(cap == 0 or sequence.decision.forced for cap, sequence in zip(caps, sequences, strict=True)):
        return Plan(caps, 0.0)
    prospects = []
    for sequence, cap in zip(sequences, caps, strict=True):
        decision = sequence.decision
        context = decision.context
        outlook = policy.outlooks.get((decision.drafter, context.route, context.language))
        prospects.append(
            Prospect(
                drafter=decision.drafter,
                outlook=outlook or policy.default_outlooks.get(decision.drafter, UNKNOWN),
                cap=cap,
                forced=decision.forced,
                slack_seconds=slack_seconds(sequence, policy.cost),
                tpot_limit=policy.tpot_limits.get(context.route),
            )
        )
    kv_tokens = sum(len(sequence.tokens) for sequence in sequences)
    return plan(prospects, policy.cost, policy.draft_costs, kv_tokens, policy.margin, policy.max_neighbour_slowdown)


def run_cycle(
    target: Target,
    drafters: Mapping[str, Drafter],
    sequences: Sequence[RunningSequence],
    requested: Sequence[int],
    policy: CyclePolicy,
    token_bytes: list[bytes],
    shadows_due: Sequence[Sequence[str]] = (),
    rate: float = 0.0,
) -> CycleResult:
    """Advance every sequence in `sequences` by at least one token, or find that it cannot go on.

    `requested` are their block lengths, which their block tables cover; `shadows_due`, one for each sequence or empty,
    the drafters that are to propose beside it; `rate` is the plan's. Their state is changed; nothing else is.
    """
    started = time.perf_counter()
    for sequence in sequences:
        sequence.knobs = policy.knobs_of(sequence.decision.context.route)
    proposals, draft_seconds = _draft(drafters, sequences, requested)
    shadow_seconds, shadow_passes = start_shadows(drafters, sequences, shadows_due) if shadows_due else (0.0, [])
    kv_tokens = sum(len(sequence.tokens) for sequence in sequences)
    drafting = draft_price(sequences, requested, proposals, shadow_passes, policy)
    lengths = _allocate(sequences, proposals, policy, kv_tokens, rate, drafting.weighed)

    parts: list[Rows] = []
    blocks: list[Block] = []
    first_row = 0
    for sequence, proposal, length in zip(sequences, proposals, lengths, strict=True):
        drafts = proposal.tokens[:length]
        parts.append(
            Rows((sequence.tokens[-1], *drafts), len(sequence.tokens) - 1, sequence.blocks, logit_count=length + 1)
        )
        blocks.append(next_block(sequence, first_row, drafts, proposal))
        first_row += length + 1
    verify_started = time.perf_counter()
    chosen = _verify(target, sequences, parts, blocks)
    verify_seconds = time.perf_counter() - verify_started

    emissions: list[Emission] = []
    failed: list[RunningSequence] = []
    stats: list[SequenceStats] = []
    shadows: list[ShadowStats] = []
    emitted_by: list[int] = []
    total_draft_seconds = sum(draft_seconds.values())
    for sequence, proposal, asked, length, choice in zip(sequences, proposals, requested, lengths, chosen, strict=True):
        tokens = choice.tokens
        if not tokens or sequence.failure is not None:
            sequence.failure = sequence.failure or choice.failure or NO_CHOICE
            failed.append(sequence)
            emitted_by.append(0)
            continue
        accepted = len(tokens) - 1
        if length == 0 and proposal.tokens:
            cast_shadow(sequence, sequence.decision.drafter, proposal, asked)
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
    settle(sequences, emitted_by, lengths, drafting, policy, kv_tokens)
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
        startup_tokens=_startup_tokens(sequences, requested, proposals),
        verify_seconds=verify_seconds,
        shadow_seconds=shadow_seconds,
        cycle_seconds=time.perf_counter() - started,
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
        drafted = proposals_of(drafters[name], [sequences[i] for i in indices], [requested[i] for i in indices])
        for index, proposal in zip(indices, drafted, strict=True):
            proposals[index] = proposal
        seconds[name] = time.perf_counter() - started
    return proposals, seconds


def _startup_tokens(
    sequences: Sequence[RunningSequence], requested: Sequence[int], proposals: Sequence[Proposal]
) -> dict[str, int]:
    """What drafters read that is more than a cycle can have added to a text."""
    tokens: dict[str, int] = {}
    for sequence, asked, proposal in zip(sequences, requested, proposals, strict=True):
        if asked and proposal.read > MAX_BLOCK_LENGTH + 1:
            name = sequence.decision.drafter
            tokens[name] = tokens.get(name, 0) + proposal.read
    return tokens


def _allocate(
    sequences: Sequence[RunningSequence],
    proposals: Sequence[Proposal],
    policy: CyclePolicy,
    kv_tokens: int,
    rate: float,
    draft_seconds: float,
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
        candidates.append(
            Candidate(
                proposed=len(proposal.tokens),
                survival=curve,
                forced=decision.forced,
                slack_seconds=slack_seconds(sequence, policy.cost),
                tpot_limit=policy.tpot_limits.get(decision.context.route),
            )
        )
    return allocate(
        candidates,
        policy.cost,
        kv_tokens,
        policy.margin,
        policy.max_neighbour_slowdown,
        rate=rate,
        draft_seconds=draft_seconds,
    )


def _block_end(verified: int, accepted: int, emitted: int, chosen: int) -> BlockEnd:
    if verified == 0:
        return BlockEnd.PLAIN
    if emitted < chosen:
        return BlockEnd.CENSORED
    return BlockEnd.FULL if accepted == verified else BlockEnd.REJECTED

"""One cycle: draft, allocate, verify, commit, over all decoding sequences.

The cycle policy is read once. It may only lower what a request's decision allows: a kill switch or a plain window is
in force in the cycle that sees it first.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.drafter import SILENT, Drafter, Proposal
from engine.faults import FAULT, NO_CHOICE, log_fault
from engine.grammar import GrammarError
from engine.request import RunningSequence, Shadow
from engine.rows import Rows
from kernels.sampling import Block, Chosen, Failure, TokenLogprob, Verifier
from policies.allocate import Candidate, allocate
from policies.cycle_policy import CyclePolicy
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
    verify_seconds: float
    cycle_seconds: float


def block_length(sequence: RunningSequence, policy: CyclePolicy) -> int:
    """The block length that may be asked for in this cycle: a block of K emits up to K + 1 tokens."""
    if policy.kill or policy.window.plain or sequence.decision.context.route in policy.killed_routes:
        return 0
    return max(0, min(sequence.block_length, sequence.remaining - 1))


def run_cycle(
    target: Target,
    drafters: Mapping[str, Drafter],
    sequences: Sequence[RunningSequence],
    requested: Sequence[int],
    policy: CyclePolicy,
    token_bytes: list[bytes],
) -> CycleResult:
    """Advance every sequence in `sequences` by at least one token, or find that it cannot go on.

    `requested` are their block lengths, which their block tables cover. Their state is changed; nothing else is.
    """
    started = time.perf_counter()
    for sequence in sequences:
        sequence.knobs = policy.knobs_of(sequence.decision.context.route)
    proposals, draft_seconds = _draft(drafters, sequences, requested)
    proposals = [_permitted(sequence, proposal) for sequence, proposal in zip(sequences, proposals, strict=True)]
    kv_tokens = sum(len(sequence.tokens) for sequence in sequences)
    lengths = _allocate(sequences, proposals, policy, kv_tokens)

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
    total_draft_seconds = sum(draft_seconds.values())
    for sequence, proposal, asked, length, choice in zip(sequences, proposals, requested, lengths, chosen, strict=True):
        tokens = choice.tokens
        if not tokens or sequence.failure is not None:
            sequence.failure = sequence.failure or choice.failure or NO_CHOICE
            failed.append(sequence)
            continue
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
        verify_seconds=verify_seconds,
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


def _permitted(sequence: RunningSequence, proposal: Proposal) -> Proposal:
    """What the sequence's grammar leaves of a proposal.

    The rest counts as not proposed: no cap of ours has cut it. Under rejection and block verification a draft stays
    whatever its value, and its row rejects it.
    """
    if sequence.matcher is None or not proposal.tokens or sequence.sampling.verifier is not Verifier.COUPLED:
        return proposal
    kept = sequence.matcher.permitted(proposal.tokens)
    if kept == 0:
        return SILENT
    probs = proposal.draft_probs
    return replace(proposal, tokens=proposal.tokens[:kept], draft_probs=probs[:kept] if probs is not None else None)


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
    """Each drafter proposes for its sequences in one call; seconds by drafter. One that fails has nothing to offer."""
    proposals = [SILENT] * len(sequences)
    seconds: dict[str, float] = {}
    wanted: dict[str, list[int]] = {}
    for index, (sequence, length) in enumerate(zip(sequences, requested, strict=True)):
        if length > 0:
            wanted.setdefault(sequence.decision.drafter, []).append(index)
    for name, indices in wanted.items():
        started = time.perf_counter()
        try:
            drafted = drafters[name].propose([sequences[i] for i in indices], [requested[i] for i in indices])
        except Exception as error:  # noqa: BLE001 - logged; the text needs no drafts
            log_fault(f"drafting with {name} for {len(indices)} sequences", error)
            drafted = [SILENT] * len(indices)
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

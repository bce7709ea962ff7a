"""Telemetry added up within a stretch of time, as the rows that the store keeps."""

from collections import Counter
from dataclasses import dataclass, field

from policies.records import RequestWindow, TelemetryWindow
from policies.stats import CycleStats, FinishReason, RequestStats
from policies.types import Context
from tuner.metric_table import LENGTH_BUCKETS, LONGEST_BUCKET

Block = tuple[int, int, int, int, str]
"""(requested, proposed, verified, accepted, how it ended)."""


def output_length_bucket(output_tokens: int) -> str:
    """The label of a request's output length, from the table that the metrics use."""
    return next((label for largest, label in LENGTH_BUCKETS if output_tokens <= largest), LONGEST_BUCKET)


@dataclass(slots=True)
class _CycleSums:
    cycles: int = 0
    load_sum: int = 0
    emitted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    blocks: Counter[Block] = field(default_factory=Counter)


@dataclass(slots=True)
class _RequestSums:
    requests: int = 0
    cancelled: int = 0
    errors: int = 0
    looped: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    queue_seconds: float = 0.0
    ttft_seconds: float = 0.0
    ttft_requests: int = 0
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    cycles: int = 0
    proposed: int = 0
    verified: int = 0
    accepted: int = 0
    rejected_at: Counter[int] = field(default_factory=Counter)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0


class WindowCounts:
    """Sums since the last `close`. Not safe for several threads: its owner holds a lock."""

    def __init__(self, writer: str) -> None:
        """`writer` names this process in the rows."""
        self._writer = writer
        self._cycles: dict[tuple[Context, str, bool], _CycleSums] = {}
        self._requests: dict[tuple[Context, str, str], _RequestSums] = {}

    def add_cycle(self, stats: CycleStats) -> None:
        """Add one cycle to the sums of its sequences' contexts and drafters."""
        drafting = Counter(sequence.drafter for sequence in stats.sequences)
        seen: set[tuple[Context, str, bool]] = set()
        for sequence in stats.sequences:
            key = (sequence.context, sequence.drafter, stats.window.plain)
            sums = self._cycles.setdefault(key, _CycleSums())
            if key not in seen:
                seen.add(key)
                sums.cycles += 1
                sums.load_sum += stats.load
            sums.emitted += sequence.emitted
            sums.draft_seconds += stats.draft_seconds.get(sequence.drafter, 0.0) / drafting[sequence.drafter]
            sums.verify_seconds += stats.verify_seconds / len(stats.sequences)
            block = (sequence.requested, sequence.proposed, sequence.verified, sequence.accepted, sequence.end.value)
            sums.blocks[block] += 1

    def add_request(self, stats: RequestStats) -> None:
        """Add one finished request."""
        decision = stats.decision
        key = (decision.context, decision.drafter, output_length_bucket(stats.output_tokens))
        sums = self._requests.setdefault(key, _RequestSums())
        sums.requests += 1
        sums.cancelled += stats.finish is FinishReason.CANCELLED
        sums.errors += stats.finish is FinishReason.ERROR
        sums.looped += stats.looped
        sums.prompt_tokens += stats.features.prompt_tokens
        sums.output_tokens += stats.output_tokens
        sums.queue_seconds += stats.queue_seconds
        if stats.output_tokens:
            sums.ttft_seconds += stats.ttft_seconds
            sums.ttft_requests += 1
            sums.decode_seconds += stats.decode_seconds
            sums.decode_tokens += stats.output_tokens - 1
        sums.cycles += stats.cycles
        sums.proposed += stats.proposed
        sums.verified += stats.verified
        sums.accepted += stats.accepted
        sums.rejected_at.update(dict(enumerate(stats.rejected_at, start=1)))
        sums.draft_seconds += stats.draft_seconds
        sums.verify_seconds += stats.verify_seconds

    def close(self, started_at: float, ended_at: float) -> list[TelemetryWindow | RequestWindow]:
        """The sums as rows, and start again from nothing."""
        rows: list[TelemetryWindow | RequestWindow] = []
        for (context, drafter, plain), sums in self._cycles.items():
            rows.append(
                TelemetryWindow(
                    writer=self._writer,
                    started_at=started_at,
                    ended_at=ended_at,
                    context=context,
                    drafter=drafter,
                    plain=plain,
                    cycles=sums.cycles,
                    load_sum=sums.load_sum,
                    requested=sum(block[0] * count for block, count in sums.blocks.items()),
                    proposed=sum(block[1] * count for block, count in sums.blocks.items()),
                    verified=sum(block[2] * count for block, count in sums.blocks.items()),
                    accepted=sum(block[3] * count for block, count in sums.blocks.items()),
                    emitted=sums.emitted,
                    draft_seconds=sums.draft_seconds,
                    verify_seconds=sums.verify_seconds,
                    blocks=tuple((*block, count) for block, count in sorted(sums.blocks.items())),
                )
            )
        for (context, drafter, output_length), total in self._requests.items():
            rows.append(
                RequestWindow(
                    writer=self._writer,
                    started_at=started_at,
                    ended_at=ended_at,
                    context=context,
                    drafter=drafter,
                    output_length=output_length,
                    requests=total.requests,
                    cancelled=total.cancelled,
                    errors=total.errors,
                    looped=total.looped,
                    prompt_tokens=total.prompt_tokens,
                    output_tokens=total.output_tokens,
                    queue_seconds=total.queue_seconds,
                    ttft_seconds=total.ttft_seconds,
                    ttft_requests=total.ttft_requests,
                    decode_seconds=total.decode_seconds,
                    decode_tokens=total.decode_tokens,
                    cycles=total.cycles,
                    proposed=total.proposed,
                    verified=total.verified,
                    accepted=total.accepted,
                    rejected_at=tuple(total.rejected_at[j] for j in range(1, max(total.rejected_at, default=0) + 1)),
                    draft_seconds=total.draft_seconds,
                    verify_seconds=total.verify_seconds,
                )
            )
        self._cycles = {}
        self._requests = {}
        return rows

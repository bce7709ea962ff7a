"""The log of what is served: a line for every ten seconds in which something ran."""

import asyncio
import threading
import time
from dataclasses import dataclass

from rich.console import Console

from engine.process import EngineGoneError
from policies import EngineStatus
from policies.stats import CycleStats, FinishReason, RequestStats
from tuner.root.service import Service

LINE_SECONDS = 10.0


@dataclass(slots=True)
class _Sums:
    cycles: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    verified: int = 0
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0


class ServedCounts:
    """Counts since the last line, folded as a telemetry `Consumer`. A request counts once for each of its choices."""

    def __init__(self, blocks: int) -> None:
        """`blocks` of the KV cache in all."""
        self._blocks = blocks
        self._lock = threading.Lock()
        self._sums = _Sums()

    def fold_cycle(self, stats: CycleStats) -> None:
        with self._lock:
            self._sums.cycles += 1
            self._sums.prompt_tokens += stats.prefill_tokens
            for sequence in stats.sequences:
                self._sums.output_tokens += sequence.emitted
                self._sums.verified += sequence.verified
                self._sums.accepted += sequence.accepted

    def fold_request(self, stats: RequestStats) -> None:
        with self._lock:
            self._sums.cancelled += stats.finish is FinishReason.CANCELLED
            self._sums.failed += stats.finish is FinishReason.ERROR
            self._sums.finished += stats.finish in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def idle(self) -> bool:
        """Nothing ran since the last line."""
        return self._sums == _Sums()

    def line(self, seconds: float, status: EngineStatus) -> str:
        """What ran in the last `seconds`, and what runs now; the next line counts from here."""
        with self._lock:
            sums, self._sums = self._sums, _Sums()
        others = ((sums.cancelled, "cancelled"), (sums.failed, "failed"))
        ended = ", ".join([f"{sums.finished} finished", *(f"{count} {how}" for count, how in others if count)])
        kept = f"{sums.accepted / sums.verified:.0%} of {sums.verified}" if sums.verified else "none to keep"
        return (
            f"requests: {ended}, {status.running} running, {status.waiting} waiting; "
            f"tokens a second: {sums.prompt_tokens / seconds:.1f} prompt, {sums.output_tokens / seconds:.1f} output; "
            f"drafts kept: {kept}; KV blocks: {self._blocks - status.free_blocks} of {self._blocks}"
        )


async def log_served(service: Service, console: Console) -> None:
    """Print the lines until it is cancelled or the engine is gone. A time in which nothing ran has none."""
    counts = ServedCounts(service.client.info.blocks)
    with service.listening(counts):
        since = time.monotonic()
        while True:
            await asyncio.sleep(LINE_SECONDS)
            if counts.idle:
                since = time.monotonic()
                continue
            try:
                status = await service.client.status()
            except EngineGoneError:
                return  # who watches the engine tells how it ended
            now = time.monotonic()
            console.log(counts.line(now - since, status))
            since = now

"""A step that is over, kept as it was until somebody has time to make its `CycleStats`."""

from dataclasses import dataclass
from typing import NamedTuple

from policies.stats import BlockEnd, CycleStats, SequenceStats, ShadowStats
from policies.types import Decision
from tuner.fleet.vllm.plugin.step import Step


class Row(NamedTuple):
    """What one request did."""

    key: int
    decision: Decision
    forced: bool
    requested: int
    proposed: int
    verified: int
    accepted: int
    emitted: int
    confidence: int
    end: BlockEnd


@dataclass(frozen=True, slots=True)
class CycleReport:
    """Made in vLLM's scheduling thread; `stats` is called in another."""

    cycle: int
    step: Step
    rows: tuple[Row, ...]
    kv_tokens: int
    shadows: tuple[ShadowStats, ...]
    draft_seconds: dict[str, float]
    cycle_seconds: float
    prefill_seconds: float
    ended_at: float

    def stats(self) -> CycleStats:
        step, policy = self.step, self.step.policy
        load = len(self.rows)
        return CycleStats(
            cycle=self.cycle,
            policy_version=policy.version,
            window=policy.window,
            first_after_switch=step.first_after_switch,
            killed=policy.kill,
            load=load,
            tokens=load + sum([row.verified for row in self.rows]),
            kv_tokens=self.kv_tokens,
            draft_seconds=self.draft_seconds,
            verify_seconds=max(0.0, self.cycle_seconds - sum(self.draft_seconds.values())),
            cycle_seconds=self.cycle_seconds,
            prefill_tokens=step.prefill_tokens,
            prefill_seconds=self.prefill_seconds,
            waiting=step.waiting,
            sequences=tuple(
                [
                    SequenceStats(
                        request_key=row.key,
                        context=row.decision.context,
                        drafter=row.decision.drafter,
                        requested=row.requested,
                        proposed=row.proposed,
                        verified=row.verified,
                        accepted=row.accepted,
                        emitted=row.emitted,
                        confidence=row.confidence,
                        end=row.end,
                        forced=row.forced,
                    )
                    for row in self.rows
                ]
            ),
            shadows=self.shadows,
            ended_at=self.ended_at,
        )

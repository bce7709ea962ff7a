"""Real telemetry objects for tests: one cycle, one request, one snapshot, with what a test wants to say changed."""

from policies.cycle_policy import INITIAL_CYCLE_POLICY, Window
from policies.stats import BlockEnd, CycleStats, EngineInfo, EngineStatus, FinishReason, RequestStats, SequenceStats
from policies.types import (
    PLAIN_ARM,
    Arm,
    Context,
    Decision,
    Evidence,
    Interval,
    LoadStep,
    Pin,
    Policy,
    PolicyState,
    Reason,
    RequestFeatures,
    SamplingClass,
)
from tuner.guardrails import Check, GuardrailState, Standing, Verdict
from tuner.metrics import Gauges
from tuner.safety import Gate, SafetyState
from tuner.snapshot import BaselineCell, KillSwitch, PolicySnapshot, Throughput

ROUTES = ("code-edit", "chat")
NOW = 1_800_000_000.0
"""Unix seconds: the present of every example."""

INFO = EngineInfo(
    model="tiny",
    drafters=("none", "ngram", "suffix"),
    dtype="float32",
    device="cpu",
    threads=1,
    slots=6,
    blocks=48,
    context_limit=512,
    vocabulary=64,
    linear_seconds=0.012,
    calibration=(),
)
STATUS = EngineStatus(cycle=9, running=3, waiting=2, free_slots=3, free_blocks=40, policy_version=1)
GAUGES = Gauges(engine=STATUS, engine_up=True, store_up=True, telemetry_dropped=5, recorder_dropped=7)
GAIN = Interval(1.9, 1.7, 2.1)
ERRORS = Interval(0.2, 0.1, 0.37)
NGRAM_ARM = Arm("ngram", (LoadStep(1, 2, 8, "ngram"), LoadStep(3, 4, 4, "ngram")))


def sequence(
    route: str = "code-edit",
    language: str = "en",
    drafter: str = "ngram",
    verified: int = 4,
    accepted: int = 4,
    end: BlockEnd | None = None,
) -> SequenceStats:
    """One sequence's part of a cycle; without an `end`, what the counts say."""
    if end is None:
        end = BlockEnd.PLAIN if verified == 0 else BlockEnd.FULL if accepted == verified else BlockEnd.REJECTED
    return SequenceStats(
        request_key=1,
        context=Context("tiny", route, language),
        drafter=drafter,
        requested=8,
        proposed=verified + 1 if verified else 0,
        verified=verified,
        accepted=accepted,
        emitted=accepted + 1,
        confidence=2,
        end=end,
    )


def cycle(*sequences: SequenceStats, plain: bool = False, prefill_tokens: int = 0) -> CycleStats:
    """A cycle of 20 ms over `sequences`; none of them makes it a prefill without decoding."""
    return CycleStats(
        cycle=1,
        policy_version=1,
        window=Window(1, plain),
        first_after_switch=False,
        killed=False,
        load=len(sequences),
        tokens=sum(1 + part.verified for part in sequences),
        kv_tokens=100 * len(sequences),
        draft_seconds={"ngram": 0.001} if sequences else {},
        verify_seconds=0.018 if sequences else 0.0,
        cycle_seconds=0.020 if sequences else 0.0,
        prefill_tokens=prefill_tokens,
        prefill_seconds=0.0005 * prefill_tokens,
        waiting=0,
        sequences=sequences,
        shadows=(),
    )


def request(
    route: str = "code-edit",
    language: str = "en",
    drafter: str = "ngram",
    output_tokens: int = 33,
    finish: FinishReason = FinishReason.STOP,
    reason: Reason = Reason.LEARNED,
    looped: bool = False,
) -> RequestStats:
    """A finished request at 10 ms per output token."""
    return RequestStats(
        request_key=1,
        decision=Decision("d", Context("tiny", route, language), drafter, 8, False, reason, 3, ("suffix",)),
        features=RequestFeatures(SamplingClass.GREEDY, structured=False, prompt_tokens=50, max_tokens=64),
        finish=finish,
        output_tokens=output_tokens,
        queue_seconds=0.002,
        ttft_seconds=0.06 if output_tokens else 0.0,
        decode_seconds=0.010 * max(output_tokens - 1, 0),
        cycles=8,
        proposed=30,
        verified=28,
        accepted=24,
        rejected_at=(1,),
        draft_seconds=0.004,
        verify_seconds=0.2,
        looped=looped,
    )


def policy(
    route: str = "code-edit",
    language: str = "en",
    arm: Arm = NGRAM_ARM,
    speedup: Interval | None = GAIN,
    version: int = 3,
) -> Policy:
    """A learned policy of a context."""
    evidence = Evidence(200, 20, (0.9, 0.8), speedup, ((1, 2.0), (4, 1.2)), "ngram against measured plain")
    state = PolicyState.OFF if arm == PLAIN_ARM else PolicyState.ON
    return Policy(Context("tiny", route, language), version, arm, state, Reason.LEARNED, evidence, NOW)


def pin(route: str = "chat", language: str = "*", expires_at: float = NOW + 60) -> Pin:
    return Pin(route, language, "none", 0, "incident", "someone", NOW - 60, expires_at)


def snapshot(*policies: Policy, pins: tuple[Pin, ...] = (), kills: tuple[KillSwitch, ...] = ()) -> PolicySnapshot:
    """A snapshot with a measured baseline."""
    return PolicySnapshot(
        version=4,
        created_at=NOW,
        policies={(one.context.route, one.context.language): one for one in policies},
        pins=pins,
        kill_switches=kills,
        cycle_policy=INITIAL_CYCLE_POLICY,
        throughput=Throughput(tuned_tokens=900, tuned_seconds=9.0, plain_tokens=60, plain_seconds=1.0),
        baseline=(BaselineCell(1, 50, 0.016, 0.02), BaselineCell(4, 10, 0.022, 0.05)),
        cost_error=0.06,
        switchback_share=0.2,
        engine_gain=Interval(1.5, 1.4, 1.6),
        safety=SafetyState(Gate.PROVEN, 2.5, 5.0, 1),
        changes_found={"acceptance": 2},
        guardrails=(
            GuardrailState("chat", Check.ERRORS, Verdict.FAILED, Standing.TRIPPED, 0.02, 30, ERRORS, NOW + 60, 3),
            GuardrailState("*", Check.MEMORY, Verdict.SUCCESS),
        ),
    )

"""Values that tests of the store, the recorder and the admin API put in and expect back."""

from policies import (
    Arm,
    Context,
    Decision,
    Evidence,
    FinishReason,
    Interval,
    KillSwitch,
    LoadStep,
    Pin,
    Policy,
    PolicyState,
    Reason,
    RequestFeatures,
    RequestStats,
    SamplingClass,
)
from policies.records import AuditEntry, RequestWindow, SampledDecision, TelemetryWindow

MODEL = "tiny"
CONTEXT = Context(MODEL, "code-edit", "code")


def policy(version: int, context: Context = CONTEXT, created_at: float = 100.0) -> Policy:
    return Policy(
        context=context,
        version=version,
        arm=Arm("ngram", (LoadStep(1, 2, 8, "ngram"), LoadStep(3, 8, 4, "suffix"))),
        state=PolicyState.ON,
        reason=Reason.LEARNED,
        evidence=Evidence(
            cycles=412,
            requests=37,
            survival=(0.8, 0.6, 0.5, 0.45),
            speedup=Interval(1.62, 1.5, 1.74),
            predicted_speedup=((1, 1.7), (4, 1.1)),
            note="n-gram at 8 against measured plain: faster.",
        ),
        created_at=created_at,
    )


def pin(language: str = "code", block_length: int = 4, expires_at: float = 7_300.0) -> Pin:
    return Pin("code-edit", language, "ngram", block_length, "a trial", "ada", 100.0, expires_at)


def kill_switch(route: str = "*") -> KillSwitch:
    return KillSwitch(route, "an incident", "ada", 100.0, None)


def audit_entry(action: str = "pin") -> AuditEntry:
    return AuditEntry(100.0, "ada", action, "code-edit", "code", "a trial", {"block_length": 4})


def decision(decision_id: str = "7.ngram-8.LEARNED.1", reason: Reason = Reason.LEARNED) -> Decision:
    return Decision(decision_id, CONTEXT, "ngram", 8, False, reason, 7, propensity=0.25)


def sampled_decision(decision_id: str = "7.ngram-8.LEARNED.1") -> SampledDecision:
    return SampledDecision(decision(decision_id), 101.0, "stop", 48, 60, 50, 40, 0.05, 0.01)


def telemetry_window(started_at: float = 100.0) -> TelemetryWindow:
    return TelemetryWindow(
        writer="w1",
        started_at=started_at,
        ended_at=started_at + 60.0,
        context=CONTEXT,
        drafter="ngram",
        plain=False,
        cycles=2,
        load_sum=3,
        requested=16,
        proposed=10,
        verified=8,
        accepted=5,
        emitted=7,
        draft_seconds=0.001,
        verify_seconds=0.04,
        blocks=((8, 8, 8, 5, "rejected", 1), (8, 2, 0, 0, "plain", 1)),
    )


def request_window(started_at: float = 100.0) -> RequestWindow:
    return RequestWindow(
        writer="w1",
        started_at=started_at,
        ended_at=started_at + 60.0,
        context=CONTEXT,
        drafter="ngram",
        output_length="17-64",
        requests=2,
        cancelled=1,
        errors=0,
        looped=0,
        prompt_tokens=200,
        output_tokens=64,
        queue_seconds=0.01,
        ttft_seconds=0.1,
        ttft_requests=2,
        decode_seconds=0.62,
        decode_tokens=62,
        cycles=30,
        proposed=60,
        verified=50,
        accepted=34,
        rejected_at=(5, 3, 2),
        draft_seconds=0.01,
        verify_seconds=0.5,
    )


def request_stats(
    key: int = 1, finish: FinishReason = FinishReason.STOP, output_tokens: int = 48, made: Decision | None = None
) -> RequestStats:
    return RequestStats(
        request_key=key,
        decision=made or decision(f"7.ngram-8.LEARNED.{key}"),
        features=RequestFeatures(SamplingClass.GREEDY, False, 100, 128),
        finish=finish,
        output_tokens=output_tokens,
        queue_seconds=0.001,
        ttft_seconds=0.05,
        decode_seconds=0.47,
        cycles=20,
        proposed=60,
        verified=50,
        accepted=28,
        rejected_at=(5, 3),
        draft_seconds=0.01,
        verify_seconds=0.4,
        looped=False,
    )

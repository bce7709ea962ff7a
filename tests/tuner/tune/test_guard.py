"""What keeps candidates from serving."""

from dataclasses import replace

import pytest

from policies.types import KillSwitch
from tests.tuner.scripted_steering import snapshot
from tuner.guardrails import Check, GuardrailState, Standing, Verdict
from tuner.root.tuning import guard_of
from tuner.safety import Gate, SafetyState
from tuner.snapshot import PolicySnapshot


def kill(route: str) -> PolicySnapshot:
    return replace(snapshot(), kill_switches=(KillSwitch(route, "x", "ann", 0.0, None),))


def guardrail(standing: Standing, route: str = "chat") -> PolicySnapshot:
    return replace(snapshot(), guardrails=(GuardrailState(route, Check.TTFT, Verdict.FAILED, standing),))


@pytest.mark.parametrize(
    ("found", "guard"),
    [
        (snapshot(), None),
        (kill("chat"), None),
        (kill("*"), "speculation is switched off everywhere"),
        (replace(snapshot(), safety=SafetyState(Gate.PROVEN)), None),
        (replace(snapshot(), safety=SafetyState(Gate.HELD)), "the safety budget is spent"),
        (guardrail(Standing.WATCHING), None),
        (guardrail(Standing.TRYING), None),
        (guardrail(Standing.TRIPPED), "the guardrail of ttft has tripped on the route chat"),
        (guardrail(Standing.TRIPPED, "*"), "the guardrail of ttft has tripped everywhere"),
    ],
)
def test_a_guard_names_what_holds_candidates_back(found: PolicySnapshot, guard: str | None) -> None:
    hold = guard_of(found)
    assert (None if hold is None else hold.reason) == guard
    assert hold is None or hold.ends_candidate is (not found.kill_switches)

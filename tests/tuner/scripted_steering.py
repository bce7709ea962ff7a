"""A `Steering` that does what it is told and remembers the order of calls."""

from collections.abc import Mapping
from dataclasses import replace

from policies import INITIAL_CYCLE_POLICY, KillSwitch, Pin, Policy, Window
from tests.policies import store_samples as samples
from tuner.snapshot import PolicySnapshot, Throughput


def snapshot(policies: Mapping[tuple[str, str], Policy] | None = None) -> PolicySnapshot:
    default = {("code-edit", "code"): samples.policy(7)}
    return PolicySnapshot(
        version=3,
        created_at=1_000.0,
        policies=default if policies is None else policies,
        pins=(),
        kill_switches=(),
        cycle_policy=INITIAL_CYCLE_POLICY,
        throughput=Throughput(900, 10.0, 300, 5.0),
        baseline=(),
        cost_error=0.04,
        switchback_share=0.2,
        requests={("code-edit", "code"): 37},
        looped_requests=1,
    )


class ScriptedSteering:
    def __init__(self, start: PolicySnapshot) -> None:
        self.snapshot = start
        self.calls: list[str] = []

    def set_pin(self, pin: Pin) -> None:
        if pin.reason == "refused":
            raise ValueError("drafter 'ngram' is unknown to this engine; use one of none")
        self.calls.append("set_pin")
        others = [p for p in self.snapshot.pins if (p.route, p.language) != (pin.route, pin.language)]
        self.snapshot = replace(self.snapshot, pins=(*others, pin))

    def remove_pin(self, route: str, language: str) -> Pin | None:
        self.calls.append("remove_pin")
        found = next((p for p in self.snapshot.pins if (p.route, p.language) == (route, language)), None)
        self.snapshot = replace(self.snapshot, pins=tuple(p for p in self.snapshot.pins if p is not found))
        return found

    def set_kill(self, kill: KillSwitch) -> None:
        self.calls.append("set_kill")
        self.snapshot = replace(self.snapshot, kill_switches=(*self.snapshot.kill_switches, kill))

    def clear_kill(self, route: str) -> KillSwitch | None:
        self.calls.append("clear_kill")
        found = next((k for k in self.snapshot.kill_switches if k.route == route), None)
        kept = tuple(k for k in self.snapshot.kill_switches if k is not found)
        self.snapshot = replace(self.snapshot, kill_switches=kept)
        return found

    def open_plain_window(self) -> None:
        cycle_policy = replace(self.snapshot.cycle_policy, window=Window(2, plain=True))
        self.snapshot = replace(self.snapshot, cycle_policy=cycle_policy)

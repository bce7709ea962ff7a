"""The second reference: what it gains over the oracle, and what it may not know."""

from dataclasses import replace

import pytest

from policies.cycle_policy import DraftCost
from policies.types import PLAIN
from tests.tuner.replay.small_traces import STEPPED_COSTS, small_trace
from tuner.replay.copying_oracle import CopyingOracle
from tuner.replay.oracle import Oracle, Truth
from tuner.replay.player import Running
from tuner.replay.simulate import simulate


class Watched(CopyingOracle):
    """Keeps what was planned: (the oracle's drafter, copier, drafts copied, drafter)."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self.planned: list[tuple[str, str, int, str]] = []
        self._chosen: dict[int, str] = {}

    def ask(self, running: list[Running]) -> None:
        if self._changed:
            Oracle.plan(self, running)
            self._chosen = {one.index: one.drafter for one in running}
            self._changed = True
        super().ask(running)

    def plan(self, running: list[Running]) -> None:
        super().plan(running)
        self.planned += [(self._chosen[one.index], one.copier, one.copied, one.drafter) for one in running]


@pytest.mark.parametrize("seed", range(3))
def test_looking_at_proposals_is_worth_time(seed: int) -> None:
    truth = Truth(small_trace(seed, requests=400, loads=(1, 2, 4, 8), hold=40))
    oracle = simulate(truth.trace, Oracle(truth), 0).seconds
    assert simulate(truth.trace, CopyingOracle(truth), 0).seconds < 0.99 * oracle


def test_a_copied_proposal_takes_the_place_of_a_learned_block_and_a_learned_block_that_of_nothing_to_copy() -> None:
    right = {"code": {"copy": 0.9, "learned": 0.5}, "chat": {"copy": 0.8, "learned": 0.7}}
    truth = Truth(small_trace(5, requests=200, loads=(1, 2, 4), hold=40, right=right))
    player = Watched(truth)
    simulate(truth.trace, player, 0)
    taken = [plan for plan in player.planned if plan[0] == "learned" and plan[3] == "copy"]
    assert taken
    assert all(copied > 0 for _, _, copied, _ in taken)
    silent = [plan for plan in player.planned if plan[0] == "copy" and plan[2] == 0]
    assert any(drafter == "learned" for *_, drafter in silent)
    assert not any(drafter == "copy" for *_, drafter in silent)


def test_a_copier_whose_time_is_not_paid_is_not_asked() -> None:
    dear = replace(STEPPED_COSTS, drafters={**STEPPED_COSTS.drafters, "copy": DraftCost(0.05, 0.05, 0.0, 0.0)})
    truth = Truth(small_trace(6, requests=120, loads=(1, 3), costs=dear))
    player = Watched(truth)
    outcome = simulate(truth.trace, player, 0)
    assert {copier for _, copier, _, _ in player.planned} == {""}
    assert outcome.shadow_seconds == 0.0


def test_without_a_drafter_that_copies_it_plays_the_oracles_choices() -> None:
    steps = replace(STEPPED_COSTS, drafters={**STEPPED_COSTS.drafters, "copy": DraftCost(0.0001, 0.0, 0.0001, 0.0)})
    truth = Truth(small_trace(7, requests=120, loads=(1, 3), costs=steps))
    player = Watched(truth)
    simulate(truth.trace, player, 0)
    assert {copier for _, copier, _, _ in player.planned} == {""}
    assert all(chosen in (drafter, PLAIN) for chosen, _, _, drafter in player.planned)

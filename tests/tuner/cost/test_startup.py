"""What reading a new text takes is no part of what a call takes."""

import dataclasses

import pytest

from policies.cycle_policy import DraftCost
from policies.stats import CycleStats, DraftTiming
from policies.types import Context
from tests.tuner.simulated_engine import cycle, sequence
from tuner.cost.draft_cost import DraftCosts

COST = DraftCost(1.0e-4, 5.0e-5, 4.5e-4, 3.0e-5)
TOKEN = 1.0e-4
CALLS = [(count, steps, count * steps) for count in (1, 4, 16) for steps in (1, 4, 8)]


def drafted(read: int, seconds: float) -> CycleStats:
    asked = sequence(Context("m", "chat", "en"), requested=4, proposed=4, verified=0, drafter="draft")
    one = cycle(load=1, tokens=1, kv_tokens=9, seconds=0.02, sequences=(asked,), draft_seconds={"draft": seconds})
    return dataclasses.replace(one, startup_tokens={"draft": read} if read else {})


def test_calls_that_read_a_new_text_teach_the_price_of_reading_and_leave_that_of_drafting_alone() -> None:
    timings = [DraftTiming("draft", *call, COST.seconds(*call)) for call in CALLS]
    costs = DraftCosts([*timings, DraftTiming("draft", 1, 1, 1, COST.seconds(1, 1, 1) + 240 * TOKEN, 240)])
    assert costs.startup_seconds("draft", 100) == pytest.approx(100 * TOKEN, rel=0.05)
    call = COST.seconds(1, 4, 4)
    for _ in range(200):
        costs.fold(drafted(300, call + 300 * 1.5 * TOKEN))
        costs.fold(drafted(0, call))
    costs.refit()
    assert costs.costs["draft"].seconds(1, 4, 4) == pytest.approx(call, rel=0.02)
    assert costs.startup_seconds("draft", 100) == pytest.approx(150 * TOKEN, rel=0.05)

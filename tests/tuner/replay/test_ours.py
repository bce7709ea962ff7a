"""Our controller as a player: what it may ask of an engine."""

from dataclasses import replace

import pytest

from policies.types import PLAIN, Decision
from tests.tuner.replay.small_traces import small_trace
from tuner.controller import ControllerOptions
from tuner.replay.ours import Ours
from tuner.replay.player import Running
from tuner.replay.simulate import play


class Kept(Ours):
    """Keeps every decision."""

    def __init__(self, options: ControllerOptions) -> None:
        super().__init__(options)
        self.decisions: list[Decision] = []

    def admit(self, one: Running, load: int) -> None:
        super().admit(one, load)
        self.decisions.append(one.notes.decision)


@pytest.mark.parametrize("longest", [0, 1])
@pytest.mark.parametrize("drafter", [None, PLAIN])
def test_with_the_shortest_longest_blocks_only_drafters_are_asked_and_none_beyond_it(
    longest: int, drafter: str | None
) -> None:
    player = Kept(ControllerOptions(seed=1, max_block_length=longest, drafter=drafter))
    trace = replace(small_trace(8, requests=400, loads=(1, 4), hold=40), seconds_sd=0.03)
    played = play(trace, player, 1)
    assert {name for decision in player.decisions for name in decision.shadows} <= set(trace.drafters)
    assert any(decision.shadows for decision in player.decisions), "or it was not tried"
    assert all(decision.cap <= longest for decision in player.decisions)
    assert played.verified.max() <= longest

"""Shadows take no more than everybody may wait."""

from dataclasses import replace

import pytest

from policies.cycle_policy import INITIAL_CYCLE_POLICY, DraftCost
from policies.shadow_room import LEAST_LENGTH, ShadowRoom

COSTS = {"learned": DraftCost(0.001, 0.0001, 0.002, 0.0), "ngram": DraftCost(0.0, 0.0001, 0.0, 0.00001)}
POLICY = replace(INITIAL_CYCLE_POLICY, draft_costs=COSTS)


@pytest.mark.parametrize("spare", [-0.01, 0.0, 0.003, 0.0095, 0.02, 0.05])
def test_the_longest_that_they_can_take_is_within_what_is_spare(spare: float) -> None:
    room = ShadowRoom(POLICY, spare)
    lengths = [room.length(drafter) for drafter in ("learned", "ngram", "learned", "ngram", "learned")]
    taken = 0.0
    for drafter, own in (("learned", lengths[::2]), ("ngram", lengths[1::2])):
        asked = [length for length in own if length]
        taken += COSTS[drafter].seconds(len(asked), max(asked, default=0), sum(asked))
    assert room.granted_seconds == pytest.approx(taken)
    assert taken <= max(spare, 0.0) + 1e-12
    if spare <= 0.0:
        assert lengths == [0] * 5


def test_a_shadow_is_as_long_as_there_is_room_for_and_none_that_tells_too_little() -> None:
    assert ShadowRoom(POLICY, 1.0).length("learned") == 16
    assert ShadowRoom(POLICY, 0.0132).length("learned") == 6
    assert ShadowRoom(POLICY, 0.0092).length("learned") == LEAST_LENGTH
    assert ShadowRoom(POLICY, 0.0090).length("learned") == 0


def test_more_sequences_share_the_steps_of_the_first() -> None:
    room = ShadowRoom(POLICY, 0.0133)
    assert [room.length("learned") for _ in range(4)] == [6, 6, 6, 0]


def test_a_drafter_without_a_cost_always_has_room() -> None:
    assert ShadowRoom(POLICY, -1.0).length("unknown") == 16

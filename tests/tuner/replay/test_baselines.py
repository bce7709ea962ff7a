"""The rule of each published controller, on sequences whose outcome was worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from policies.types import PLAIN
from tests.tuner.replay.small_traces import STEPPED_COSTS, small_trace
from tuner.replay.baselines import controllers
from tuner.replay.baselines.bandit_spec import Exp3, UcbPaper, UcbRepo, radius
from tuner.replay.baselines.batchwise import Batchwise, profiled
from tuner.replay.baselines.cascade import Cascade
from tuner.replay.baselines.goodput import TurboSpec, VllmGoodput
from tuner.replay.baselines.hedge_spec import HedgeSpec, normal_hedge
from tuner.replay.baselines.hugging_face import ConfidenceThreshold, Heuristic, best_threshold
from tuner.replay.baselines.ik_llama import EpsilonGreedy
from tuner.replay.baselines.nightjar import Nightjar
from tuner.replay.baselines.sglang import EmaTiers, Slot, ThroughputAware
from tuner.replay.baselines.thompson import Thompson
from tuner.replay.hindsight import Single
from tuner.replay.oracle import Truth
from tuner.replay.player import Player, Running, World
from tuner.replay.simulate import simulate
from tuner.replay.trace import DraftTrace, TracedRequest

SINGLE = Single("learned", 3, tuple(0.6**j for j in range(1, 17)), tuple(float(k) for k in range(17)), 100.0)
LENGTHS = {"copy": 3, "learned": 3}
WORLD = World(("copy", "learned"), 8, STEPPED_COSTS, {"copy": 3, "learned": 3}, 7)


def _request(length: int = 40, **drafts: DraftTrace) -> TracedRequest:
    nothing = DraftTrace(bytes(length), bytes(length), bytes(length))
    return TracedRequest("chat", "en", 50, length, {"copy": nothing, "learned": nothing, **drafts})


def _admitted(player: Player, load: int = 1) -> list[Running]:
    running = []
    for index in range(load):
        one = Running(index, _request())
        running.append(one)
        player.admit(one, index + 1)
    return running


def _cycle(player: Player, running: list[Running], kept: Any, seconds: float = 0.01, confidence: int = 1) -> list[int]:
    """Plan and observe; sequence i keeps `kept[i]` of what it asks, or all of it. Returns what was asked."""
    player.plan(running)
    asked = []
    for one, most in zip(running, kept, strict=True):
        asked.append(one.requested if one.drafter != PLAIN else 0)
        one.proposed = one.verified = asked[-1]
        one.confidence = confidence if one.proposed else 0
        one.accepted = min(most, one.proposed)
        one.emitted = one.accepted + 1
        one.position += one.emitted
    player.observe(running, seconds, 0.0)
    return asked


def test_every_controller_says_its_own_name_and_plays_a_trace_to_the_end() -> None:
    trace = small_trace(1, requests=40, loads=(1, 3))
    truth = Truth(trace)
    made = controllers()
    assert {"best-fixed", "best-per-load", "hf-heuristic", "sglang-ema", "hedgespec", "thompson"} <= set(made)
    for name, make in made.items():
        player = make(truth)
        assert player.name == name
        assert simulate(trace, player, 1).seconds > 0.0


# Hugging Face


def test_the_heuristic_goes_up_by_two_and_down_by_one_and_on_with_the_next_request() -> None:
    player = Heuristic(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    asked = [_cycle(player, running, [kept])[0] for kept in (16, 16, 3, 0, 16)]
    assert asked == [5, 7, 9, 8, 7]
    player.finish(running[0])
    assert _cycle(player, _admitted(player), [16]) == [9]


def test_the_heuristic_never_asks_for_less_than_one() -> None:
    player = Heuristic(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    assert [_cycle(player, running, [0])[0] for _ in range(6)] == [5, 4, 3, 2, 1, 1]


@pytest.mark.parametrize(
    ("matched", "missed", "threshold"),
    [
        # From bucket 3: fpr 1/4, fnr 4/10, 1.45. From 2: 2/4, 1/10, 0.8. From 1: 4/4, 0, 1.0.
        ([0, 1, 3, 6], [0, 2, 1, 1], 2),
        # From 3: 0 and 4/10, 1.2. From 2: 3/4 and 3/10, 1.65. From 1: 1 and 0, 1.0.
        ([0, 3, 1, 6], [0, 1, 3, 0], 1),
        # Too few, or of one kind: as it was.
        ([0, 1, 1, 1], [0, 1, 1, 0], 9),
        ([0, 5, 5, 5], [0, 0, 0, 0], 9),
    ],
)
def test_the_threshold_minimises_false_positives_and_three_times_false_negatives(
    matched: list[int], missed: list[int], threshold: int
) -> None:
    assert best_threshold(matched, missed, 9) == threshold


def test_the_confidence_threshold_drafts_one_token_below_it_and_all_above() -> None:
    player = ConfidenceThreshold(SINGLE)
    player.start(WORLD, None)
    assert player.threshold == 2  # 0.4 of 3 buckets
    draft = DraftTrace(bytes([16] * 40), bytes(40), bytes([1, 2, 3, *[1] * 37]))
    one = Running(0, _request(learned=draft))
    player.admit(one, 1)
    asked = []
    for position in range(3):
        one.position = position
        player.plan([one])
        asked.append(one.requested)
    assert asked == [1, 16, 16]


# SGLang


def test_an_ema_slot_moves_only_every_five_batches_after_ten() -> None:
    slot = Slot((1, 3, 5, 7), 3, -0.25)
    steps = []
    for _ in range(20):
        slot.update(3.0)
        steps.append(slot.step)
    # The mean begins at 2; after 15 batches it is 3 - 0.8**15 = 2.96, over 2.5, and not over 4.5.
    assert steps[:14] == [3] * 14
    assert steps[14:] == [5] * 6
    assert slot.mean == pytest.approx(3.0 - 0.8**20)


def test_an_ema_slot_goes_down_at_the_lower_step_less_a_half_with_its_hysteresis() -> None:
    down, stays = Slot((1, 3, 5, 7), 3, -0.25), Slot((1, 3, 5, 7), 3, -0.25)
    for _ in range(15):
        down.update(0.2)
        stays.update(0.3)
    # To go down from 3 to 1 the mean must be at most 1 - 0.5 - 0.25 = 0.25: it is 0.2 + 1.8 * 0.8**15 = 0.263.
    assert (down.step, stays.step) == (3, 3)
    for _ in range(5):
        down.update(0.2)
        stays.update(0.3)
    assert (down.step, stays.step) == (1, 3)


def test_an_ema_slot_that_is_off_tries_its_smallest_step_at_every_decision() -> None:
    slot = Slot((0, 1, 3), 1, 0.0)
    steps = []
    for _ in range(30):
        slot.update(0.0)
        steps.append(slot.step)
    assert steps[13:] == [1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1]


def test_ema_tiers_take_the_slot_of_the_batch_size() -> None:
    player = EmaTiers(SINGLE)
    player.start(WORLD, None)
    assert [player.length(load) for load in (1, 7, 8, 31, 32, 63, 64, 200)] == [3, 3, 3, 3, 1, 1, 0, 0]


def test_throughput_aware_extrapolates_geometrically_and_takes_the_best_expected_tokens_per_second() -> None:
    player = ThroughputAware(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    # Half of the batches keep all three drafts, half keep one: shares 1, 0.5, 0.5.
    for batch in range(20):
        assert _cycle(player, running, [3 if batch % 2 else 1]) == [3]
    # (0.5 / 1)^(1 / 2) = 0.707 from one position to the next, from the last that is known.
    rates = player.rates(7)
    assert rates == pytest.approx([1.0, 0.5, 0.5, 0.353553, 0.25, 0.176777, 0.125], rel=1e-4)
    seconds = profiled(STEPPED_COSTS, SINGLE, 8)[0]
    expected = max((1, 3, 5, 7), key=lambda step: (1.0 + sum(rates[:step])) / seconds[step])
    assert _cycle(player, running, [0]) == [expected]


def test_throughput_aware_forgets_the_positions_beyond_a_step_that_it_gives_up() -> None:
    player = ThroughputAware(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    for _ in range(20):
        _cycle(player, running, [0])
    assert _cycle(player, running, [0]) == [1]
    assert player.rates(3) == [0.0, 0.0, 0.0]
    assert len(player._windows[1]) == 0


# Goodput


def test_turbospec_decides_every_hundred_steps_by_the_geometric_formula() -> None:
    player = TurboSpec(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player, 2)
    asked = {tuple(_cycle(player, running, [0, 0])) for _ in range(100)}
    assert asked == {(3, 3)}
    assert _cycle(player, running, [0, 0]) == [0, 0]
    # Off: nothing is measured any more, and nothing changes until the load does.
    assert {tuple(_cycle(player, running, [9, 9])) for _ in range(250)} == {(0, 0)}


def test_turbospec_weighs_tokens_of_those_that_propose_against_its_linear_model() -> None:
    player = TurboSpec(SINGLE)
    player.start(WORLD, None)
    player._kv_load, player._computation, player._overhead = 0.0, 0.1, 0.9
    player._draft = type(player._draft)(0.0, 0.0, 0.0, 0.0)
    # Of one sequence at 0.5: 1/1, 1.5/1.1, 1.75/1.2, 1.875/1.3, 1.9375/1.4: the third is the largest.
    assert player.decide(1, 1.0, 0.0, 0.5) == 2
    # Where nobody ever matches there is nothing to verify.
    assert player.decide(1, 0.0, 0.0, 0.5) == 0


def test_vllm_counts_positions_from_the_start_and_never_goes_beyond_what_it_has_drafted() -> None:
    player = VllmGoodput(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    first = _cycle(player, running, [16])[0]
    assert first >= 2
    for _ in range(9):
        _cycle(player, running, [16])
    assert player.acceptance == list(SINGLE.survival)
    _cycle(player, running, [1])
    # 11 blocks: all of them kept the first, 10 the second; what was never drafted counts as never accepted.
    assert player.acceptance[:2] == pytest.approx([1.0, 10 / 11])
    assert player.acceptance[first:] == [0.0] * (16 - first)
    assert _cycle(player, running, [16])[0] <= first


def test_a_profile_is_what_the_calibration_says_of_a_cycle() -> None:
    table = profiled(STEPPED_COSTS, SINGLE, 4)
    target, draft = STEPPED_COSTS.target, STEPPED_COSTS.drafters["learned"]
    assert table[0][0] == pytest.approx(target.seconds(1, 1, 100))
    assert table[1][3] == pytest.approx(target.seconds(8, 2, 200) + draft.seconds(2, 3, 6))


# BanditSpec


def test_the_radius_is_three_tokens_of_four_after_ten_pulls() -> None:
    assert radius(4, 3, 10, 30) == pytest.approx(3.33, abs=0.005)
    assert radius(4, 3, 100, 300) == pytest.approx(1.22, abs=0.05)


def test_ucbspec_plays_each_drafter_once_and_then_the_largest_mean_plus_radius_for_each_prompt() -> None:
    player = UcbPaper(LENGTHS)
    player.start(WORLD, None)
    running = _admitted(player)
    played = []
    for kept in (0, 3, 3, 0, 3):
        _cycle(player, running, [kept])
        played.append(running[0].drafter)
        assert running[0].requested == 3
    # Means 1 and 4 with one pull each: "learned". In round 4 the radius is 8.1 for one pull and 5.0 for two, and
    # 1 + 8.1 is more than 4 + 5.0: "copy". With two pulls each the larger mean wins again.
    assert played == ["copy", "learned", "learned", "copy", "learned"]
    assert radius(3, 2, 1, 4) == pytest.approx(8.1, abs=0.05)
    assert radius(3, 2, 2, 4) == pytest.approx(5.0, abs=0.05)
    again = _admitted(player)
    _cycle(player, again, [0])
    assert again[0].drafter == "copy"


def test_exp3spec_starts_with_equal_chances_and_moves_away_from_losses() -> None:
    player = Exp3(LENGTHS)
    player.start(WORLD, None)
    running = _admitted(player)
    _cycle(player, running, [0])
    arms = running[0].notes
    assert arms.probabilities == [0.5, 0.5]
    # Nothing of L = 3 accepted: Y = 1, a loss of (4 - 1) / (3 * 0.5) = 2 for the arm that was played.
    assert sorted(arms.losses) == [0.0, 2.0]
    _cycle(player, running, [0])
    weight = math.exp(-2.0 * math.sqrt(math.log(2) / (2 * 2)))
    assert sorted(arms.probabilities) == pytest.approx([weight / (1 + weight), 1 / (1 + weight)])


def test_the_repository_takes_each_of_four_lengths_in_turn_and_then_the_largest_mean_of_rates() -> None:
    player = UcbRepo(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    # Everything of up to 2 is kept: 2, 3, 3, 3 tokens, in 10, 11, 12, 13 ms. The eighth step is the first choice.
    asked = []
    for _ in range(7):
        player.plan(running)
        asked += _cycle_from_plan(player, running, kept=2)
    assert asked == [1, 2, 3, 4, 1, 2, 3]
    assert [_cycle(player, running, [2], 0.011)[0] for _ in range(20)] == [2] * 20


def _cycle_from_plan(player: Player, running: list[Running], kept: int) -> list[int]:
    asked = running[0].requested
    running[0].proposed = running[0].verified = asked
    running[0].accepted = min(kept, asked)
    running[0].emitted = running[0].accepted + 1
    player.observe(running, 0.009 + 0.001 * asked, 0.0)
    return [asked]


# HedgeSpec


def test_normal_hedge_solves_for_its_scale_and_weighs_positive_regrets_alone() -> None:
    assert normal_hedge([0.0, -1.0, 0.0]) == [1 / 3, 1 / 3, 1 / 3]
    assert normal_hedge([2.0, 0.0]) == [1.0, 0.0]
    # Equal regrets: exp(R^2 / 2c) = e for both.
    assert normal_hedge([1.5, 1.5, 1.5]) == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    # By bisection for R = (2, 1): the mean of exp(4 x) and exp(x) is e at x.
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (math.exp(4 * middle) + math.exp(middle)) / 2 < math.e else (low, middle)
    weights = [2.0 * math.exp(4 * low), math.exp(low)]
    assert normal_hedge([2.0, 1.0]) == pytest.approx([weight / sum(weights) for weight in weights])


def test_hedgespec_learns_of_all_drafters_from_one_block_once_the_text_tells() -> None:
    always = DraftTrace(bytes([16] * 40), bytes([16] * 40), bytes([1] * 40))
    never = DraftTrace(bytes([16] * 40), bytes(40), bytes([1] * 40))
    player = HedgeSpec(LENGTHS)
    player.start(WORLD, None)
    one = Running(0, _request(copy=never, learned=always))
    player.admit(one, 1)
    player.plan([one])
    one.position = 1
    player.observe([one], 0.01, 0.0)
    # One token is known: that "copy" is rejected, but not that all three of "learned" are right.
    assert one.notes.regrets == [0.0, 0.0]
    player.plan([one])
    one.position = 3
    player.observe([one], 0.01, 0.0)
    # Losses 1 - 1/4 and 1 - 4/4 with equal chances: regrets 0.375 - 0.75 and 0.375 - 0.
    assert one.notes.regrets == pytest.approx([-0.375, 0.375])
    assert one.notes.chances == [0.0, 1.0]
    player.plan([one])
    assert (one.drafter, one.requested) == ("learned", 3)


# Nightjar


def test_nightjar_draws_at_random_in_the_first_bin_of_a_block_and_keeps_a_length_for_a_bin() -> None:
    player = Nightjar(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    asked = []
    # Blocks of 1, 2, 4, 8, 16 steps in bins of 1, 1, 2, 2, 4.
    for _ in range(31):
        asked += _cycle(player, running, [2])
    bins = [(7 + 2 * place, 2) for place in range(4)] + [(15 + 4 * place, 4) for place in range(4)]
    for first, size in bins:
        assert len(set(asked[first : first + size])) == 1


def test_nightjar_prefers_the_length_with_the_most_tokens_per_second_and_learns_by_batch_size() -> None:
    player = Nightjar(SINGLE)
    player.start(WORLD, None)
    alone, crowd = _admitted(player), _admitted(player, 4)
    late: dict[int, list[int]] = {1: [], 4: []}
    for turn in range(3000):
        for running in (alone, crowd):
            player.plan(running)
            asked = running[0].requested if running[0].drafter != PLAIN else 0
            for one in running:
                one.proposed = one.verified = asked
                one.accepted, one.emitted = asked, asked + 1
            # Alone every draft pays; in the crowd none does.
            player.observe(running, 0.01 * (1.0 + (0.1 if len(running) == 1 else 2.0) * asked), 0.0)
            if turn > 1500:
                late[len(running)].append(asked)
    assert sum(length == 8 for length in late[1]) > 0.7 * len(late[1])
    assert sum(length == 0 for length in late[4]) > 0.7 * len(late[4])


# Cascade


def _cascade(costs: dict[int, float], kept: int, cycles: int) -> list[int]:
    """Asked lengths, where a cycle with a length takes so many times a plain one's seconds."""
    player = Cascade(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    asked = []
    for _ in range(cycles):
        player.plan(running)
        length = running[0].requested
        asked.append(length)
        one = running[0]
        one.proposed = one.verified = length
        one.accepted = min(kept, length)
        one.emitted = one.accepted + 1
        plain = STEPPED_COSTS.target.seconds(1, 1, one.kv_tokens)
        player.observe(running, costs[length] * plain, 0.0)
    return asked


def test_cascade_turns_a_request_off_after_one_trial_under_one_and_waits_twice_as_long_each_time() -> None:
    asked = _cascade({3: 1.2, 0: 1.0}, kept=0, cycles=4 + 16 + 4 + 32 + 4 + 64)
    assert asked == [3] * 4 + [0] * 16 + [3] * 4 + [0] * 32 + [3] * 4 + [0] * 64


def test_cascade_climbs_while_utility_rises_and_sets_the_best() -> None:
    costs = {length: 1.0 + 0.1 * length for length in range(9)}
    # Of up to 4 are kept: utilities 4/1.3, 5/1.4 and 5/1.5 for 3, 4 and 5.
    assert _cascade(costs, kept=4, cycles=32) == [3] * 4 + [4] * 4 + [5] * 4 + [4] * 16 + [4] * 4


def test_cascade_goes_down_where_going_up_did_not_pay() -> None:
    costs = {length: 1.0 + 0.3 * length for length in range(9)}
    # One is kept: 2/1.9, 2/2.2; then down 2/1.6, 2/1.3: four trials, and 1 is the best.
    assert _cascade(costs, kept=1, cycles=32) == [3] * 4 + [4] * 4 + [2] * 4 + [1] * 4 + [1] * 16


# ik_llama.cpp


def test_epsilon_greedy_explores_one_call_in_seven_and_plays_the_best_mean_else() -> None:
    player = EpsilonGreedy(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    # A length of 4 has the most tokens per second.
    asked = []
    for _ in range(4000):
        player.plan(running)
        length = running[0].requested
        asked.append(length)
        one = running[0]
        one.proposed, one.accepted, one.emitted = length, min(4, length), min(4, length) + 1
        player.observe(running, 0.01 + 0.001 * length, 0.0)
    assert player.best == 4
    share = sum(length != 4 for length in asked[1000:]) / 3000
    assert share == pytest.approx(0.15 * 16 / 17, abs=0.03)


def test_epsilon_greedy_forgets_after_thirty_calls_in_a_row_that_are_thirty_percent_slower() -> None:
    player = EpsilonGreedy(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player)
    for seconds, calls in ((0.01, 200), (0.1, 29)):
        for _ in range(calls):
            _cycle(player, running, [0], seconds)
    # The mean follows by 0.05 a call: at the last of these the reward, 10, is still under 0.7 of it, 31 or more.
    assert player._low == 29
    _cycle(player, running, [0], 0.1)
    assert player._pulls == [0] * 17
    assert (player.best, player._cool_down) == (SINGLE.block_length, 50)


# Thompson


class Beta(np.random.Generator):
    """Gives the mean, and keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def beta(self, a: Any, b: Any, size: Any = None) -> Any:
        self.kept, self.lost = a, b
        return a / (a + b)


def test_thompson_counts_kept_and_lost_by_position_for_each_context_and_keeps_them_over_a_restart() -> None:
    player = Thompson()
    player.start(WORLD, None)
    running = _admitted(player)
    player.plan(running)
    one = running[0]
    one.drafter, one.requested = "learned", 3
    one.proposed, one.accepted = 2, 2
    player.observe(running, 0.01, 0.0)
    posterior = player.save()["chat", "en"]
    # Two of three asked were proposed and kept; the third counts as lost.
    random = Beta()
    emitted, proposed = posterior.drawn(random)
    assert random.kept[1, :4].tolist() == [2.0, 2.0, 1.0, 1.0]
    assert random.lost[1, :4].tolist() == [1.0, 1.0, 2.0, 1.0]
    assert (random.kept[0] == 1.0).all()
    assert (random.lost[0] == 1.0).all()
    assert emitted[1, :3].tolist() == pytest.approx([1 + 2 / 3, 1 + 2 / 3 + 4 / 9, 1 + 2 / 3 + 4 / 9 + 4 / 27])
    # 2 of 2 that were asked for; the third was asked for and not proposed: one half, with one block that nobody saw.
    assert proposed[1, :4].tolist() == pytest.approx([1.0, 2.0, 2.5, 3.5])
    player.start(WORLD, player.save())
    player.save()["chat", "en"].drawn(random)
    assert random.kept[1, 0] == 2.0
    player.start(WORLD, None)
    assert player.save() == {}


def test_thompson_finds_the_drafter_that_is_right_and_stops_where_none_is() -> None:
    for right, drafter in ((5, "learned"), (0, PLAIN)):
        player = Thompson()
        player.start(WORLD, None)
        chosen = []
        for _ in range(300):
            running = _admitted(player)
            for _ in range(4):
                player.plan(running)
                kept = right if running[0].drafter == "learned" else 0
                chosen.append(running[0].drafter)
                _cycle(player, running, [kept])
            player.finish(running[0])
        late = chosen[800:]
        assert late.count(drafter) > 0.8 * len(late)


def test_batchwise_controllers_ask_the_single_drafter_and_nobody_where_the_length_is_zero() -> None:
    class Two(Batchwise):
        name = "two"

        def begin(self, world: World) -> None:
            self.asked = 2

        def length(self, load: int) -> int:
            return self.asked

        def learn(self, running: list[Running], seconds: float) -> None:
            self.asked = 0

    player = Two(SINGLE)
    player.start(WORLD, None)
    running = _admitted(player, 3)
    assert _cycle(player, running, [1, 1, 1]) == [2, 2, 2]
    assert {one.drafter for one in running} == {"learned"}
    player.plan(running)
    assert {(one.drafter, one.requested) for one in running} == {(PLAIN, 0)}

"""The ledger keeps a life within its bound, whatever happens, and knows what is whose doing."""

import random
import timeit
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.allocate import Candidate, allocate
from policies.cycle_policy import INITIAL_CYCLE_POLICY, DraftCost, PassCost
from policies.ledger import (
    KEPT,
    NOTHING,
    RESERVE,
    CostTrust,
    Ledger,
    Turn,
    cycle_spare,
    drafting_seconds,
    lifts,
    settle,
    spare_if_asked,
    spare_seconds,
)

COST = PassCost((1, 4, 9, 16, 72), (0.010, 0.0105, 0.011, 0.014, 0.040), 0.0002, 1e-7)
LEARNED = DraftCost(call_seconds=0.0002, sequence_seconds=0.0001, step_seconds=0.0005, row_seconds=0.00003)
COSTS = {"learned": LEARNED, "ngram": DraftCost(0.0, 0.00002, 0.0, 0.0)}
PROMISED = 1.10


def serve(chance: random.Random, load: int, cycles: int, kept: float) -> list[tuple[Ledger, int]]:
    """Requests that begin and end at any time, and take all that they are given; (ledger, tokens) of those that ended.

    Of what is verified each draft is kept with probability `kept`, while everybody is told that it is 0.95.
    """
    survival = tuple(0.95**j for j in range(1, 13))
    running = [(Ledger(), [0]) for _ in range(load)]
    ended = []
    for _ in range(cycles):
        plain_seconds = COST.seconds(load, load, 300 * load)
        proposals = [chance.choice((0, 0, 4, 12)) for _ in running]
        spare = spare_seconds([(ledger, 0.0) for ledger, _ in running], plain_seconds, PROMISED)
        chosen = [Candidate(proposed, survival, forced=False) for proposed in proposals]
        verified = allocate(chosen, COST, 300 * load, 0.0, spare)
        turns = []
        for (ledger, tokens), proposed, rows in zip(running, proposals, verified, strict=True):
            accepted = next((place for place in range(rows) if chance.random() >= kept), rows)
            tokens[0] += accepted + 1
            turns.append(Turn(ledger, accepted + 1, rows, "free" if proposed else "", proposed, forced=False))
        settle(turns, COST, COSTS, 300 * load)
        ended += [(ledger, tokens[0]) for ledger, tokens in running if chance.random() < 0.03]
        running = [(ledger, tokens) for ledger, tokens in running if all(ledger is not gone for gone, _ in ended)]
        running += [(Ledger(), [0]) for _ in range(load - len(running))]
    return [*ended, *[(ledger, tokens[0]) for ledger, tokens in running]]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.sampled_from((0.0, 0.3, 0.9)))
def test_no_life_is_longer_than_the_bound_by_more_than_the_reserve_whenever_it_ends(
    seed: int, load: int, kept: float
) -> None:
    reserve = RESERVE * COST.seconds(load, load, 300 * load)
    bound = 1.0 + KEPT * (PROMISED - 1.0)
    for ledger, _ in serve(random.Random(seed), load, 120, kept):
        assert ledger.taken <= bound * max(ledger.plain, ledger.alone) + reserve + 1e-12


def test_a_request_of_two_dozen_tokens_keeps_what_is_promised_and_the_bound_is_used() -> None:
    lives = [each for seed in range(10) for each in serve(random.Random(seed), 6, 200, 0.5)]
    longer = [ledger.taken / max(ledger.plain, ledger.alone) for ledger, tokens in lives if tokens >= 26]
    assert max(longer) <= PROMISED
    assert max(longer) > 1.06


def test_a_request_that_gains_may_wait_longer_than_one_that_does_not() -> None:
    gained, silent = Ledger(), Ledger()
    settle([Turn(gained, 5, 4, "ngram", 4, False), Turn(silent, 1, 0, "", 0, False)], COST, COSTS, 0)
    spares = [spare_seconds([(each, 0.0)], 0.010, PROMISED) for each in (gained, silent)]
    assert spares[0] > spares[1] + 0.03
    assert spare_seconds([(gained, 0.0), (silent, 0.0)], 0.010, PROMISED) == spares[1]


def test_what_a_request_does_for_itself_is_not_its_neighbours_doing() -> None:
    unlucky, neighbour = Ledger(), Ledger()
    for _ in range(10):
        settle([Turn(unlucky, 1, 6, "learned", 6, False), Turn(neighbour, 1, 0, "", 0, False)], COST, COSTS, 0)
    drafting = LEARNED.seconds(1, 6, 6)
    assert unlucky.taken == neighbour.taken == pytest.approx(10 * (COST.seconds(8, 2, 0) + drafting))
    assert unlucky.alone == pytest.approx(unlucky.taken)
    assert neighbour.alone == neighbour.plain == pytest.approx(10 * COST.seconds(2, 2, 0))
    assert spare_seconds([(unlucky, 0.0)], 0.01, PROMISED) > 0.0 > spare_seconds([(neighbour, 0.0)], 0.01, PROMISED)


def test_what_is_forced_belongs_to_the_plain_cycle_and_what_is_beside_to_nobody() -> None:
    forced, free, silent = Ledger(), Ledger(), Ledger()
    turns = [
        Turn(forced, 1, 8, "learned", 8, True),
        Turn(free, 1, 2, "learned", 3, False),
        Turn(silent, 1, 0, "", 0, False),
    ]
    settle(turns, COST, COSTS, 0, left=[("ngram", 5)], shadow_seconds=0.004)
    plain = COST.seconds(11, 3, 0) + LEARNED.seconds(1, 8, 8)
    assert forced.plain == forced.alone == silent.alone == pytest.approx(plain)
    assert free.alone == pytest.approx(COST.seconds(13, 3, 0) + LEARNED.seconds(1, 8, 8) + LEARNED.seconds(1, 3, 3))
    taken = COST.seconds(13, 3, 0) + LEARNED.seconds(2, 8, 11) + COSTS["ngram"].seconds(1, 5, 5) + 0.004
    assert forced.taken == free.taken == silent.taken == pytest.approx(taken)


def test_all_that_one_drafter_is_asked_is_one_call() -> None:
    proposals = [("learned", 4), ("ngram", 12), ("learned", 0), ("unknown", 3)]
    assert drafting_seconds(proposals, COSTS) == LEARNED.seconds(2, 4, 4) + COSTS["ngram"].seconds(1, 12, 12)
    assert drafting_seconds([], COSTS) == 0.0


def test_a_cycle_is_settled_in_no_time() -> None:
    turns = [Turn(Ledger(), 2, 3, "learned", 4, False) for _ in range(8)]
    seconds = min(timeit.repeat(lambda: settle(turns, COST, COSTS, 2400), number=200, repeat=20)) / 200
    assert seconds < 100e-6  # about 10 on one core of its own


def trusted(load: int) -> CostTrust:
    """After as many passes without drafts as it takes."""
    trust = CostTrust()
    for _ in range(100):
        trust.count(load, 0, 0.010, 0.010)
    return trust


def test_while_nobody_has_measured_a_load_its_sequences_wait_for_nobody() -> None:
    ledgers = [(Ledger(), 0.0) for _ in range(8)]
    trust = CostTrust()
    assert trust.at(1) == 1.0
    assert spare_seconds(ledgers, 0.010, PROMISED, trust.at(8)) == 0.0
    spares = []
    for load in (8, 9, 7, 8) * 25:
        trust.count(load, 0, 0.010, 0.010)
        spares.append(spare_seconds(ledgers, 0.010, PROMISED, trust.at(8)))
    assert spares == sorted(spares)
    assert spares[-1] == spare_seconds(ledgers, 0.010, PROMISED)
    assert trust.at(16) == trust.at(4) == 0.0


def test_passes_with_drafts_do_not_say_what_those_without_take() -> None:
    trust = CostTrust()
    for _ in range(100):
        trust.count(8, 5, 0.012, 0.012)
    assert trust.at(8) == 0.0


@pytest.mark.parametrize("ratio", [1.3, 0.7])
def test_a_load_of_which_cycles_are_off_again_and_again_is_trusted_no_more(ratio: float) -> None:
    trust = trusted(8)
    for _ in range(20):
        trust.count(8, 12, ratio * 0.012, 0.012)
        trust.count(8, 40, 0.020, 0.020)  # many rows take what they took
    assert trust.at(8) == 0.0


def test_noise_and_stalls_and_short_bursts_take_no_trust_away() -> None:
    chance = random.Random(4)
    trust = trusted(8)
    for cycle in range(20_000):
        ratio = chance.lognormvariate(0.0, 0.05) * (1.2 if cycle % 90 < 10 else 1.0)
        trust.count(8, chance.choice((0, 4, 12)), 0.010 * ratio * (5.0 if chance.random() < 0.01 else 1.0), 0.010)
        assert trust.at(8) == 1.0


def test_cycles_that_are_late_one_after_another_are_waited_for_and_one_alone_is_an_accident() -> None:
    trust = trusted(8)
    assert trust.count(8, 4, 0.050, 0.010) == 0.0
    assert trust.count(8, 4, 0.012, 0.010) == pytest.approx(0.002)
    assert trust.count(8, 4, 0.050, 0.010) == pytest.approx(0.005)  # a stall counts as half a cycle at most
    assert trust.count(8, 4, 0.010, 0.010) == 0.0
    for _ in range(8):
        # Without drafts it is the machine's doing.
        assert trust.count(8, 0, 0.012, 0.010) == 0.0


def test_on_a_machine_that_others_use_too_a_load_becomes_trusted_and_stays_so() -> None:
    chance = random.Random(7)
    trust = CostTrust()
    drift = 1.0
    seen = []
    for _ in range(4_000):
        drift += 0.05 * (1.0 - drift) + 0.02 * chance.gauss(0.0, 1.0)
        trust.count(8, chance.choice((0, 4, 12)), 0.010 * drift * chance.lognormvariate(0.0, 0.10), 0.010)
        seen.append(trust.at(8))
    assert seen[600] == 1.0
    assert sum(seen[600:]) / len(seen[600:]) > 0.95


def test_tokens_of_those_who_hold_the_others_up_count_for_more_and_of_nobody_once_all_are_ahead() -> None:
    behind, near, ahead = Ledger(), Ledger(), Ledger()
    near.enter(0.001, 0.002, 0.0)
    ahead.enter(0.100, 0.010, 0.010)
    policy = replace(INITIAL_CYCLE_POLICY, cost=COST)
    least, more, none = lifts([behind, near, ahead], policy, 2400)
    assert least > more > none == 1.0
    assert lifts([ahead, ahead, ahead], policy, 2400) == [1.0, 1.0, 1.0]
    assert lifts([behind], policy, 800) == [1.0]
    assert lifts([behind, ahead], INITIAL_CYCLE_POLICY, 800) == [1.0, 1.0]


@pytest.mark.parametrize("verified", [0, 6])
def test_what_a_shape_that_is_seldom_run_is_said_to_take_is_no_more_than_a_cycle_of_it_and_more(verified: int) -> None:
    """A model that has three sequences take half as long again without drafts as with them."""
    wrong = PassCost((1, 3, 9, 72), (0.010, 0.018, 0.012, 0.040), 0.0002, 0.0)
    drafting, silent = Ledger(), Ledger()
    turns = [Turn(drafting, 1, verified, "free", 6, False), *[Turn(silent, 1, 0, "", 0, False) for _ in range(2)]]
    for _ in range(20):
        settle(turns, wrong, {}, 0)
    assert silent.plain <= silent.taken * (1.0 + 1e-12)
    assert drafting.alone <= drafting.taken * (1.0 + 1e-12)


def test_where_costs_are_not_known_yet_nobody_drafts_however_far_ahead_all_are() -> None:
    ahead = [Ledger() for _ in range(8)]
    for ledger in ahead:
        ledger.enter(1.0, 0.1, 0.1)
    policy = replace(INITIAL_CYCLE_POLICY, cost=COST)
    asked = spare_if_asked([(ledger, "free") for ledger in ahead], policy, 2400, 0.0)
    assert cycle_spare([(ledger, NOTHING) for ledger in ahead], policy, 2400, 0.0) < 0.0
    assert asked([0] * 8) == asked([4] * 8) < 0.0
    half, full = (cycle_spare([(ledger, NOTHING) for ledger in ahead], policy, 2400, trust) for trust in (0.5, 1.0))
    assert 0.0 < half < 0.6 * full


def test_neither_what_is_forced_nor_what_has_an_objective_is_lifted() -> None:
    free = Candidate(2, (0.8, 0.4), forced=False)
    assert free.lifted(1.5).survival == pytest.approx((1.2, 0.6))
    assert free.lifted(1.0) is free
    for other in (replace(free, forced=True), replace(free, tpot_limit=0.02)):
        assert other.lifted(1.5) is other

"""The simulator against a direct recomputation of what a run emitted and took."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cycle_policy import PassCost
from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tests.tuner.replay.restless import Restless
from tests.tuner.replay.small_traces import STEPPED_COSTS, small_trace
from tuner.replay.baselines.fixed import Fixed
from tuner.replay.fixed_play import FixedRuns
from tuner.replay.played import WINDOW_REQUESTS, Played, account
from tuner.replay.player import Running, Shadowed, Told, World
from tuner.replay.reblock import Reblocked
from tuner.replay.simulate import play, simulate
from tuner.replay.trace import Costs, Trace

SEEDS = st.integers(0, 1_000_000)
SLOWER = Costs(
    PassCost((1, 8, 40), (0.02, 0.03, 0.05), 0.0003, 3e-6),
    {name: replace(cost, call_seconds=0.001) for name, cost in STEPPED_COSTS.drafters.items()},
)


def changing(trace: Trace) -> Trace:
    """A trace whose costs change under way."""
    return replace(trace, later_costs=((20, SLOWER), (45, trace.costs)))


def same(one: Played, other: Played) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(Played))


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_every_block_is_what_the_trace_says_of_it_whatever_was_asked(seed: int) -> None:
    trace, player = small_trace(seed), Restless(seed)
    play(trace, player, seed)
    reached = Counter[int]()
    for row in (row for cycle in player.cycles for row in cycle):
        request, position = trace.requests[row.request], reached[row.request]
        left = request.output_tokens - position
        if row.drafter == PLAIN or row.requested == 0:
            assert (row.requested, row.proposed, row.verified, row.accepted, row.emitted) == (0, 0, 0, 0, 1)
        else:
            draft = request.drafts[row.drafter]
            assert row.requested <= left - 1
            assert row.proposed == min(row.requested, draft.offered[position])
            assert row.accepted == min(row.verified, draft.kept[position])
            assert row.emitted == row.accepted + 1 <= left
        reached[row.request] += row.emitted
    assert [reached[index] for index in range(len(trace.requests))] == [one.output_tokens for one in trace.requests]
    assert sorted(player.finished) == list(range(len(trace.requests)))


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_the_accounts_are_those_of_a_direct_recomputation(seed: int) -> None:
    trace, player = changing(small_trace(seed)), Restless(seed)
    outcome = simulate(trace, player, seed)
    costs_from = {0: trace.costs, **dict(trace.later_costs)}
    begun = {request: cycle for cycle, request, _ in player.admitted}
    reached = Counter[int]()
    life, plain_of, alone_of, share, plain_share = (defaultdict[int, float](float) for _ in range(5))
    totals: list[float] = []
    plains: list[float] = []
    ends: list[int] = []
    for number, cycle in enumerate(player.cycles):
        costs = costs_from[max(request for request in costs_from if request == 0 or begun[request] <= number)]
        load = len(cycle)
        kv_tokens = sum(trace.requests[row.request].prompt_tokens + 1 + reached[row.request] for row in cycle)
        seconds = costs.target.seconds(load + sum(row.verified for row in cycle), load, kv_tokens)
        for name in trace.drafters:
            asked = [row.proposed for row in cycle if row.drafter == name and row.requested > 0]
            seconds += costs.drafters[name].seconds(len(asked), max(asked, default=0), sum(asked))
        plain = costs.target.seconds(load, load, kv_tokens)
        for row in cycle:
            alone = costs.target.seconds(load + row.verified, load, kv_tokens)
            if row.requested:
                alone += costs.drafters[row.drafter].seconds(1, row.proposed, row.proposed)
            reached[row.request] += row.emitted
            life[row.request] += seconds
            plain_of[row.request] += row.emitted * plain
            alone_of[row.request] += alone
            share[row.request] += seconds / load
            plain_share[row.request] += row.emitted * plain / load
            if reached[row.request] == trace.requests[row.request].output_tokens:
                ends.append(number)
        totals.append(seconds)
        plains.append(sum(row.emitted for row in cycle) * plain / load)
    count = len(trace.requests)
    assert outcome.seconds == pytest.approx(sum(totals))
    assert outcome.request_seconds == pytest.approx([share[index] for index in range(count)])
    assert outcome.request_plain_seconds == pytest.approx([plain_share[index] for index in range(count)])
    assert outcome.worst_neighbour == pytest.approx(
        max(life[index] / max(plain_of[index], alone_of[index]) for index in range(count))
    )
    assert count < WINDOW_REQUESTS, "then the one window is the whole run"
    assert outcome.worst_window_percent == pytest.approx(100.0 * (sum(totals) / sum(plains) - 1.0))


def test_the_worst_window_is_the_worst_of_all_500_consecutive_finished_requests() -> None:
    trace = small_trace(5, requests=700)
    bad = replace(trace, later_costs=((350, replace(SLOWER, target=trace.costs.target)),))
    player = Fixed("learned", 8)
    played = play(bad, player, 1)
    outcome = account(bad, played)
    load = [len(rows) for rows in _rows(bad, played)]
    ends = sorted((played.first_cycle + played.cycle_count).tolist())
    per_cycle = _cycle_seconds(bad, played, load)
    plain = _plain_seconds(bad, played, load)
    losses = []
    bounds = [0, *ends]
    for first, last in zip(bounds[:-500], bounds[500:], strict=True):
        if last > first:
            losses.append(sum(per_cycle[first:last]) / sum(plain[first:last]) - 1.0)
    assert outcome.worst_window_percent == pytest.approx(100.0 * max(losses))
    assert max(losses) > min(losses)


def _rows(trace: Trace, played: Played) -> list[list[tuple[int, int, int, int, int]]]:
    """By cycle: (request, position, proposed, verified, emitted)."""
    cycles: list[list[tuple[int, int, int, int, int]]] = [[] for _ in played.shadow_seconds]
    at = 0
    for request, (first, count) in enumerate(zip(played.first_cycle, played.cycle_count, strict=True)):
        position = 0
        for cycle in range(first, first + count):
            cycles[cycle].append(
                (request, position, int(played.proposed[at]), int(played.verified[at]), int(played.emitted[at]))
            )
            position += int(played.emitted[at])
            at += 1
    return cycles


def _cycle_seconds(trace: Trace, played: Played, load: Sequence[int]) -> list[float]:
    seconds = []
    for cycle, rows in enumerate(_rows(trace, played)):
        costs = SLOWER if cycle >= played.first_cycle[350] else trace.costs
        kv_tokens = sum(trace.requests[request].prompt_tokens + 1 + position for request, position, *_ in rows)
        target = trace.costs.target.seconds(load[cycle] + sum(row[3] for row in rows), load[cycle], kv_tokens)
        asked = [row[2] for row in rows if row[1] < trace.requests[row[0]].output_tokens - 1]
        seconds.append(target + costs.drafters["learned"].seconds(len(asked), max(asked, default=0), sum(asked)))
    return seconds


def _plain_seconds(trace: Trace, played: Played, load: Sequence[int]) -> list[float]:
    plain = []
    for cycle, rows in enumerate(_rows(trace, played)):
        kv_tokens = sum(trace.requests[request].prompt_tokens + 1 + position for request, position, *_ in rows)
        one = trace.costs.target.seconds(load[cycle], load[cycle], kv_tokens)
        plain.append(one * sum(row[4] for row in rows) / load[cycle])
    return plain


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from(("copy", "learned", PLAIN)), st.integers(0, 16))
def test_a_fixed_run_is_what_the_loop_gives_for_a_player_that_does_that(seed: int, drafter: str, length: int) -> None:
    trace = changing(small_trace(seed, loads=(3, 1, 5)))
    assert same(FixedRuns(Reblocked(trace)).play(drafter, length), play(trace, Fixed(drafter, length), seed))


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_fixed_runs_may_have_another_arm_for_each_request(seed: int) -> None:
    trace = small_trace(seed)
    arms = [(("copy", 4), ("learned", 2), (PLAIN, 0))[index % 3] for index in range(len(trace.requests))]

    class ByRequest(Fixed):
        def admit(self, one: Running, load: int) -> None:
            one.drafter, one.cap = arms[one.index]

        def plan(self, running: list[Running]) -> None:
            for one in running:
                one.requested = one.cap

    assert same(FixedRuns(Reblocked(trace)).play_arms(arms), play(trace, ByRequest(PLAIN, 0), seed))


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_as_many_sequences_run_together_as_the_trace_says(seed: int, loads: list[int]) -> None:
    trace, player = small_trace(seed, loads=loads), Restless(seed)
    play(trace, player, seed)
    assert [request for _, request, _ in player.admitted] == list(range(len(trace.requests)))
    for (cycle, request, load), running in zip(player.admitted, trace.loads, strict=True):
        assert load <= running
        if cycle and request + 1 < len(trace.requests):
            later = [at for at, other, _ in player.admitted if other > request]
            assert min(later) >= cycle
    for cycle, rows in enumerate(player.cycles):
        admitted = [request for at, request, _ in player.admitted if at <= cycle]
        following = len(admitted)
        if following < len(trace.requests):
            assert len(rows) >= trace.loads[following], "a place was left empty while a request waited"


def test_the_same_seed_gives_the_same_run_and_another_one_other_measurements() -> None:
    trace = replace(small_trace(3), seconds_sd=0.03, stall_share=0.05, stall_factor=5.0)
    first, again, other = Restless(1), Restless(1), Restless(1)
    assert same(play(trace, first, 8), play(trace, again, 8))
    play(trace, other, 9)
    assert first.told_seconds == again.told_seconds
    assert first.told_seconds != other.told_seconds
    assert first.cycles == other.cycles, "noise is of what is told, not of what happens"


def test_what_is_told_is_noisy_by_as_much_as_the_trace_says() -> None:
    quiet, noisy = Restless(1), Restless(1)
    trace = small_trace(3, requests=400)
    play(trace, quiet, 8)
    play(replace(trace, seconds_sd=0.03, stall_share=0.02, stall_factor=5.0), noisy, 8)
    factors = np.array(noisy.told_seconds) / np.array(quiet.told_seconds)
    stalled = factors > 2.0
    assert 0.01 < stalled.mean() < 0.03
    assert np.log(factors[~stalled]).std() == pytest.approx(0.03, rel=0.1)


class Watching(Fixed):
    """Plain, or one arm of which nothing is verified, with drafters that propose beside everybody."""

    def __init__(self, shadows: tuple[str, ...], length: int, own: tuple[str, int] = (PLAIN, 0)) -> None:
        super().__init__(*own)
        self.shadows, self.length = shadows, length
        self.told: list[Shadowed] = []
        self.spent = 0.0
        self.drafting = 0.0

    def admit(self, one: Running, load: int) -> None:
        super().admit(one, load)
        one.shadows, one.shadow_length = self.shadows, self.length

    def verify(self, running: list[Running]) -> None:
        for one in running:
            one.verified = 0

    def watch(self, told: Told) -> None:
        self.told += told.shadows
        self.spent += told.shadow_seconds + told.copying_seconds
        self.drafting += sum(told.draft_seconds.values())


class Copying(Watching):
    """Asks one drafter before each plan, and takes what it offers in some cycles."""

    def __init__(self, copier: str, take_share: float) -> None:
        super().__init__((), MAX_BLOCK_LENGTH)
        self.copier, self.take_share = copier, take_share
        self.random = random.Random(5)
        self.asked: list[tuple[int, int]] = []
        """(sequences, drafts) of each cycle."""

    def ask(self, running: list[Running]) -> None:
        for one in running:
            one.copier = self.copier

    def plan(self, running: list[Running]) -> None:
        for one in running:
            one.drafter, one.requested = PLAIN, 0
            if one.copied and self.random.random() < self.take_share:
                one.drafter, one.requested = self.copier, MAX_BLOCK_LENGTH
        self.asked.append((len(running), sum(one.copied for one in running)))


def _blocks(trace: Trace, drafter: str, length: int) -> dict[int, list[tuple[int, int]]]:
    """(proposed, accepted) of each block of a fixed run that asks for something, by request."""
    played = FixedRuns(Reblocked(trace)).play(drafter, length)
    blocks: dict[int, list[tuple[int, int]]] = {}
    at = 0
    for request, count in enumerate(played.cycle_count):
        rows = slice(at, at + count)
        asked = played.drafter[rows] > 0
        blocks[request] = list(
            zip(played.proposed[rows][asked].tolist(), (played.emitted[rows][asked] - 1).tolist(), strict=True)
        )
        at += count
    return blocks


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 16))
def test_shadows_beside_plain_sequences_tell_what_blocks_would_have_done(seed: int, length: int) -> None:
    trace, player = small_trace(seed), Watching(("learned", "copy"), length)
    played = play(trace, player, seed)
    for name in ("learned", "copy"):
        told: dict[int, list[tuple[int, int]]] = {request: [] for request in range(len(trace.requests))}
        for shadow in player.told:
            if shadow.drafter == name:
                told[shadow.one.index].append((shadow.proposed, shadow.matched))
        assert told == _blocks(trace, name, length)
    assert player.spent > 0.0
    assert played.shadow_seconds.sum() == pytest.approx(player.spent)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 16))
def test_proposals_of_which_nothing_is_verified_tell_the_same(seed: int, length: int) -> None:
    trace, player = small_trace(seed), Watching((), length, ("learned", length))
    played = play(trace, player, seed)
    told: dict[int, list[tuple[int, int]]] = {request: [] for request in range(len(trace.requests))}
    for shadow in player.told:
        told[shadow.one.index].append((shadow.proposed, shadow.matched))
    assert told == _blocks(trace, "learned", length)
    assert played.shadow_seconds.sum() == 0.0
    assert player.drafting > 0.0


def test_copied_proposals_that_are_not_taken_tell_what_blocks_would_have_done() -> None:
    trace, player = small_trace(3), Copying("copy", 0.0)
    play(trace, player, 3)
    told: dict[int, list[tuple[int, int]]] = {request: [] for request in range(len(trace.requests))}
    for shadow in player.told:
        told[shadow.one.index].append((shadow.proposed, shadow.matched))
    wanted = _blocks(trace, "copy", MAX_BLOCK_LENGTH)
    # Before the last token nothing can be used, but the drafter is asked all the same.
    assert {index: blocks[: len(wanted[index])] for index, blocks in told.items()} == wanted
    assert not any(matched for index, blocks in told.items() for _, matched in blocks[len(wanted[index]) :])


@pytest.mark.parametrize("take_share", [0.0, 0.5, 1.0])
def test_all_that_a_copier_is_asked_in_a_cycle_costs_one_call_of_it(take_share: float) -> None:
    trace, player = small_trace(3), Copying("copy", take_share)
    play(trace, player, 3)
    price = trace.costs.drafters["copy"]
    assert (player.drafting > 0.0) is (take_share > 0.0)
    assert player.spent > 0.0  # the silent ones
    assert price.step_seconds == 0.0
    assert player.drafting + player.spent == pytest.approx(
        sum(price.seconds(sequences, 0, drafts) for sequences, drafts in player.asked)
    )


def test_shadows_make_cycles_longer_and_no_text_shorter() -> None:
    trace = small_trace(2)
    without, with_them = simulate(trace, Fixed(PLAIN, 0), 1), simulate(trace, Watching(("learned",), 8), 1)
    assert with_them.seconds == pytest.approx(without.seconds + with_them.shadow_seconds)
    assert with_them.shadow_seconds > 0.0


def test_a_restart_gives_back_what_was_saved_and_admits_what_runs_again() -> None:
    trace = replace(small_trace(4), restarts=(25,))
    player = Restless(1)
    play(trace, player, 1)
    assert player.memories[0] is None
    assert player.memories[1] == next(cycle for cycle, request, _ in player.admitted if request == 25)
    twice = [request for request, count in Counter(request for _, request, _ in player.admitted).items() if count == 2]
    assert twice
    assert max(twice) < 25
    forgetful = Restless(1)
    play(replace(trace, keeps_memory=False), forgetful, 1)
    assert forgetful.memories == [None, None]


def test_a_player_that_verifies_more_than_was_proposed_is_told_so() -> None:
    class Greedy(Fixed):
        def verify(self, running: list[Running]) -> None:
            running[0].verified = running[0].proposed + 1

    with pytest.raises(ValueError, match=r"^learned:4 verifies \d+ drafts of \d+ that were proposed$"):
        play(small_trace(1), Greedy("learned", 4), 1)


def test_a_player_that_names_a_drafter_that_is_not_there_is_told_so() -> None:
    with pytest.raises(ValueError, match=r"^eagle:4 asks 'eagle', which is none of copy, learned$"):
        play(small_trace(1), Fixed("eagle", 4), 1)


def test_a_controller_is_told_the_calibration_and_not_the_truth() -> None:
    class Curious(Fixed):
        def start(self, world: World, memory: Any) -> None:
            self.world = world

    player = Curious(PLAIN, 0)
    play(replace(small_trace(1), calibrated=SLOWER), player, 7)
    assert player.world.calibrated == SLOWER
    assert player.world.seed == 7


@pytest.mark.parametrize("beside", ["shadow", "copier"])
def test_what_proposes_beside_a_request_must_be_a_drafter_too(beside: str) -> None:
    class Copying(Fixed):
        def ask(self, running: list[Running]) -> None:
            for one in running:
                one.copier = PLAIN

    player = Watching((PLAIN,), 4) if beside == "shadow" else Copying("learned", 4)
    with pytest.raises(ValueError, match=r"^'none' is to propose beside a request, which is none of copy, learned$"):
        play(small_trace(1), player, 1)

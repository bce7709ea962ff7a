"""The oracle against every choice that there is, and against every fixed arm."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from policies.cycle_policy import PassCost
from tests.tuner.replay.small_traces import STEPPED_COSTS, small_trace
from tuner.replay.composition import Choice, Composer
from tuner.replay.fixed_play import FixedRuns
from tuner.replay.oracle import Oracle, Truth
from tuner.replay.played import account
from tuner.replay.player import Running
from tuner.replay.reblock import BlockTables, Reblocked
from tuner.replay.simulate import simulate
from tuner.replay.trace import Costs, Trace


def _tables(trace: Trace) -> BlockTables:
    places: dict[tuple[str, str], int] = {}
    cells = [places.setdefault((one.route, one.language), len(places)) for one in trace.requests]
    return Reblocked(trace).tables(np.array(cells), len(places))


def _rate(
    trace: Trace, tables: BlockTables, costs: Costs, cells: tuple[int, ...], choices: tuple[Choice, ...], kv_tokens: int
) -> float:
    """Tokens per second, by adding up every combination of proposals."""
    emitted, chances = tables.emitted, tables.chances
    tokens = sum(emitted[cell, place, length] for cell, (place, length) in zip(cells, choices, strict=True))
    seconds = 0.0
    each = [
        [(drafts, chance) for drafts, chance in enumerate(chances[cell, place, length]) if chance > 0.0]
        for cell, (place, length) in zip(cells, choices, strict=True)
    ]
    for combination in itertools.product(*each):
        chance = float(np.prod([share for _, share in combination]))
        total = sum(drafts for drafts, _ in combination)
        took = costs.target.seconds(len(cells) + total, len(cells), kv_tokens)
        for place, drafter in enumerate(trace.drafters):
            own = [
                drafts
                for (drafts, _), (used, length) in zip(combination, choices, strict=True)
                if used == place and length
            ]
            if own:
                took += costs.drafters[drafter].seconds(len(own), max(own), sum(own))
        seconds += chance * took
    return float(tokens) / seconds


@pytest.mark.parametrize("seed", range(6))
def test_no_choice_for_up_to_three_sequences_beats_the_composers_by_a_thousandth(seed: int) -> None:
    generator = random.Random(seed)
    trace = small_trace(
        seed,
        most=4,
        right={
            route: {"copy": generator.uniform(0.1, 0.95), "learned": generator.uniform(0.1, 0.9)}
            for route in ("chat", "code")
        },
    )
    costs = STEPPED_COSTS if seed % 2 else replace(STEPPED_COSTS, target=PassCost((1, 40), (0.01, 0.02), 0.0, 1e-6))
    tables = _tables(trace)
    composer = Composer(tables, costs, trace.drafters, 3)
    arms = [(0, 0), *((place, length) for place in (0, 1) for length in range(1, 5))]
    for count in (1, 2, 3):
        cells = tuple(generator.randrange(4) for _ in range(count))
        found = _rate(trace, tables, costs, cells, composer.choose(cells, 100 * count), 100 * count)
        best = max(
            _rate(trace, tables, costs, cells, choices, 100 * count)
            for choices in itertools.product(arms, repeat=count)
        )
        assert found >= best * 0.999


def test_among_many_sequences_no_other_choice_for_one_of_them_gains_a_thousandth() -> None:
    trace = small_trace(11, requests=120)
    tables = _tables(trace)
    composer = Composer(tables, STEPPED_COSTS, trace.drafters, 16)
    generator = random.Random(3)
    cells = tuple(generator.randrange(4) for _ in range(16))
    choices = composer.choose(cells, 3000)

    def rate(tried: tuple[Choice, ...]) -> float:
        drafts = np.ones(1)
        tokens, draft_seconds = 0.0, 0.0
        for place, drafter in enumerate(trace.drafters):
            users = [
                (cell, length) for cell, (used, length) in zip(cells, tried, strict=True) if used == place and length
            ]
            if users:
                below = np.prod([tables.chances[cell, place, length].cumsum() for cell, length in users], axis=0)
                rows = sum(float(tables.chances[cell, place, length] @ np.arange(17)) for cell, length in users)
                draft_seconds += STEPPED_COSTS.drafters[drafter].seconds(len(users), (1.0 - below).sum(), rows)
        for cell, (place, length) in zip(cells, tried, strict=True):
            drafts = np.convolve(drafts, tables.chances[cell, place, length])
            tokens += float(tables.emitted[cell, place, length])
        passes = [STEPPED_COSTS.target.seconds(16 + total, 16, 3000) for total in range(len(drafts))]
        return tokens / (float(drafts @ passes) + draft_seconds)

    present = rate(choices)
    for index, place in itertools.product(range(16), (0, 1)):
        for length in range(17):
            assert rate((*choices[:index], (place, length), *choices[index + 1 :])) <= present * 1.001


def test_the_oracle_takes_less_than_every_fixed_arm() -> None:
    trace = small_trace(5, requests=400, loads=(1, 2, 4, 8), hold=40)
    truth = Truth(trace)
    oracle = simulate(trace, Oracle(truth), 0).seconds
    runs = FixedRuns(Reblocked(trace))
    fixed = [account(trace, runs.play(drafter, length)).seconds for drafter in trace.drafters for length in range(17)]
    assert oracle < min(fixed) * 0.99


def test_the_oracle_follows_a_change_of_the_costs_from_the_request_on_that_it_comes_with() -> None:
    trace = small_trace(6, requests=200, loads=(2,))
    dear = replace(STEPPED_COSTS, target=PassCost((1, 2, 3, 40), (0.010, 0.010, 0.030, 0.80), 0.0002, 1e-6))
    changing = replace(trace, later_costs=((100, dear),))
    lengths: dict[bool, set[int]] = {False: set(), True: set()}

    class Watched(Oracle):
        def plan(self, running: list[Running]) -> None:
            super().plan(running)
            indices = [one.index for one in running]
            lengths[max(indices) >= 100].add(sum(one.requested for one in running))

    simulate(changing, Watched(Truth(changing)), 0)
    assert max(lengths[False]) > 4
    assert lengths[True] <= {0, 1}


def test_a_phase_ends_where_the_trace_says_that_something_changed() -> None:
    trace = replace(small_trace(7, requests=100), changes=(30,))
    truth = Truth(trace)
    assert not set(truth.cell_of[:30].tolist()) & set(truth.cell_of[30:].tolist())
    assert truth.cells == 8

"""A fleet whose truth is known: what is chosen comes to the better column, and nobody loses more than promised."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from policies.types import PLAIN, PLAIN_ARM, Mode, Reason
from tests.tuner.fleet.pools.simulated_fleet import (
    LOADS,
    NGRAM_RATES,
    PLAIN_RATES,
    Fleet,
    Served,
    ngram_upstream,
    plain_upstream,
    slowest_window,
    table_seconds,
    tokens_per_second,
    two_in_one,
)
from tuner.decider import RouteModes
from tuner.fleet.pools.lanes import Alias
from tuner.fleet.pools.options import FleetOptions
from tuner.fleet.types import Asked
from tuner.learning import ChangeKind

ROUTES = tuple(PLAIN_RATES)
MOST = 1.02
"""What a window of 500 requests of a route may take over plain."""


def options(seed: int, mode: Mode = Mode.AUTO) -> FleetOptions:
    return FleetOptions(
        "m",
        frozenset(ROUTES),
        RouteModes({}, mode, {}, PLAIN_ARM, 0.1),
        seed=seed,
        recompute_seconds=6.0,
        aliases={"a": [Alias("fast", "ngram", 5)]},
    )


def learned_shares(served: list[Served]) -> Counter[tuple[str, str]]:
    return Counter((one.route, one.drafter) for one in served if one.reason == Reason.LEARNED)


def play_table(seed: int, rounds: int) -> tuple[Fleet, dict[tuple[str, int], Counter[str]]]:
    """Every cell of the design's table in turns; what was chosen in the last round, after its first quarter."""
    fleet = Fleet([two_in_one("a")], options(seed), seed)
    chosen: dict[tuple[str, int], Counter[str]] = {}
    for turn in range(rounds):
        for load in LOADS:
            alone = [[route] for route in ROUTES]
            for clients in alone if load == 1 else [[ROUTES[each % 4] for each in range(load)]]:
                fleet.set_clients(clients)
                served = fleet.run(60 if load == 1 else 400)
                for one in served[len(served) // 4 :]:
                    if turn == rounds - 1 and one.reason == Reason.LEARNED:
                        chosen.setdefault((one.route, load), Counter())[one.drafter] += 1
    assert fleet.chooser.faults == 0
    return fleet, chosen


def gain_of_table(route: str, load: int) -> float:
    return NGRAM_RATES[route][LOADS.index(load)] / PLAIN_RATES[route][LOADS.index(load)]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_every_cell_comes_to_the_better_column_and_no_window_loses_more_than_promised(seed: int) -> None:
    fleet, chosen = play_table(seed, 3)
    assert set(chosen) == {(route, load) for route in ROUTES for load in LOADS}
    right = 0
    for (route, load), counts in chosen.items():
        gain = gain_of_table(route, load)
        if abs(gain - 1.0) > 0.08:  # what is within a few percent takes longer to be told apart
            better = "ngram" if gain > 1.0 else PLAIN
            assert counts[better] >= 0.8 * counts.total(), (route, load)
        right += counts["ngram" if gain > 1.0 else PLAIN]
    assert right >= 0.95 * sum(counts.total() for counts in chosen.values())
    assert max(slowest_window(fleet.served).values()) <= MOST
    policy = fleet.controller.snapshot.policies["edit", "en"]
    assert policy.arm.block_length(1) == policy.arm.block_length(4) == 5
    speedup = policy.evidence.speedup
    assert speedup is not None
    assert speedup.low > 1.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_windows_keep_their_promise_over_seeds() -> None:
    worst = [max(slowest_window(play_table(seed, 2)[0].served).values()) for seed in range(10, 20)]
    assert sum(each > MOST for each in worst) <= 1, worst
    assert max(worst) <= MOST + 0.01


def play_pools(seed: int, mode: Mode = Mode.AUTO, place: Callable[[Asked], str] | None = None) -> list[float]:
    """Tokens per second of two pools at loads that move, the second time that they come."""
    fleet = Fleet([plain_upstream("p"), ngram_upstream("n")], options(seed, mode), seed, place=place)
    found = []
    for turn in range(2):
        for clients in (2, 8, 16, 32):
            # One route that gains for each that does not.
            fleet.set_clients([("edit", "chat")[each % 2] for each in range(clients)])
            served = fleet.run(400)
            if turn:
                found.append(tokens_per_second(served[100:]))
    assert fleet.chooser.faults == 0
    return found


def test_the_pools_beat_each_single_pool_and_least_loaded_routing() -> None:
    ours = play_pools(1)
    for other in (
        play_pools(1, Mode.OBSERVE),  # least loaded, with affinity
        play_pools(1, place=lambda asked: "p"),
        play_pools(1, place=lambda asked: "n"),
    ):
        assert sum(ours) > 1.05 * sum(other)
        assert all(mine > 0.97 * theirs for mine, theirs in zip(ours, other, strict=True))


def test_a_replica_that_gets_slow_loses_its_traffic() -> None:
    fleet = Fleet([plain_upstream("p"), plain_upstream("q"), ngram_upstream("n")], options(1), 1)
    fleet.set_clients(list(ROUTES) * 3)
    before = Counter(one.lane for one in fleet.run(1200)[400:])
    assert before["q"] > 0.15 * before.total()
    fleet.slow["q"] = 2.5
    fleet.run(300)
    after = Counter(one.lane for one in fleet.run(600))
    assert after["q"] < 0.4 * before["q"] / before.total() * after.total()
    assert [change.kind for change in fleet.controller.take_found_changes()] == [ChangeKind.COST]


def test_an_upstream_that_restarts_with_another_model_is_not_trusted_for_what_it_was() -> None:
    def truth(route: str, drafter: str, load: float) -> float:
        return table_seconds(route, drafter, load) * (4.0 if restarted and drafter != PLAIN else 1.0)

    restarted = False
    fleet = Fleet([plain_upstream("p"), ngram_upstream("n")], options(2), 2, truth=truth)
    fleet.set_clients(["edit", "edit", "chat", "chat"])
    assert learned_shares(fleet.run(600))["edit", "ngram"] > 100
    restarted = True
    fleet.controller.set_upstreams([plain_upstream("p"), replace(ngram_upstream("n"), models=("other", "m"))])
    first = len(fleet.served)
    fleet.run(60)
    later = fleet.run(1000)
    assert learned_shares(later)["edit", "ngram"] < 0.05 * sum(one.route == "edit" for one in later)
    # What was under way when it restarted is nobody's choice.
    assert max(slowest_window(fleet.served[first + 60 :], 200).values()) <= MOST + 0.02
    assert ChangeKind.VERSION in [change.kind for change in fleet.controller.take_found_changes()]


@pytest.mark.slow
def test_report_12_a_gate_that_closed_opens_again_when_drafts_are_kept_again() -> None:
    def truth(route: str, drafter: str, load: float) -> float:
        good = recovered or drafter == PLAIN
        return table_seconds(route, drafter, load) * (1.0 if good else 4.5)

    recovered = False
    fleet = Fleet([two_in_one("a")], options(3), 3, truth=truth)
    fleet.set_clients(["edit", "edit"])
    assert learned_shares(fleet.run(800)[400:])["edit", "ngram"] == 0
    recovered = True
    fleet.run(6000)
    last = fleet.run(400)
    assert learned_shares(last)["edit", "ngram"] > 200


def test_a_new_language_starts_from_what_its_route_does() -> None:
    fleet = Fleet([two_in_one("a")], options(4), 4)
    fleet.set_clients(["edit", "chat", "edit", "chat"])
    fleet.run(800)
    fleet.language = "da"
    fleet.run(4)
    # Before it is known by itself, requests are said to explore, whether they try something or not.
    explored = [one for one in fleet.run(20) if one.reason == Reason.EXPLORE]
    first = Counter((one.route, one.drafter) for one in explored)
    assert first["edit", "ngram"] > 2 * first["edit", PLAIN]


def test_report_5_a_load_that_swings_about_an_edge_does_not_make_versions() -> None:
    fleet = Fleet([two_in_one("a")], options(5), 5)
    for turn in range(12):
        fleet.set_clients(["chat"] * (3 if turn % 2 else 5))
        fleet.run(120)
    versions = fleet.controller.snapshot.policies["chat", "en"].version
    assert versions <= 10


def test_report_8_two_routes_of_opposite_character_have_gates_of_their_own() -> None:
    fleet = Fleet([two_in_one("a")], options(6), 6)
    fleet.set_clients(["edit", "story"] * 4)
    shares = learned_shares(fleet.run(1200)[600:])
    assert shares["edit", "ngram"] > 10 * max(1, shares["edit", PLAIN])
    assert shares["story", PLAIN] > 10 * max(1, shares["story", "ngram"])


def test_failing_drafts_send_the_route_to_plain_and_fail_few_requests_more() -> None:
    fleet = Fleet([two_in_one("a")], options(7), 7)
    fleet.set_clients(["edit"] * 4)
    fleet.run(300)
    fleet.failing["a/ngram"] = 1.0
    fleet.run(300)
    assert fleet.controller.fleet.guards["edit"].reason is Reason.GUARDRAIL_ERRORS
    after = fleet.run(200)
    assert sum(one.drafter != PLAIN for one in after) < 40

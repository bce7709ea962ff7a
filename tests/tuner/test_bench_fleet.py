"""The scenario `fleet` of bench, without a vLLM: launches by their names, figures over launches, what it refuses."""

import math
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tuner.bench.fleet import Measured, fleet_launches
from tuner.bench.fleet_load import FleetRound, loops
from tuner.bench.options import BenchOptions
from tuner.bench.runner import run_bench
from tuner.bench.vllm_server import MAX_SEQUENCES, VllmError, VllmLaunch, vllm_environment
from tuner.settings import Settings, SettingsError

ARMS = ("plain", "ngram:5")
OPTIONS = BenchOptions(scenario="fleet", routes=("chat",), concurrency=(1,), arms=ARMS, repeats=1)


def measured(rates: dict[tuple[str, int, str], list[float]]) -> Measured:
    rounds = {
        ((route, load), arm): [FleetRound(round(100 * rate), 100.0, ("text",)) for rate in by_launch]
        for (route, load, arm), by_launch in rates.items()
    }
    return Measured(rounds)


def test_an_arm_names_its_launch() -> None:
    launches = fleet_launches(("plain", "ngram:3", "ngram:5@8", "tuned"))
    assert launches["plain"] == VllmLaunch()
    assert launches["tuned"] is None
    ngram, scheduled = launches["ngram:3"], launches["ngram:5@8"]
    assert ngram is not None
    assert scheduled is not None
    assert ngram.speculative is not None
    assert scheduled.speculative is not None
    assert ngram.speculative["num_speculative_tokens"] == 3
    assert "num_speculative_tokens_per_batch_size" not in ngram.speculative
    assert scheduled.speculative["num_speculative_tokens_per_batch_size"] == [[1, 8, 5], [9, MAX_SEQUENCES, 0]]


@pytest.mark.parametrize("name", ["suffix:4", "ngram:0", "ngram:5@", "ngram", "Plain"])
def test_an_unknown_arm_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"--arms names '{name}'"):
        fleet_launches(("plain", name))


def test_the_plain_launch_cannot_be_left_out() -> None:
    with pytest.raises(SettingsError, match="leaves plain out"):
        fleet_launches(("ngram:5", "tuned"))


def test_cells_are_pooled_by_geometric_mean_and_launches_of_one_turn_are_a_pair() -> None:
    found = measured(
        {
            ("mixed", 1, "plain"): [50.0, 100.0],
            ("mixed", 4, "plain"): [200.0, 400.0],
            ("mixed", 1, "tuned"): [100.0, 200.0],
            ("mixed", 4, "tuned"): [200.0, 400.0],
        }
    )
    cells = [("mixed", 1), ("mixed", 4)]
    assert found.rates(cells, "plain") == pytest.approx([100.0, 200.0])
    ratio = found.ratio(cells, "tuned", "plain")
    # Both launches were twice as fast the second time; the ratio of each pair is the same.
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((math.sqrt(2),) * 3)


def test_a_text_that_differs_is_counted() -> None:
    found = Measured(
        {
            (("chat", 1), "plain"): [FleetRound(9, 1.0, ("a", "b"))],
            (("chat", 1), "tuned"): [FleetRound(9, 1.0, ("a", "x")), FleetRound(9, 1.0, ("a", "b"))],
        }
    )
    assert found.texts_as(("chat", 1), "tuned", "plain") == (3, 4)


def test_what_comes_three_times_in_a_row_is_a_loop() -> None:
    assert loops("Once " + "and they lived happily. " * 3)
    assert not loops("and they lived happily. and they lived happily. and then?")
    assert not loops("====================")


def test_without_vllm_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    console = Console(file=StringIO())
    monkeypatch.delenv("PACELINE_VLLM_ENV", raising=False)
    with pytest.raises(SettingsError, match="make test-vllm"):
        run_bench(Settings(), OPTIONS, console)
    with pytest.raises(VllmError, match="make test-vllm"):
        vllm_environment(tmp_path)


def test_a_load_that_vllm_is_not_launched_for_is_refused() -> None:
    options = BenchOptions(scenario="fleet", routes=("chat",), concurrency=(1, MAX_SEQUENCES + 1), arms=ARMS)
    with pytest.raises(SettingsError, match="--concurrency names 17"):
        run_bench(Settings(), options, Console(file=StringIO()))

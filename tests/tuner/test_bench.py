"""``paceline bench`` on the tiny model, and what it refuses before anything starts."""

import inspect
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from policies import Arm, Interval
from policies.types import PLAIN_ARM
from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import tiny_settings
from tuner.bench.arms import parse_arms
from tuner.bench.matrix import NEAR_BEST, Ratio, in_turn, ratio_row
from tuner.bench.options import MIXED, READS, SCENARIOS, BenchOptions
from tuner.bench.report import Bar, Report
from tuner.bench.runner import RUNNERS, run_bench
from tuner.cli import app
from tuner.load import LoadError
from tuner.settings import SettingsError
from tuner.workload import load_workload

CELL_KEYS = {
    "route",
    "concurrency",
    "arm",
    "tokens_per_second",
    "ttft_seconds",
    "tpot_p50_seconds",
    "tpot_p95_seconds",
    "emitted_per_cycle",
    "draft_seconds_per_cycle",
    "verify_seconds_per_cycle",
    "cost_per_million_tokens",
}
ARMS = ("plain", "ngram:4", "tuned")
REMEDY = "give plain, tuned, or ngram:K with K from 1 to 12; engine.drafters says which are loaded."


def options(
    route: str, concurrency: tuple[int, ...], arms: tuple[str, ...], folder: Path, repeats: int = 1
) -> BenchOptions:
    return BenchOptions(
        routes=(route,), concurrency=concurrency, arms=arms, repeats=repeats, json_path=folder / "bench.json"
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def report(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run, as the JSON file has it."""
    folder = tmp_path_factory.mktemp("bench")
    console = Console(file=StringIO(), width=160)
    settings = tiny_settings(model, folder / "paceline.db")
    settings = settings.model_copy(update={"engine": settings.engine.model_copy(update={"price_per_hour": 0.9})})
    code = run_bench(settings, options("chat", (1, 2), ARMS, folder, repeats=2), console)
    text = (folder / "bench.json").read_text(encoding="utf-8")
    assert isinstance(console.file, StringIO)
    read: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return read | {"printed": console.file.getvalue(), "code": code}


def test_every_cell_was_measured(report: dict[str, Any]) -> None:
    cells = report["cells"]
    assert {(cell["route"], cell["concurrency"], cell["arm"]) for cell in cells} == {
        ("chat", load, arm) for load in (1, 2) for arm in ARMS
    }
    for cell in cells:
        assert cell.keys() == CELL_KEYS
        assert cell["tokens_per_second"] > 0
        assert 0 < cell["tpot_p50_seconds"] <= cell["tpot_p95_seconds"]
        assert cell["ttft_seconds"] > 0
        assert cell["verify_seconds_per_cycle"] > 0
        assert cell["draft_seconds_per_cycle"] >= 0


def test_the_exit_code_is_the_verdict_of_the_bars(report: dict[str, Any]) -> None:
    # Which it is depends on the machine's moment: a tiny model is no ground on which to hold the tuner to its bars.
    assert report["code"] == (3 if any(bar["verdict"] == "fails" for bar in report["bars"]) else 0)


def test_a_price_by_the_hour_gives_the_cost_of_a_million_tokens(report: dict[str, Any]) -> None:
    for cell in report["cells"]:
        assert cell["cost_per_million_tokens"] == pytest.approx(250.0 / cell["tokens_per_second"])
    assert "cost per million" in report["printed"]


def test_only_arms_that_draft_emit_more_than_a_token_a_cycle(report: dict[str, Any]) -> None:
    emitted = {(cell["concurrency"], cell["arm"]): cell["emitted_per_cycle"] for cell in report["cells"]}
    for load in (1, 2):
        assert emitted[load, "plain"] == 1.0
        assert 1.0 < emitted[load, "ngram:4"] <= 5.0


def test_no_arm_wins_by_another_text(report: dict[str, Any]) -> None:
    assert report["texts_that_differ_between_arms"] == 0


def test_ratios_are_to_plain_and_of_tuned_to_every_arm(report: dict[str, Any]) -> None:
    assert [(ratio["arm"], ratio["against"]) for ratio in report["ratios"]] == [
        ("ngram:4", "plain"),
        ("tuned", "plain"),
        ("tuned", "ngram:4"),
    ] * 2
    assert all(0 < ratio["low"] <= ratio["estimate"] <= ratio["high"] for ratio in report["ratios"])


def test_tuned_is_held_to_the_fixed_arm_that_comes_closest(report: dict[str, Any]) -> None:
    lowest = [
        min(
            ratio["estimate"]
            for ratio in report["ratios"]
            if ratio["arm"] == "tuned" and (ratio["route"], ratio["concurrency"]) == cell
        )
        for cell in (("chat", 1), ("chat", 2))
    ]
    assert [bar["name"].partition(" (")[0] for bar in report["bars"]] == [
        f"chat at {load}: tuned over the best fixed arm" for load in (1, 2)
    ]
    assert [bar["measured"]["estimate"] for bar in report["bars"]] == pytest.approx(lowest)
    assert {bar["bar"] for bar in report["bars"]} == {0.97}


def test_a_mixed_workload_takes_its_prompts_from_the_named_routes_in_turn(model: Path, tmp_path: Path) -> None:
    settings = tiny_settings(model, tmp_path / "paceline.db")
    wanted = replace(options("chat", (2,), ("plain", "tuned"), tmp_path), routes=("story", "chat", MIXED))
    run_bench(settings, wanted, Console(file=StringIO(), width=160))
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert {cell["route"] for cell in found["cells"]} == {"story", "chat", MIXED}
    by_load, pooled = found["bars"][-2:]
    assert by_load["name"] == "mixed at 2: tuned over the best fixed arm (plain)"
    assert by_load["bar"] == NEAR_BEST
    assert pooled["name"] == "mixed, all loads: tuned over the best fixed arm (plain)"
    assert pooled["bar"] == 1.0
    mixed = in_turn([load_workload(["story"]), load_workload(["chat"])])
    assert [prompt.route for prompt in mixed[:4]] == ["story", "chat", "story", "chat"]
    assert len(mixed) == len(load_workload(["story", "chat"]))


def test_the_floor_is_the_share_of_what_the_linear_layers_allow(report: dict[str, Any]) -> None:
    floor = {row["load"]: row["ratio"] for row in report["floor"]}
    # On a busy machine two short requests need not meet, and the floor may have been timed in a worse moment.
    assert {1} <= floor.keys() <= {1, 2}
    assert all(ratio > 0 for ratio in floor.values())


def test_the_run_says_on_what_and_how_it_was_measured(report: dict[str, Any]) -> None:
    assert (report["machine"]["model"], report["machine"]["dtype"]) == ("tiny", "float32")
    assert report["command"] == {"routes": ["chat"], "concurrency": [1, 2], "arms": list(ARMS), "repeats": 2}
    assert report["looped_prompts_left_out"].keys() == {"chat"}
    for part in ("tokens per second", "ngram:4", "outputs that differ between arms: 0", "the linear layers alone"):
        assert part in report["printed"]


def test_a_request_that_fails_ends_the_run_with_a_sentence_and_without_a_file(model: Path, tmp_path: Path) -> None:
    settings = tiny_settings(model, tmp_path / "paceline.db")
    cramped = settings.model_copy(update={"engine": settings.engine.model_copy(update={"context_limit": 64})})
    with pytest.raises(LoadError, match=r"requests failed; the first, chat-.*: 400 .*context"):
        run_bench(cramped, options("chat", (1,), ("plain",), tmp_path), Console(file=StringIO()))
    assert not (tmp_path / "bench.json").exists()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a command runs that must not start anything."""

    def start(*arguments: object) -> None:
        raise AssertionError("the service was started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_ENGINE__DRAFTERS", "ngram")
    monkeypatch.setattr("tuner.bench.rounds.running_service", start)
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--arms", "plain,fast"), f"--arms names 'fast'; {REMEDY}"),
        (("--arms", "ngram:0"), f"--arms names 'ngram:0'; {REMEDY}"),
        (
            ("--arms", "ngram:17"),
            f"--arms names 'ngram:17'; {REMEDY}",
        ),
        (("--arms", "none:4"), f"--arms names 'none:4'; {REMEDY}"),
        (("--arms", ","), "--arms is empty; give at least one, or leave the option out."),
        (("--concurrency", ","), "--concurrency is empty; give at least one, or leave the option out."),
        (("--routes", ","), "--routes is empty; give at least one, or leave the option out."),
        (
            ("--scenario", "drafters", "--languages", ","),
            "--languages is empty; give at least one, or leave the option out.",
        ),
        (
            ("--scenario", "drafters", "--languages", "en,xx"),
            "--languages has 'xx'; the workload has code, de, en, es, fr, it, nl, pt, or give all.",
        ),
        (
            ("--scenario", "drafters", "--routes", "code-edit", "--languages", "pt"),
            "--languages is pt; the routes have prompts in none of them.",
        ),
        (
            ("--scenario", "drafters", "--drafters", "ngram,nope"),
            "--drafters names 'nope'; loaded are ngram: add it to engine.drafters, or leave it out.",
        ),
        (
            ("--scenario", "speed"),
            "--scenario is 'speed'; choose from matrix, floor, drafters, transformers, fleet, cold, cancel, "
            "preempt, fragment, stream, tuner, proxy.",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_sentence_and_exit_code_2(
    folder: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    result = bench(*arguments)
    assert (result.exit_code, result.stderr) == (2, sentence + "\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--routes", "nowhere"),
        ("--repeats", "0"),
        ("--concurrency", "0"),
        ("--concurrency", "two"),
        ("--lengths", "0"),
        ("--json", "absent/bench.json"),
    ],
)
def test_wrong_usage_names_the_option(folder: Path, arguments: tuple[str, str]) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("scenario", "option", "reads"),
    [
        ("floor", ("--arms", "plain"), "--repeats"),
        ("floor", ("--routes", "chat"), "--repeats"),
        ("matrix", ("--languages", "en"), "--routes, --concurrency, --arms, --tokens, --repeats"),
        ("cancel", ("--repeats", "3"), "--routes, --requests, --arms, --tokens"),
    ],
)
def test_an_option_that_a_scenario_does_not_read_is_refused_also_at_its_default(
    folder: Path, scenario: str, option: tuple[str, str], reads: str
) -> None:
    result = bench("--scenario", scenario, *option)
    assert result.exit_code == 2
    told = " ".join(result.stderr.split())
    assert f"Invalid value for {option[0]}: the scenario {scenario} does not read it, but {reads}." in told


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_options_that_a_scenario_is_said_to_read_are_those_that_it_reads(scenario: str) -> None:
    run = RUNNERS[scenario]
    room = inspect.getmodule(run)
    source = inspect.getsource(run)
    for name, function in vars(room).items():
        if inspect.isfunction(function) and function.__module__ == run.__module__ and f"{name}(" in source:
            source += inspect.getsource(function) if function is not run else ""
    read = set(re.findall(r"\boptions\.(\w+)", source)) - {"json_path", "command"}
    assert read == set(READS[scenario])


def test_a_configured_route_that_the_workload_lacks_is_one_sentence(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    configuration = tmp_path_factory.mktemp("configuration") / "paceline.yaml"
    configuration.write_text("routes: {ours: {mode: auto}}")
    result = bench("--config", str(configuration))
    assert result.exit_code == 2
    assert result.stderr == "The workload has no route 'ours': choose from code-edit, extract, chat, story.\n"


def test_arms_are_read_by_name() -> None:
    arms = parse_arms(["tuned", "ngram:4", "plain"], ("none", "ngram"), 12)
    assert arms == {"tuned": None, "ngram:4": Arm.fixed("ngram", 4), "plain": PLAIN_ARM}
    assert list(arms) == ["tuned", "ngram:4", "plain"]
    with pytest.raises(SettingsError, match="ngram:²"):
        parse_arms(["ngram:²"], ("none", "ngram"), 12)


def test_one_round_has_no_upper_bound_which_json_calls_null() -> None:
    row = ratio_row(Ratio("chat", 1, "tuned", "plain", 1.5, 0.0, math.inf))
    assert json.loads(json.dumps(row, allow_nan=False))["high"] is None
    assert ratio_row(Ratio("chat", 1, "tuned", "plain", 1.5, 1.4, 1.6))["high"] == 1.6


@pytest.mark.parametrize(
    ("measured", "at_least", "verdict", "exit_code"),
    [
        (Interval(1.7, 1.6, 1.8), True, "holds", 0),
        (Interval(1.6, 1.4, 1.8), True, "holds, within its interval", 0),
        (Interval(1.4, 1.3, 1.6), True, "misses, within its interval", 0),
        (Interval(1.4, 1.3, 1.49), True, "fails", 3),
        (Interval(1.4, 1.3, 1.49), False, "holds", 0),
        (Interval(1.4, 1.3, 1.6), False, "holds, within its interval", 0),
        (Interval(1.6, 1.4, 1.8), False, "misses, within its interval", 0),
        (Interval(1.6, 1.51, 1.7), False, "fails", 3),
        (Interval(1.5, 1.5, 1.5), True, "holds", 0),
        (Interval(1.4, 1.4, 1.4), True, "fails", 3),
        (Interval(1.6, 0.0, math.inf), True, "holds, within its interval", 0),
        (Interval(1.4, 0.0, math.inf), True, "misses, within its interval", 0),
        (None, True, "not measured", 0),
    ],
)
def test_a_bar_holds_or_fails_only_by_its_whole_interval(
    measured: Interval | None, at_least: bool, verdict: str, exit_code: int
) -> None:
    bar = Bar("x", measured, 1.5, at_least)
    assert bar.verdict == verdict
    assert Report({}, [bar]).exit_code == exit_code


def test_a_fault_is_a_negative_verdict() -> None:
    assert Report({}, (), ["a block is lost"]).exit_code == 3


def test_the_command_line_of_a_run_can_be_typed_again() -> None:
    asked = BenchOptions(scenario="drafters", routes=["chat"], languages=["en", "de"], lengths=[2, 8], prompts=3)
    assert asked.command == (
        "paceline bench --scenario drafters --routes chat --languages en,de --lengths 2,8 --prompts 3 --tokens 64 "
        "--repeats 3"
    )

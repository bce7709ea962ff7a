"""`paceline replay` as a whole."""

import json
import multiprocessing
import os
import shlex
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tuner.replay.small_traces import small_trace
from tuner.cli import app
from tuner.replay.run import FIXED_LENGTHS, ORACLE, OURS, UNBOUND, Job, one_thread_each, run_job, run_jobs
from tuner.replay.scenarios import shipped_scenarios
from tuner.replay.trace_file import save

RUNNER = CliRunner()


def trace_file(folder: Path, seed: int) -> Path:
    path = folder / f"recorded-{seed}.npz"
    save(replace(small_trace(seed), seconds_sd=0.03), path)
    return path


def replay(*words: str) -> Any:
    return RUNNER.invoke(app, ["replay", *words], catch_exceptions=False)


def told(runs: Any) -> list[tuple[Any, ...]]:
    return [
        (run.scenario, run.controller, run.seed, run.regret_percent, run.worst_window_percent, run.worst_neighbour)
        for done in runs
        for run in done.runs
    ]


def test_results_do_not_depend_on_how_the_work_is_split(tmp_path: Path) -> None:
    paths = [trace_file(tmp_path, seed) for seed in (1, 2)]
    jobs = [Job(path.name, seed, path, (), True) for path in paths for seed in (3, 4)]
    finished: list[int] = []
    alone = run_jobs(jobs, 1, lambda: finished.append(1))
    split = run_jobs(jobs, 2, lambda: finished.append(2))
    assert told(alone) == told(split)
    assert (finished.count(1), finished.count(2)) == (4, 4)


@pytest.mark.parametrize("before", [None, "7"])
def test_a_process_of_many_computes_with_one_thread(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if before is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", before)
    context = multiprocessing.get_context("spawn")
    with one_thread_each(), ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
    assert os.getenv("OMP_NUM_THREADS") == before


def test_the_oracle_plain_and_every_fixed_arm_always_run(tmp_path: Path) -> None:
    done = run_job(Job("recorded", 3, trace_file(tmp_path, 1), (), True))
    names = [run.controller for run in done.runs]
    assert names[:2] == [ORACLE, "plain"]
    assert set(names[2:]) == {f"{drafter}:{length}" for drafter in ("copy", "learned") for length in FIXED_LENGTHS}
    assert done.runs[0].regret_percent == 0.0
    assert max(run.regret_percent for run in done.runs[1:]) > 5.0


def test_ours_without_its_promise_runs_when_named_and_waits_for_nobody(tmp_path: Path) -> None:
    path = trace_file(tmp_path, 3)
    usual = replay("--trace", str(path), "--seeds", "1", "--json", str(tmp_path / "usual.json"))
    named = [word for name in (OURS, UNBOUND) for word in ("--controller", name)]
    replay("--trace", str(path), "--seeds", "1", *named, "--json", str(tmp_path / "named.json"))
    assert UNBOUND not in usual.output
    rows = json.loads((tmp_path / "named.json").read_text())["rows"]
    regret = {row["controller"]: row["regret_percent"] for row in rows}
    assert regret[UNBOUND] < regret[OURS]


def test_a_job_that_fails_is_told_and_not_left_out(tmp_path: Path) -> None:
    good = Job("a", 1, trace_file(tmp_path, 1), (), True)
    with pytest.raises(KeyError, match="nobody"):
        run_jobs([good, replace(good, controllers=("nobody",))], 1, lambda: None)


def test_the_json_has_a_row_for_every_run_and_a_summary_for_every_cell(tmp_path: Path) -> None:
    path, result, picture = trace_file(tmp_path, 1), tmp_path / "result.json", tmp_path / "picture.png"
    done = replay(
        "--trace", str(path), "--controller", "fixed", "--seeds", "2", "--json", str(result), "--plot", str(picture)
    )
    assert done.exit_code == 0, done.output
    content = json.loads(result.read_text())
    assert shlex.split(content["command_line"])[2:] == [
        "--trace",
        str(path),
        "--controller",
        "fixed",
        "--seeds",
        "2",
    ], "it can be typed again where this ran"
    assert content["seeds"] == [1000, 1001]
    controllers = {row["controller"] for row in content["rows"]}
    assert len(content["rows"]) == 2 * len(controllers)
    for row in content["rows"]:
        assert {"scenario", "controller", "seed", "regret_percent", "worst_window_percent"} <= set(row)
    assert {row["controller"] for row in content["summary"]} == controllers
    for row in content["summary"] + content["overall"]:
        assert row["low"] <= row["mean"] <= row["high"]
        assert 0.0 <= row["window_share"] <= 1.0
        assert 0.0 <= row["neighbour_share"] <= 1.0
    assert [row["mean"] for row in content["overall"]] == [row["mean"] for row in content["summary"]]
    assert content["wall_seconds"] > 0.0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_table_shows_the_best_fixed_arm_and_the_json_has_them_all(tmp_path: Path) -> None:
    path, result = trace_file(tmp_path, 1), tmp_path / "result.json"
    done = replay("--trace", str(path), "--controller", "fixed", "--seeds", "1", "--json", str(result))
    content = json.loads(result.read_text())
    arms = {row["controller"]: row["mean"] for row in content["summary"] if ":" in row["controller"]}
    best = min(arms, key=lambda arm: arms[arm])
    assert len(arms) == 2 * len(FIXED_LENGTHS)
    assert best in done.output
    assert sum(arm in done.output for arm in arms) == 1


def test_the_list_names_scenarios_and_controllers_and_runs_none() -> None:
    done = replay("--list")
    assert done.exit_code == 0
    for name in (*shipped_scenarios().scenarios, "paceline", "fixed", "oracle"):
        assert name in done.output


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "Give --all, --scenario NAME or --trace FILE; --list shows the names."),
        (("--scenario", "calm"), 2, "there is no 'calm'; use some of stationary-cpu,"),
        (("--all", "--controller", "luck"), 2, "there is no 'luck'; use some of paceline,"),
        (("--all", "--seeds", "21"), 2, "21 held-out seeds were asked for, and there are 20: give 1 to 20."),
        (("--all", "--seeds", "21", "--tuning"), 2, "21 tuning seeds were asked for, and there are 20: give 1 to 20."),
        (("--trace", "none.npz"), 2, "none.npz cannot be read as a trace ("),
        (("--all", "--plot", "nowhere/picture.png"), 2, "there is no folder nowhere; make it first"),
    ],
)
def test_wrong_usage_is_one_sentence_before_anything_runs(words: tuple[str, ...], code: int, sentence: str) -> None:
    done = replay(*words)
    assert done.exit_code == code
    assert sentence in " ".join(done.output.split())


def test_a_file_that_fails_is_one_sentence_and_costs_no_other(tmp_path: Path) -> None:
    path, picture = trace_file(tmp_path, 1), tmp_path / "picture.png"
    words = ("--trace", str(path), "--controller", "fixed", "--seeds", "1", "--plot", str(picture))
    done = replay(*words, "--json", "/dev/full")
    assert done.exit_code == 1
    assert done.stderr.startswith("--json: /dev/full cannot be written (No space left on device): make room")
    assert len(done.stderr.splitlines()) == 1
    assert picture.read_bytes().startswith(b"\x89PNG")

"""Every scenario of bench on the tiny model: what it finds, what it says, what it writes."""

import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import tiny_settings
from tuner.bench import other_engines
from tuner.bench.options import BenchOptions
from tuner.bench.runner import run_bench
from tuner.settings import Settings

SMALL = BenchOptions(
    routes=("chat", "code-edit"), arms=("plain", "suffix:4"), repeats=1, prompts=2, tokens=12, requests=8,
    languages=("en", "code"), lengths=(2, 4), concurrency=(1, 3),
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> Settings:
    return tiny_settings(model, tmp_path / "paceline.db")


def run(settings: Settings, options: BenchOptions, folder: Path) -> tuple[int, dict[str, Any], str]:
    """(exit code, the JSON file, what was printed)."""
    console = Console(file=StringIO(), width=200)
    path = folder / "bench.json"
    code = run_bench(settings, replace(options, json_path=path), console)
    assert isinstance(console.file, StringIO)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    printed = console.file.getvalue()
    assert found["scenario"] == options.scenario
    assert found["command_line"] in " ".join(printed.split())
    assert found["machine"]["cores"] >= 1
    assert found["date"] in printed.splitlines()[1]
    assert found["commit"] is None or found["commit"] in printed.splitlines()[1]
    return code, found, printed


def test_half_of_a_crowd_is_cancelled_and_the_others_texts_and_every_block_are_back(
    settings: Settings, tmp_path: Path
) -> None:
    code, found, printed = run(settings, replace(SMALL, scenario="cancel", tokens=40), tmp_path)
    assert (code, found["faults"]) == (0, [])
    assert [row["arm"] for row in found["crowds"]] == ["plain", "suffix:4"]
    for row in found["crowds"]:
        assert (row["kept"], row["cancelled"], row["texts_that_differ_from_those_alone"]) == (4, 4, 0)
        assert row["free_slots"] == 4
    assert "4 of 4 slots" in printed


@pytest.mark.slow
def test_a_cache_that_is_too_small_preempts_and_changes_no_text(settings: Settings, tmp_path: Path) -> None:
    code, found, _ = run(settings, replace(SMALL, scenario="preempt", tokens=64), tmp_path)
    assert (code, found["faults"]) == (0, [])
    for row in found["crowds"]:
        assert row["blocks"] < row["blocks_wanted"]
        assert row["free_blocks"] == row["blocks"]
        assert row["texts_that_differ_from_those_alone"] == 0


@pytest.mark.slow
def test_mixed_lengths_give_their_blocks_back_in_every_round(settings: Settings, tmp_path: Path) -> None:
    code, found, printed = run(settings, replace(SMALL, scenario="fragment"), tmp_path)
    assert (code, found["faults"]) == (0, [])
    assert [row["round"] for row in found["rounds"]] == [1, 2, 3, 4]
    assert len({row["free_blocks"] for row in found["rounds"]}) == 1
    assert "in the first quarter and" in printed


def test_pieces_of_streams_are_timed_from_the_end_of_their_cycle(settings: Settings, tmp_path: Path) -> None:
    code, found, printed = run(settings, replace(SMALL, scenario="stream"), tmp_path)
    assert code == 0
    assert [(row["concurrency"], row["arm"]) for row in found["streams"]] == [
        (load, arm) for load in (1, 3) for arm in ("plain", "suffix:4")
    ]
    for row in found["streams"]:
        assert 0.0 < row["delay_p50_seconds"] <= row["delay_p95_seconds"] <= row["delay_worst_seconds"] < 10.0
        assert row["cycles_a_piece"] >= 1.0
    assert "longest gap ms" in printed


def test_drafters_are_compared_by_route_and_language_with_their_survival(settings: Settings, tmp_path: Path) -> None:
    code, found, printed = run(settings, replace(SMALL, scenario="drafters", repeats=2), tmp_path)
    assert code in (0, 3)  # the bars are for the default model
    assert found["faults"] == []
    for row in found["contexts"]:
        assert row["drafters"].keys() == {"ngram", "suffix"}
        assert row["best"] in row["drafters"]
        for one in row["drafters"].values():
            assert one["block_length"] in (2, 4)
            assert one["ratio"]["low"] <= one["ratio"]["estimate"] <= one["ratio"]["high"]
            assert all(later <= before for before, later in zip(one["survival"], one["survival"][1:], strict=False))
    assert [bar["name"].partition(":")[0] for bar in found["bars"]] == ["chat", "code-edit"]
    assert found["bars"][0]["verdict"] == "not measured", "no learned drafter is loaded"
    assert "times plain" in printed


@pytest.mark.slow
def test_a_start_is_timed_in_a_process_of_its_own(settings: Settings, tmp_path: Path) -> None:
    code, found, printed = run(settings, replace(SMALL, scenario="cold"), tmp_path)
    assert code == 0
    seconds = found["seconds"]
    (ready,), (first,) = seconds["process start to ready"], seconds["process start to first token"]
    assert 0.0 < ready < first
    stages = [times[0] for name, times in seconds.items() if name.startswith("of it, ")]
    assert (len(stages), min(stages) > 0.0) == (4, True)
    assert sum(stages) == pytest.approx(ready, rel=0.2), "what a start takes has rows"
    assert seconds["engine process alone: loading tiny"][0] > 0.0
    assert seconds["engine process alone: whole start"][0] >= seconds["engine process alone: loading tiny"][0]
    assert not [name for name in seconds if "memory" in name or "threads of" in name]
    assert "medians of 1 start (least to most)\nprocess start to ready" in printed
    assert "start 1 of 1: the service" in printed
    assert not (tmp_path / "paceline.db").exists(), "its store is its own"


@pytest.mark.slow
def test_the_floor_is_measured_beside_the_cycles(settings: Settings, tmp_path: Path) -> None:
    code, found, printed = run(settings, replace(SMALL, scenario="floor"), tmp_path)
    assert code in (0, 3)  # the bars are for the default model
    assert [row["load"] for row in found["loads"]] == [1, 16]
    for row in found["loads"]:
        assert row["linear_seconds"] < row["cycle_seconds"]
        assert 0.0 < row["ratio"]["low"] <= row["ratio"]["estimate"] <= row["ratio"]["high"]
    one, sixteen = found["loads"]
    assert sixteen["kv_bytes"] == pytest.approx(16 * one["kv_bytes"], rel=0.01)
    assert found["block_over_single"]["estimate"] > 0.5
    assert "GB/s" in printed


@pytest.mark.slow
def test_other_engines_get_the_same_prompts_and_say_why_they_are_missing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(other_engines.VLLM_VARIABLE, raising=False)
    options = replace(SMALL, scenario="transformers", routes=("chat",), repeats=2)
    code, found, printed = run(settings, options, tmp_path)
    assert code in (0, 3)  # the bars are for the default model
    engines = {row["engine"]: row for row in found["engines"]}
    assert engines.keys() == {
        "paceline plain", "paceline suffix:4", "transformers plain", "transformers prompt-lookup"
    }  # fmt: skip
    assert engines["paceline suffix:4"]["texts_that_agree"] == found["prompts"]
    assert all(row["tokens_per_second"] > 0 for row in engines.values())
    assert "vLLM was not measured: PACELINE_VLLM_PYTHON names no Python." in printed
    assert "an assistant model was not measured" in printed


@pytest.mark.slow
def test_a_python_without_vllm_is_a_note(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(other_engines.VLLM_VARIABLE, sys.executable)
    options = replace(SMALL, scenario="transformers", routes=("chat",), arms=("plain",), prompts=1, tokens=4)
    _, found, _ = run(settings, options, tmp_path)
    assert any(note.startswith("vLLM was not measured: vLLM ended with code 1: ") for note in found["notes"])
    assert [bar["verdict"] for bar in found["bars"][2:]] == ["not measured"] * 2

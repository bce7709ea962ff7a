"""`paceline draft test` and a damaged drafter, on the tiny model with the settings as they are."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.drafter_files import WEIGHTS, DrafterKind, added_folder
from engine.drafter_shelf import add_drafter
from tests.engine.tiny_drafter import make_tiny_drafter
from tests.engine.tiny_model import make_tiny_model
from tuner.bench.options import BenchOptions
from tuner.bench.report import Report
from tuner.cli import app
from tuner.settings import Settings

QUICK = ("--routes", "chat", "--languages", "en", "--lengths", "2", "--prompts", "1", "--tokens", "6", "--repeats", "1")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACELINE_MODEL__THREADS", "1")
    return make_tiny_model(tmp_path / "tiny")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], list[str]]]:
    """What would have been loaded, and what of it measured."""
    asked: list[tuple[tuple[str, ...], list[str]]] = []

    def measure(settings: Settings, options: BenchOptions, console: object) -> Report:
        asked.append((settings.engine.drafters, list(options.drafters)))
        return Report({"routes": {}}, [])

    monkeypatch.setattr("tuner.bench.runner.measure", measure)
    return asked


def run(*arguments: str, model: Path) -> Result:
    return CliRunner().invoke(app, [*arguments, "--model", str(model)])


def test_an_added_drafter_is_measured_with_default_settings(model: Path, tmp_path: Path) -> None:
    add_drafter(make_tiny_drafter(tmp_path / "head", model, DrafterKind.FEATURE_HEAD), model)
    result = run("draft", "test", "head", *QUICK, "-o", "json", model=model)
    assert result.exit_code in (0, 3), result.output
    (context,) = json.loads(result.stdout)["contexts"]
    assert list(context["drafters"]) == ["head"]
    assert len(context["drafters"]["head"]["survival"]) > 0


@pytest.mark.parametrize("name", ["ngram", "suffix", "added", "given"])
def test_any_drafter_that_there_is_can_be_tested_alone(
    name: str, model: Path, tmp_path: Path, measured: list[tuple[tuple[str, ...], list[str]]]
) -> None:
    add_drafter(make_tiny_drafter(tmp_path / "added", model, DrafterKind.FEATURE_HEAD), model)
    given = make_tiny_drafter(tmp_path / "given", model, DrafterKind.DRAFT_MODEL)
    source = str(given) if name == "given" else name
    run("draft", "test", source, *QUICK, model=model)
    assert measured == [((source,), [name])]


def test_a_folder_that_the_configuration_names_is_tested_by_its_name(
    model: Path, tmp_path: Path, measured: list[tuple[tuple[str, ...], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = make_tiny_drafter(tmp_path / "given", model, DrafterKind.DRAFT_MODEL)
    monkeypatch.setenv("PACELINE_ENGINE__DRAFTERS", f"ngram,{given}")
    monkeypatch.setenv("PACELINE_ENGINE__DEFAULT_DRAFTER", "ngram")
    run("draft", "test", "given", *QUICK, model=model)
    assert measured == [((str(given),), ["given"])]


@pytest.mark.parametrize("name", ["nope", "auto", "none", "./nowhere"])
def test_a_drafter_that_there_is_not_is_refused_by_what_was_given(
    name: str, model: Path, measured: list[tuple[tuple[str, ...], list[str]]]
) -> None:
    result = run("draft", "test", name, *QUICK, model=model)
    assert (result.exit_code, measured) == (2, [])
    assert result.stderr.startswith(f"there is no drafter {name!r}; give one of ngram, suffix")
    assert result.stderr.count("\n") == 1


def test_a_damaged_drafter_is_neither_added_nor_in_the_way_of_others(model: Path, tmp_path: Path) -> None:
    folder = make_tiny_drafter(tmp_path / "head", model, DrafterKind.FEATURE_HEAD)
    place = add_drafter(folder, model)
    for weights in (folder / WEIGHTS, place / WEIGHTS):
        weights.write_bytes(weights.read_bytes()[:-100])
    refused = run("draft", "add", str(folder), "--name", "other", model=model)
    assert (refused.exit_code, (added_folder() / "other").exists()) == (2, False)
    assert "not fully covered" in refused.stderr
    named = run("draft", "test", "head", *QUICK, model=model)
    assert named.exit_code == 2
    assert "`paceline draft remove head`" in named.stderr
    assert run("draft", "test", "ngram", *QUICK, model=model).exit_code in (0, 3)


def test_bench_under_auto_leaves_a_damaged_drafter_out_and_says_so(model: Path, tmp_path: Path) -> None:
    place = add_drafter(make_tiny_drafter(tmp_path / "head", model, DrafterKind.FEATURE_HEAD), model)
    (place / WEIGHTS).write_bytes(b"")
    quick = ("--routes", "chat", "--languages", "en", "--lengths", "2", "--prompts", "1", "--tokens", "6")
    result = run("bench", "--scenario", "drafters", "--repeats", "1", *quick, model=model)
    assert result.exit_code in (0, 3), result.output
    (told,) = [line for line in result.stdout.splitlines() if line.startswith("left out: ")]
    assert told.startswith("left out: the drafter 'head' cannot be loaded: ")
    assert "`paceline draft remove head`" in told

"""``paceline tune --on replay`` over a trace that was made here, from the command line to the file."""

import contextlib
import shlex
import signal
import sqlite3
from pathlib import Path
from random import Random

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner, Result

from policies.cycle_policy import DraftCost, PassCost
from tuner.cli import app
from tuner.controller import ControllerOptions
from tuner.replay.ours import Ours
from tuner.replay.simulate import simulate
from tuner.replay.trace import Costs, DraftTrace, Trace, TracedRequest
from tuner.replay.trace_file import save
from tuner.settings_loader import load_settings

TOKENS = 40


def drafted(source: Random) -> DraftTrace:
    """16 drafts everywhere, of which about 12 are kept."""
    kept = bytes(min(16, TOKENS - at - 1, max(0, round(source.gauss(12.0, 2.0)))) for at in range(TOKENS))
    return DraftTrace(bytes([16] * TOKENS), kept, bytes([3] * TOKENS))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    source = Random(1)
    requests = tuple(TracedRequest("chat", "en", 60, TOKENS, {"ngram": drafted(source)}) for _ in range(40))
    costs = Costs(PassCost((1, 8, 272), (0.0135, 0.0170, 0.1850), 0.0005, 2e-7), {"ngram": DraftCost(0, 0, 0, 0)})
    made = Trace(("ngram",), requests, (1,) * 40, costs, 4, confidence_buckets={"ngram": 5})
    save(made, tmp_path / "trace.npz")
    return tmp_path / "trace.npz"


def tune(tmp_path: Path, trace: Path, *arguments: str) -> Result:
    storage = f"sqlite:///{tmp_path}/tune.db"
    options = ["--on", "replay", "--trace", str(trace), "--storage", storage, "--trials", "14", "--patience", "7"]
    return CliRunner().invoke(app, ["tune", *options, *arguments], catch_exceptions=False)


def test_a_longer_block_beats_a_production_that_is_cut_short_and_its_file_loads(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_ENGINE__MAX_BLOCK_LENGTH", "2")
    out = tmp_path / "tuned.yaml"
    result = tune(tmp_path, trace, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "left out, since they cannot be told here or nothing reads them: ngram_min_match" in result.stdout
    assert "trial 0: 1.000 of production, noise 0.000: production" in result.stdout
    assert "it beats production" in result.stdout
    text = out.read_text(encoding="utf-8")
    assert text in result.stdout
    values = yaml.safe_load(text)
    assert set(values) <= {"engine", "tuner"}
    assert values["engine"]["max_block_length"] > 4
    monkeypatch.delenv("PACELINE_ENGINE__MAX_BLOCK_LENGTH")
    loaded = load_settings(out)
    assert loaded.settings.engine.max_block_length == values["engine"]["max_block_length"]
    assert loaded.origins["engine.max_block_length"] == str(out)


def test_where_nothing_is_better_it_ends_with_3_and_writes_nothing(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.tune.on_replay.ReplayObjective._speed", lambda self, values, index: 100.0 + index)
    out = tmp_path / "tuned.yaml"
    result = tune(tmp_path, trace, "--out", str(out))
    assert result.exit_code == 3, result.output
    assert not out.exists()
    again = tune(tmp_path, trace)
    assert again.exit_code == 3
    assert "goes on after" in again.stdout
    assert "\ntrial " not in again.stdout, "nothing is measured twice"


def test_the_header_is_the_command_with_every_option_and_path_that_was_given(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.tune.on_replay.ReplayObjective._speed", lambda self, values, index: 100.0)
    file = tmp_path / "of mine.yaml"
    file.write_text("tune: {sampler: gp}")
    more = ["--config", str(file), "--model", "m", "--sampler", "tpe", "--rounds", "2", "--study", "s", "--out"]
    result = tune(tmp_path, trace, *more, str(tmp_path / "out.yaml"), "--prompts", "3", "--tokens", "9")
    [header] = [line for line in result.stdout.splitlines() if line.startswith("paceline tune")]
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    parsed = command.commands["tune"].make_context("tune", shlex.split(header)[2:])
    given = {name: value for name, value in parsed.params.items() if value not in (None, False)}
    assert given.pop("server")
    assert given.pop("output")
    assert given == {
        "config": file,
        "model": "m",
        "ground": "replay",
        "trace": trace,
        "storage": f"sqlite:///{tmp_path}/tune.db",
        "trials": 14,
        "patience": 7,
        "sampler": "tpe",
        "rounds": 2,
        "study": "s",
        "out": tmp_path / "out.yaml",
        "concurrency": 4,
        "prompts": 3,
        "tokens": 9,
    }
    assert "goes on after" in CliRunner().invoke(app, shlex.split(header)[1:]).stdout


def test_the_header_has_no_password(monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    printed: list[str] = []

    def run(settings: object, options: object, console: object, command: str) -> int:
        printed.append(command)
        return 0

    monkeypatch.setattr("tuner.tune.run.run_tune", run)
    storage = "postgresql+psycopg://ada:hunter2@db/paceline"
    CliRunner().invoke(app, ["tune", "--on", "replay", "--trace", str(trace), "--storage", storage])
    assert "--storage 'postgresql+psycopg://ada:" in printed[0]
    assert "hunter2" not in printed[0]


def test_routes_are_refused_since_a_trace_tells_nothing_of_their_knobs(tmp_path: Path, trace: Path) -> None:
    result = tune(tmp_path, trace, "--routes", "chat")
    assert result.exit_code == 2
    assert "leave out --routes, or use --on engine" in result.stderr


def test_a_file_that_is_no_trace_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "no.npz").write_text("nothing")
    result = tune(tmp_path, tmp_path / "no.npz")
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("longest", [1, 2, 16])
def test_every_longest_block_that_is_searched_can_be_replayed_with_several_learned_drafters(longest: int) -> None:
    source = Random(2)
    names = ("draft", "head", "ngram")
    requests = tuple(
        TracedRequest("chat", "en", 60, TOKENS, {name: drafted(source) for name in names}) for _ in range(8)
    )
    learned = DraftCost(1e-4, 1e-5, 1e-3, 1e-5)
    prices = {"draft": learned, "head": learned, "ngram": DraftCost(0, 0, 0, 0)}
    costs = Costs(PassCost((1, 8, 272), (0.0135, 0.0170, 0.1850), 0.0005, 2e-7), prices)
    trace = Trace(names, requests, (2,) * 8, costs, 4, confidence_buckets=dict.fromkeys(names, 5))
    outcome = simulate(trace, Ours(ControllerOptions(max_block_length=longest)), 1)
    assert outcome.load_tokens.sum() == 8 * TOKENS


def test_an_interrupt_ends_the_search_at_once_and_the_same_command_goes_on(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while a candidate is replayed; none is replayed after it."""
    replayed: list[int] = []

    def speed(self: object, values: object, index: int) -> float:
        replayed.append(index)
        if len(replayed) == 10:
            signal.raise_signal(signal.SIGINT)
        return 100.0 + index

    monkeypatch.setattr("tuner.tune.on_replay.ReplayObjective._speed", speed)
    result = tune(tmp_path, trace)
    assert result.exit_code == 130
    assert result.stderr == "Stopped.\n"
    assert len(replayed) == 10
    again = tune(tmp_path, trace)
    assert again.exit_code == 3
    assert "goes on after 3 trials" in again.stdout


def test_a_storage_that_is_locked_under_way_is_one_sentence(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[int] = []
    with contextlib.ExitStack() as held:

        def speed(self: object, values: object, index: int) -> float:
            if locked:
                return 100.0
            locked.append(index)
            other = held.enter_context(contextlib.closing(sqlite3.connect(tmp_path / "tune.db")))
            other.execute("begin exclusive")
            return 100.0

        monkeypatch.setattr("tuner.tune.on_replay.ReplayObjective._speed", speed)
        result = tune(tmp_path, trace, "--rounds", "2", "--study", "s")
    assert result.exit_code == 1
    assert result.stderr == (
        "The study 's/*' cannot be read or written ((sqlite3.OperationalError) database is locked): once it can be, "
        "the same command goes on where this one ends.\n"
    )


def test_a_storage_in_memory_is_refused_with_a_remedy(tmp_path: Path, trace: Path) -> None:
    result = tune(tmp_path, trace, "--storage", "sqlite://")
    assert result.exit_code == 2
    assert "it is in memory, where nothing is kept between two connections): give a URL such as" in result.stderr

"""What ``paceline trace`` says of how it was run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import app
from tuner.cli.trace import measured_with
from tuner.settings import EngineSettings, Settings
from tuner.settings_loader import load_settings


def test_a_check_keeps_what_was_set_of_the_target_and_the_engine_and_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_MODEL__THREADS", "1")
    monkeypatch.setenv("PACELINE_ENGINE__DRAFTERS", f"suffix,{tmp_path / 'own-head'}")
    monkeypatch.setenv("PACELINE_SERVER__PORT", "8123")
    loaded = load_settings(None, {"model": {"path": str(tmp_path / "a-model")}})
    assert measured_with(loaded) == {
        "model.path": "a-model",
        "model.threads": 1,
        "engine.drafters": ["suffix", "own-head"],
    }


def test_a_drafter_that_is_not_loaded_is_refused_before_the_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def starts(*given: object) -> None:
        raise AssertionError("the engine starts")

    loaded = Settings(engine=EngineSettings(drafters=("ngram", "suffix")))
    monkeypatch.setattr("tuner.trace_runs.prepared", lambda settings, console: loaded)
    monkeypatch.setattr("tuner.trace_runs.TracedWorkload", starts)
    for name in ("nope", "none"):
        result = CliRunner().invoke(app, ["trace", "verify", "--drafters", f"suffix,{name}"], catch_exceptions=False)
        assert result.exit_code == 2
        assert result.stderr == f"--drafters has {name!r}, which is not loaded: give some of ngram, suffix.\n"

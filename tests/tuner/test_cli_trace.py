"""What ``paceline trace`` says of how it was run."""

from pathlib import Path

import pytest

from tuner.cli.trace import measured_with
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

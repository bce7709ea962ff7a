"""What the system tests share: the default model, fetched once into the local cache."""

from pathlib import Path

import pytest

from engine.model_fetch import default_model_path, fetch_default_model


@pytest.fixture(scope="session")
def default_model() -> Path:
    path = default_model_path()
    return path if (path / "config.json").exists() else fetch_default_model(lambda step, done, total: None)

"""What the engine's tests share: the default model, fetched once into the local cache."""

from pathlib import Path

import pytest

from engine.model_fetch import fetch_default_model


@pytest.fixture(scope="session")
def default_model() -> Path:
    return fetch_default_model(lambda stage, done, total: None)

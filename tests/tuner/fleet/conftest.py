"""Real llama.cpp servers that the tests of the fleet share. They hold no state that a test may count on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.model_config import ModelError
from tests.default_gguf import fetch_gguf
from tests.tuner.fleet.llama_server import Drafting, LlamaServer, start_llama


@pytest.fixture(scope="session")
def default_gguf(default_model: Path) -> Path:
    """The default model as llama.cpp reads it. `default_model` comes first: its download keeps the file."""
    try:
        return fetch_gguf()
    except ModelError as error:
        pytest.skip(f"the default model's GGUF is not here and cannot be fetched: {error}")


@pytest.fixture(scope="session")
def llama_plain(default_gguf: Path) -> Iterator[LlamaServer]:
    """A server that decodes plain."""
    with start_llama(default_gguf) as server:
        yield server


@pytest.fixture(scope="session")
def llama_ngram(default_gguf: Path) -> Iterator[LlamaServer]:
    """A server that drafts from n-grams of the request's own text."""
    with start_llama(default_gguf, Drafting.NGRAM) as server:
        yield server

"""Real vLLM servers. They need an environment that has one: `make test-vllm` makes it, and names it to the tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.launches import NGRAM, PLAIN
from tuner.bench.vllm_server import ENVIRONMENT_VARIABLE, VllmServer, running_vllm, vllm_environment


@pytest.fixture(scope="session")
def vllm_folder() -> Path:
    """The environment that vLLM is installed in."""
    if not (named := os.environ.get(ENVIRONMENT_VARIABLE)):
        pytest.skip(f"{ENVIRONMENT_VARIABLE} names no environment with vLLM; `make test-vllm` makes one")
    return vllm_environment(Path(named))


@pytest.fixture(scope="session")
def vllm_plain(vllm_folder: Path, default_model: Path) -> Iterator[VllmServer]:
    """A server that decodes plain."""
    with running_vllm(vllm_folder, default_model, PLAIN) as server:
        yield server


@pytest.fixture(scope="session")
def vllm_ngram(vllm_folder: Path, default_model: Path) -> Iterator[VllmServer]:
    """A server that drafts, and tells of it."""
    with running_vllm(vllm_folder, default_model, NGRAM) as server:
        yield server

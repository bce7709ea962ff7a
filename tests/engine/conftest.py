"""What the engine tests share: tiny models and the number of torch threads."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.weights import native_threads
from kernels.native_threads import NativeThreads
from tests.engine.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def native() -> NativeThreads:
    """The compiled kernels with two threads."""
    return native_threads(2)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs the test with each number of torch threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)

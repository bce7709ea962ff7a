"""The native kernels are compiled once, for the processor at hand, and say in one sentence why when they cannot be."""

import shutil
import sys
from pathlib import Path

import pytest

from engine.weights import native_threads
from kernels.native_library import NativeError, load_library


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda command: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes down each call and leaves what `made` holds as its result."""
    script = tmp_path / "compiler.py"
    script.write_text(
        "import pathlib, sys\n"
        "folder = pathlib.Path(__file__).parent\n"
        "if '--version' in sys.argv: print('made up 1.0'); sys.exit()\n"
        "with (folder / 'calls').open('a') as calls: calls.write('called\\n')\n"
        "if (folder / 'broken').exists(): print('x.c:1: error: no such thing', file=sys.stderr); sys.exit(1)\n"
        "pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_bytes(b'no library')\n"
    )
    monkeypatch.setenv("CC", f"{sys.executable} {script}")
    return tmp_path


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(NativeError, match="install gcc or clang, or `pip install ziglang`"):
        load_library(tmp_path)


def test_a_compiler_that_is_no_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    with pytest.raises(NativeError, match="CC is 'no-such-compiler -O3', which is no command here"):
        load_library(tmp_path)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(fake_compiler: Path, tmp_path: Path) -> None:
    (fake_compiler / "broken").touch()
    cache = tmp_path / "cache"
    with pytest.raises(NativeError, match="error: no such thing"):
        load_library(cache)
    assert list(cache.iterdir()) == []


def test_what_cannot_be_loaded_is_named_and_not_compiled_again(fake_compiler: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for _ in range(2):
        with pytest.raises(NativeError, match=r"cannot be loaded .* delete .*kernels-[0-9a-f]{24}\.so"):
            load_library(cache)
    assert (fake_compiler / "calls").read_text().splitlines() == ["called"]
    assert [file.suffix for file in cache.iterdir()] == [".so"]


def test_fewer_threads_than_one_are_refused() -> None:
    native = native_threads(1)
    with pytest.raises(ValueError, match="threads is 0"):
        native.resize(0)
    assert native.count == 1

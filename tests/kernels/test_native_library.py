"""The native kernels are compiled once, for the processor at hand, and say in one sentence why when they cannot be."""

import shutil
import signal
import subprocess
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
        "import os, pathlib, signal, sys\n"
        "folder = pathlib.Path(__file__).parent\n"
        "if '--version' in sys.argv: print('made up 1.0'); sys.exit()\n"
        "with (folder / 'calls').open('a') as calls: calls.write('called\\n')\n"
        "if (folder / 'broken').exists(): print('x.c:1: error: no such thing', file=sys.stderr); sys.exit(1)\n"
        "made = pathlib.Path(sys.argv[sys.argv.index('-o') + 1])\n"
        "made.write_bytes(b'no library')\n"
        "if (folder / 'fatal').exists(): (folder / 'fatal').unlink(); os.kill(os.getppid(), signal.SIGKILL)\n"
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
    assert [file.name for file in cache.iterdir()] == ["lock"]


def test_what_cannot_be_loaded_is_named_and_not_compiled_again(fake_compiler: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for _ in range(2):
        with pytest.raises(NativeError, match=r"cannot be loaded .* delete .*kernels-[0-9a-f]{24}\.so"):
            load_library(cache)
    assert (fake_compiler / "calls").read_text().splitlines() == ["called"]
    assert sorted(file.suffix for file in cache.iterdir()) == ["", ".so"]


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ('"', r"CC is '\"', which cannot be read \(No closing quotation\); name a C compiler, or unset it"),
        ("true", "CC is 'true', which makes no library; name another C compiler in CC"),
        ("false", "CC is 'false', which does not answer .*; name another C compiler in CC"),
        ("cat", "CC is 'cat', which does not compile the CPU kernels .*; name another C compiler in CC"),
    ],
)
def test_what_cc_names_and_is_no_compiler_is_told_in_one_sentence(
    named: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", named)
    with pytest.raises(NativeError, match=problem) as raised:
        load_library(tmp_path / "cache")
    assert "\n" not in str(raised.value)


def test_a_cache_that_cannot_be_written_is_named(fake_compiler: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NativeError, match=r"cannot be written into .*file"):
        load_library(tmp_path / "file" / "cache")


LOADING = (
    "import pathlib, sys; from kernels.native_library import load_library; load_library(pathlib.Path(sys.argv[1]))"
)


def test_what_a_killed_compilation_leaves_is_gone_after_the_next(fake_compiler: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (fake_compiler / "fatal").touch()
    killed = subprocess.run([sys.executable, "-c", LOADING, str(cache)])
    assert killed.returncode == -signal.SIGKILL
    assert [file.suffix for file in cache.iterdir() if file.name != "lock"] == [".unfinished"]
    earlier = cache / "tmpx2k9"  # an earlier version compiled in a folder of its own
    earlier.mkdir()
    (earlier / "kernels.so").touch()
    with pytest.raises(NativeError, match="cannot be loaded"):
        load_library(cache)
    assert sorted(file.suffix for file in cache.iterdir()) == ["", ".so"]


def test_of_processes_that_start_together_one_compiles(fake_compiler: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    started = [subprocess.Popen([sys.executable, "-c", LOADING, str(cache)], stderr=subprocess.PIPE) for _ in range(3)]
    for process in started:
        _, told = process.communicate()
        assert b"NativeError: the compiled kernels cannot be loaded" in told
    assert (fake_compiler / "calls").read_text().splitlines() == ["called"]
    assert sorted(file.suffix for file in cache.iterdir()) == ["", ".so"]


def test_fewer_threads_than_one_are_refused() -> None:
    native = native_threads(1)
    with pytest.raises(ValueError, match="threads is 0"):
        native.resize(0)
    assert native.count == 1

"""Files that commands write: known before the work whether they can be, whole or not there at all, one sentence."""

import errno
import importlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tuner.cli import app
from tuner.output_file import OutputFileError, check, write


def test_a_file_is_replaced_and_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")
    path.chmod(0o640)
    check(path)
    assert path.read_text() == "before", "a check changes nothing"
    write(path, "--json", b"after")
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_new_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write(tmp_path / "result.json", "--json", b"x")
    assert (tmp_path / "result.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_goes_on_leading_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "target")
    check(tmp_path / "link")
    write(tmp_path / "link", "--json", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_bytes() == b"x"


@pytest.mark.parametrize("fails", ["os.fsync", "tuner.output_file.Path.replace"])
@pytest.mark.parametrize("interrupted", [True, False])
def test_a_write_that_fails_or_is_interrupted_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, interrupted: bool
) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")

    def broken(*given: Any) -> None:
        raise KeyboardInterrupt if interrupted else OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fails, broken)
    with pytest.raises(KeyboardInterrupt if interrupted else OutputFileError) as caught:
        write(path, "--json", b"after")
    if not interrupted:
        assert str(caught.value) == (
            f"--json: {path} cannot be written (No space left on device): make room or mend it, or name another file, "
            "and run the command again."
        )
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_device_is_written_straight_and_its_failure_is_a_sentence() -> None:
    check(Path("/dev/null"))
    write(Path("/dev/null"), "--json", b"x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OutputFileError, match=r"^--json: /dev/full cannot be written \(No space left on device\)"):
        write(Path("/dev/full"), "--json", b"x")


@pytest.mark.parametrize("to_a_file", [True, False])
def test_standard_output_gets_all_that_is_written_to_it(tmp_path: Path, to_a_file: bool) -> None:
    script = (
        "from pathlib import Path; from tuner.output_file import check, write; path = Path('/dev/stdout'); check(path);"
        "print('before', flush=True); write(path, '--json', b'result\\n')"
    )
    if to_a_file:
        with (tmp_path / "out").open("wb") as out:
            subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
        told = (tmp_path / "out").read_text()
    else:
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told == "before\nresult\n"


def unwritable(folder: Path) -> dict[str, str]:
    """Paths that cannot be written, even by root, and what is said of each."""
    (folder / "file").touch()
    (folder / "circle").symlink_to(folder / "circle")
    return {
        str(folder / "absent" / "result"): "there is no folder",
        str(folder / "file" / "result"): "there is no folder",
        str(folder): "is a folder: name a file in it",
        str(folder / "circle"): "cannot be written (",
        str(folder / ("x" * 300)): "cannot be written (File name too long)",
        "/proc/result": "cannot be written (",
    }


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    for path, sentence in unwritable(tmp_path).items():
        with pytest.raises(OutputFileError) as caught:
            check(Path(path))
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("replay", "--scenario", "mixed"), "--json"),
        (("replay", "--scenario", "mixed"), "--plot"),
        (("trace", "verify"), "--json"),
        (("trace", "record"), "--out"),
        (("tune",), "--out"),
        (("bench",), "--json"),
        (("demo",), "--json"),
    ],
)
def test_every_command_that_writes_a_file_says_at_once_that_it_cannot(
    command: tuple[str, ...], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def works(*given: Any, **named: Any) -> None:
        raise AssertionError("it has begun to work")

    for module in ("service", "trace", "tune"):
        monkeypatch.setattr(importlib.import_module(f"tuner.cli.{module}"), "load_settings", works)
    monkeypatch.setattr("tuner.cli.replaying.run_replay", works)
    for path, sentence in unwritable(tmp_path).items():
        result = run(*command, option, path)
        assert result.exit_code == 2
        told = " ".join(result.stderr.split())
        assert option in told
        assert sentence in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("replay", "--seeds", "0"), "value for '--seeds': \"0\": it should be greater than or equal to 1."),
        (("replay", "--seeds", "-1"), "value for '--seeds': \"-1\": it should be greater than or equal to 1."),
        (("replay", "--seeds", "some"), "value for '--seeds': \"some\": it should be a valid integer."),
        (("tune", "--trials", "1"), "value for '--trials': \"1\": it should be greater than or equal to 2."),
        (("tune", "--tokens", "1"), "value for '--tokens': \"1\": it should be greater than or equal to 2."),
        (("bench", "--repeats", "0"), "value for '--repeats': \"0\": it should be greater than or equal to 1."),
        (("demo", "--minutes", "9"), "value for '--minutes': \"9\": it should be less than or equal to 5."),
        (("trace", "record", "--out", "x", "--routes", "nope"), "value for --routes: 'nope' is no route of the"),
        (("trace", "record", "--out", "x", "--routes", ""), "value for --routes: give at least one route"),
        (("trace", "verify", "--drafters", ","), "value for --drafters: give at least one drafter"),
        (("tune", "--study", ""), "value for --study: it is empty"),
        (("tune", "--storage", " "), "value for --storage: it is empty"),
        (("tune", "--sampler", ""), "value for --sampler: '' is none; give tpe or gp."),
    ],
)
def test_a_value_that_is_refused_is_named_with_its_option_before_anything_runs(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert os.listdir(tmp_path) == []

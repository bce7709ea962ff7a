"""`paceline plugin vllm`."""

from pathlib import Path

from typer.testing import CliRunner

from tuner.cli import app
from tuner.fleet.vllm.writing import PACKAGE


def test_it_writes_the_package_and_prints_a_line_to_paste(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plugin", "vllm", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / PACKAGE / "scheduler.py").is_file()
    assert f"PYTHONPATH={tmp_path.resolve()} " in done.output
    assert f"--scheduler-cls {PACKAGE}.PolicyScheduler" in done.output
    assert f"{PACKAGE}.AsyncPolicyScheduler" in done.output


def test_a_folder_of_somebody_else_is_one_sentence_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / PACKAGE).mkdir()
    done = CliRunner().invoke(app, ["plugin", "vllm", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "give another --out, or move it away" in done.output


def test_a_folder_that_cannot_be_written_is_one_sentence_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["plugin", "vllm", "--out", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert "cannot be written" in done.output


def test_another_engine_is_a_usage_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plugin", "sglang", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "'vllm'" in done.output

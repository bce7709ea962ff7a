"""`paceline plugin vllm`."""

import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rich.console import Console
from typer.testing import CliRunner

from policies.types import Mode
from tuner.cli import app
from tuner.fleet.vllm.writing import PACKAGE
from tuner.settings import Settings

DOCS = Path(__file__).resolve().parents[4] / "docs"


def test_it_writes_the_package_and_prints_a_line_to_paste(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plugin", "vllm", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / PACKAGE / "scheduler.py").is_file()
    assert f"PYTHONPATH={tmp_path.resolve()} " in done.output
    assert f"--scheduler-cls {PACKAGE}.PolicyScheduler" in done.output
    assert f"{PACKAGE}.AsyncPolicyScheduler" in done.output


def test_the_pages_show_what_it_prints(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["plugin", "vllm", "--out", str(tmp_path)]).output.splitlines()
    first = next(place for place, line in enumerate(printed) if line.startswith("  paceline sidecar "))
    end = next(place for place, line in enumerate(printed) if line.startswith("For what vLLM"))
    commands = "".join(f"{line[2:]}\n" for line in printed[first:end]).replace(str(tmp_path.resolve()), "/srv/paceline")
    for page in ("sidecar.md", "vllm-plugin.md"):
        assert commands in (DOCS / page).read_text(encoding="utf-8"), page


def test_what_it_prints_is_taken_by_the_command_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = CliRunner().invoke(app, ["plugin", "vllm", "--out", str(tmp_path)]).output.splitlines()
    (line,) = [line for line in printed if line.startswith("  paceline sidecar ")]
    taken: list[Settings] = []

    def run_sidecar(settings: Settings, console: Console) -> int:
        taken.append(settings)
        return 0

    monkeypatch.setattr("tuner.fleet.sidecar.run_sidecar", run_sidecar)
    assert CliRunner().invoke(app, shlex.split(line)[1:]).exit_code == 0
    (settings,) = taken
    orders, telemetry = f"127.0.0.1:{settings.admin.port}/plugin/orders", f"=127.0.0.1:{settings.fleet.plugin_port} "
    assert settings.fleet.mode is Mode.AUTO
    assert any(orders in each and telemetry in each for each in printed)
    assert f"--port {urlsplit(settings.fleet.upstreams['a'].url).port} " in " ".join(printed)
    assert len({settings.server.port, settings.admin.port, settings.fleet.plugin_port, 8080}) == 4


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

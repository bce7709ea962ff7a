"""`paceline sidecar` where it cannot start: one sentence, 2 for a wrong setting and 1 for what is in the way."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import app

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sentence(*arguments: str, exit_code: int = 2) -> str:
    """The one line on stderr of a command that ended with `exit_code`."""
    result = CliRunner().invoke(app, ["sidecar", "--port", "0", "--admin-port", "0", *arguments])
    assert result.exit_code == exit_code, result.output
    (line,) = result.stderr.splitlines()
    return line


def test_without_a_server_it_asks_for_one(folder: Path) -> None:
    assert "give --upstream URL" in sentence()
    assert list(folder.iterdir()) == []


def test_a_database_that_nobody_can_open_is_told_before_requests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATABASE__URL", "nonsense://somewhere")
    assert "database.url is 'nonsense://somewhere'" in sentence("--upstream", NOBODY)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in sentence("--upstream", NOBODY, "--port", str(port), exit_code=1)

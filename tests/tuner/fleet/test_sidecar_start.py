"""`paceline sidecar` where it cannot start: one sentence, 2 for a wrong setting and 1 for what is in the way."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import app
from tuner.http_servers import reaches

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("own", ["--port", "--admin-port"])
def test_a_sidecar_is_not_its_own_upstream(host: str, own: str) -> None:
    port = free_port()
    told = sentence("--upstream", f"http://{host}:{port}/v1", own, str(port))
    assert told.startswith(f'fleet.upstreams.a.url is "http://{host}:{port}", where this sidecar itself would listen')


def test_a_sidecar_that_listens_everywhere_is_not_its_own_upstream() -> None:
    port = free_port()
    told = sentence("--upstream", f"http://127.0.0.2:{port}", "--host", "0.0.0.0", "--port", str(port))
    assert "where this sidecar itself would listen" in told


def test_another_address_with_the_port_of_ones_own_is_another_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        assert reaches("127.0.0.1", port, own)
        for host in ("127.0.0.2", "192.0.2.1", "no.such.name.invalid", "a..b"):
            assert not reaches(host, port, own)
        assert not reaches("127.0.0.1", port + 1, own)

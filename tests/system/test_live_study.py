"""The live study in a whole service on the tiny model: candidates really serve, and no text changes."""

from pathlib import Path

import pytest

from policies.models import AuditRow
from tests.dashboards.prometheus_process import until
from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import DEADLINE_SECONDS, CycleLog, LiveService, live_service, tiny_settings
from tuner.settings import TunerSettings, TuneSettings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def texts(live: LiveService) -> list[str]:
    return [live.complete(seed=seed, temperature=0.9).json()["choices"][0]["text"] for seed in range(3)]


def served_by_a_candidate(log: CycleLog) -> bool:
    return any(one.window.trial for one in list(log.cycles))


def test_candidates_serve_in_windows_without_changing_a_text_and_leave_at_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The budget of a model this small is of milliseconds, which any stall of the machine spends.
    monkeypatch.setattr("tuner.root.tuning.guard_of", lambda snapshot: None)
    settings = tiny_settings(model, tmp_path / "paceline.db", TunerSettings(tick_seconds=0.02))
    tune = TuneSettings(window_seconds=0.2, share=0.5, windows=4)
    settings = settings.model_copy(
        update={"tune": tune, "engine": settings.engine.model_copy(update={"drafters": ("ngram", "suffix")})}
    )
    log = CycleLog()
    with live_service(settings) as live, live.service.listening(log):
        before = texts(live)
        started = live.admin.post("/api/v1/tuning", json={"reason": "a test"})
        assert started.status_code == 200, started.text
        during: list[str] = []
        with live.traffic(2):
            until(lambda: served_by_a_candidate(log) or None, DEADLINE_SECONDS, "a candidate has served")
            during += texts(live)
        assert during == before
        assert not any(one.window.trial and one.window.plain for one in log.cycles)
        stopped = live.admin.delete("/api/v1/tuning", params={"reason": "enough"}).json()
        assert stopped["state"] == "off"
        assert stopped["adopted"] == {}
        live.fold()
        left = len(log.cycles)
        assert texts(live) == before
        live.fold()
        assert not any(one.window.trial for one in log.cycles[left:])
    assert (tmp_path / "paceline-tune.db").is_file()


def test_with_the_setting_the_study_runs_from_the_start_and_is_audited(model: Path, tmp_path: Path) -> None:
    settings = tiny_settings(model, tmp_path / "paceline.db").model_copy(update={"tune": TuneSettings(live=True)})
    settings = settings.model_copy(update={"engine": settings.engine.model_copy(update={"drafters": ("ngram",)})})
    with live_service(settings) as live:
        assert live.admin.get("/api/v1/tuning").json()["state"] in ("trying", "held")
        assert live.service.recorder.flush(DEADLINE_SECONDS)
    assert audited(tmp_path / "paceline.db") == [("tuner", "tune-start", "the setting tune.live")]


def audited(database: Path) -> list[tuple[str, str, str]]:
    from sqlalchemy import create_engine, select
    from sqlalchemy.orm import Session

    with Session(create_engine(f"sqlite:///{database}")) as session:
        rows = session.scalars(select(AuditRow).where(AuditRow.action.startswith("tune")))
        return [(row.actor, row.action, row.reason) for row in rows]

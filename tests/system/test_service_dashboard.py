"""The dashboard over the real service: what its panels ask of a real Prometheus, real traffic answers."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dashboards.panel import Panel
from dashboards.serving import SERVING
from tests.dashboards.prometheus_process import running_prometheus, until
from tests.dashboards.scraped_endpoint import answer
from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import ENDLESS, live_service, tiny_settings
from tuner.settings import TunerSettings

QUICK = TunerSettings(switchback_window_seconds=0.2, switchback_share_start=0.5, switchback_share_floor=0.5)
ANSWER_SECONDS = 120.0


@pytest.mark.slow
@pytest.mark.binary("prometheus")
def test_every_query_of_the_dashboard_returns_data_of_the_real_service(tmp_path: Path) -> None:
    """Speculation is pinned on one route, so that there is something to show of it whatever the tuner thinks."""
    settings = tiny_settings(make_tiny_model(tmp_path / "model"), tmp_path / "paceline.db", QUICK)
    with live_service(settings) as live:
        pin = {"drafter": "ngram", "block_length": 4, "reason": "a trial", "expires_in": "2h"}
        assert live.admin.put("/api/v1/policies/chat/en/pin", json=pin).status_code == 200
        port = urlsplit(live.service.admin_url).port
        assert port is not None
        with (
            live.traffic(2, max_tokens=64, logit_bias=ENDLESS),
            live.traffic(1, route="story", max_tokens=64, logit_bias=ENDLESS, temperature=0.0),
            running_prometheus(tmp_path, port) as prometheus,
        ):
            missing = [(panel, query.expr) for panel in SERVING.panels for query in panel.queries]

            def all_answered() -> bool | None:
                missing[:] = [(panel, expr) for panel, expr in missing if not answer(prometheus, panel, expr)]
                return None if missing else True

            try:
                until(all_answered, ANSWER_SECONDS, "every query returns data")
            except AssertionError as error:
                raise AssertionError(f"{error}: {[describe(panel, expr) for panel, expr in missing]}") from error


def describe(panel: Panel, expr: str) -> str:
    return f"{panel.title}: {expr}"

"""Every panel of the fleet's dashboard answers in a real Prometheus that scrapes a real endpoint."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from dashboards.fleet import FLEET
from tests.dashboards.grafana_variables import substitute
from tests.dashboards.prometheus_process import Prometheus, until
from tests.dashboards.scraped_endpoint import ANSWER_SECONDS, answer, finite, scraping
from tests.tuner.fleet.fleet_examples import LANES, SPECULATES, STATE, exchange, plugin_state
from tests.tuner.telemetry_examples import GAUGES, INFO, NOW, ROUTES, policy, request, snapshot
from tuner.fleet.metrics import FleetMetrics
from tuner.fleet.types import End
from tuner.metric_table import NEEDS_OWN_ENGINE, NEEDS_PLUGIN
from tuner.metrics import Metrics

pytestmark = [pytest.mark.binary("prometheus"), pytest.mark.timeout(180)]

PANELS = {panel.title: panel for panel in FLEET.panels}


class Traffic:
    """A little more of the same traffic before each scrape: `a` drafts, `b` could and does not."""

    def __init__(self) -> None:
        self._server = Metrics(ROUTES, INFO, unknown=NEEDS_OWN_ENGINE | NEEDS_PLUGIN, clock=lambda: NOW)
        self._fleet = FleetMetrics(("a", "b"))
        self._fleet.set_upstreams((SPECULATES, replace(SPECULATES, name="b", url="http://127.0.0.1:8002")))
        self._fleet.set_lanes(LANES)
        self._lock = threading.Lock()
        self._scrapes = 0

    def scrape(self) -> bytes:
        """The endpoint's answer."""
        with self._lock:
            self._scrapes += 1
            self._serve()
            gauges = replace(GAUGES, engine=None, engine_up=self._fleet.any_up)
            return self._server.render(snapshot(policy()), gauges, self._fleet.families())

    def _serve(self) -> None:
        self._server.fold_request(request())
        for _ in range(3):
            self._fleet.fold(exchange())
        self._fleet.fold(exchange("b", "b", output_tokens=None))
        self._fleet.fold(exchange("b", "b", end=End.BROKEN, status=0))
        self._fleet.count_drafting("a", cycles=10, drafted=40, accepted=25)
        self._fleet.count_drafting("b", cycles=0, drafted=0, accepted=0)
        self._fleet.fold_plugin("a", "first", plugin_state(10 * self._scrapes))
        grown = {bound: count * self._scrapes for bound, count in STATE.overhead_seconds.items()}
        self._fleet.set_state(replace(STATE, overhead_seconds=grown))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with scraping(Traffic().scrape, tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.mark.parametrize("title", PANELS)
def test_each_query_of_a_panel_returns_data(prometheus: Prometheus, title: str) -> None:
    panel = PANELS[title]
    for query in panel.queries:
        what = f"{title}: {query.expr} returns data"
        until(partial(answer, prometheus, panel, query.expr), ANSWER_SECONDS, what)


@pytest.mark.parametrize(
    ("title", "index", "labels", "expected"),
    [
        ("Acceptance", 0, {"upstream": "a"}, 25 / 40),
        ("Tokens per cycle", 0, {"upstream": "a"}, 1 + 25 / 10),
        ("Down", 0, {"upstream": "b"}, 1.0),
        ("In flight", 0, {"upstream": "a"}, 2.0),
        ("Speedup against measured plain", 1, {"route": "code-edit", "language": "en"}, 1.7),
        ("What steering costs", 0, {"upstream": "a"}, 0.0001),
        # Three of four exchanges within 0.1 ms, the last within 1 ms: the median lies two thirds into the first bucket.
        ("Added by the proxy, p50 and p99", 0, {}, 0.0001 * 2 / 3),
        ("Faults of the plug-in", 0, {"upstream": "a"}, 0.0),
    ],
)
def test_a_panel_tells_the_truth_about_known_traffic(
    prometheus: Prometheus, title: str, index: int, labels: dict[str, str], expected: float
) -> None:
    query = substitute(PANELS[title].queries[index].expr)

    def read() -> float | None:
        values = finite([one for one in prometheus.query(query) if one["metric"] == labels])
        return values[0] if values else None

    assert until(read, ANSWER_SECONDS, f"{title} of {labels}") == pytest.approx(expected, rel=1e-6)


def test_only_who_could_draft_and_does_not_is_called_idle(prometheus: Prometheus) -> None:
    query = substitute(PANELS["Launched to draft, and idle"].queries[0].expr)
    found = until(lambda: prometheus.query(query) or None, ANSWER_SECONDS, "an idle drafter is seen")
    assert [one["metric"] for one in found] == [{"upstream": "b"}]


def test_what_no_sidecar_knows_has_no_series(prometheus: Prometheus) -> None:
    until(lambda: prometheus.query("paceline_upstream_up") or None, ANSWER_SECONDS, "the endpoint is scraped")
    for name in sorted(NEEDS_OWN_ENGINE | NEEDS_PLUGIN):
        assert prometheus.query(f'{{__name__=~"{name}(_bucket|_count|_sum)?"}}') == []

"""Every panel of the serving dashboard answers in a real Prometheus that scrapes a real endpoint."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from dashboards.serving import SERVING
from policies.stats import FinishReason
from policies.types import PLAIN_ARM
from tests.dashboards.grafana_variables import substitute
from tests.dashboards.prometheus_process import Prometheus, until
from tests.dashboards.scraped_endpoint import ANSWER_SECONDS, answer, finite, scraping
from tests.tuner.telemetry_examples import GAUGES, INFO, NOW, ROUTES, cycle, pin, policy, request, sequence, snapshot
from tuner.metrics import Metrics
from tuner.snapshot import PolicySnapshot, Throughput
from tuner.telemetry import TelemetryQueue

pytestmark = [pytest.mark.binary("prometheus"), pytest.mark.timeout(180)]

PANELS = {panel.title: panel for panel in SERVING.panels}


class Traffic:
    """Serves a little more of the same traffic before each scrape, and answers with its metrics."""

    def __init__(self) -> None:
        self._queue = TelemetryQueue()
        self._metrics = Metrics(ROUTES, INFO, clock=lambda: NOW)
        self._lock = threading.Lock()
        self._scrapes = 0

    def scrape(self) -> bytes:
        """The endpoint's answer."""
        with self._lock:
            self._scrapes += 1
            self._serve()
            self._queue.drain((self._metrics,))
            return self._metrics.render(self._snapshot(), GAUGES)

    def _serve(self) -> None:
        plain = sequence("chat", "de", "none", verified=0, accepted=0)
        for _ in range(3):
            self._queue.record_cycle(cycle(sequence(accepted=2), plain, prefill_tokens=16))
            self._queue.record_cycle(cycle(sequence(accepted=4), plain))
        self._queue.record_cycle(cycle(plain, plain, plain=True))
        self._queue.record_request(replace(request(), valid=True))
        self._queue.record_request(request("chat", "de", "none", finish=FinishReason.LENGTH, looped=True))
        self._metrics.count_policy_changes([policy()])

    def _snapshot(self) -> PolicySnapshot:
        policies = (policy(), policy("chat", "de", PLAIN_ARM, speedup=None))
        grown = Throughput(900 * self._scrapes, 9.0 * self._scrapes, 60 * self._scrapes, float(self._scrapes))
        return replace(snapshot(*policies, pins=(pin(),)), throughput=grown)


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
        # Four verified each time, of which two and four were kept by turns.
        ("Acceptance", 0, {"route": "code-edit", "language": "en"}, 0.75),
        ("Kept, by position", 0, {"drafter": "ngram", "position": "1"}, 1.0),
        ("Kept, by position", 0, {"drafter": "ngram", "position": "3"}, 0.5),
        ("Speedup against measured plain", 0, {"route": "code-edit", "language": "en"}, 1.9),
        ("Tokens per busy second, tuned and plain", 0, {"window": "served"}, 100.0),
        ("Tokens per busy second, tuned and plain", 0, {"window": "plain"}, 60.0),
        ("Switchback", 1, {}, 1 / 7),
        ("Looping outputs", 0, {"route": "chat"}, 1.0),
        ("Prefill speed", 0, {}, 2000.0),
        ("Seconds per output token", 1, {"route": "code-edit"}, 0.2 / 33),
        ("Policies in force", 2, {"route": "code-edit", "language": "en"}, 1.7),
        ("Block length by load", 0, {"route": "code-edit", "language": "en", "load": "4"}, 4.0),
    ],
)
def test_a_panel_tells_the_truth_about_known_traffic(
    prometheus: Prometheus, title: str, index: int, labels: dict[str, str], expected: float
) -> None:
    query = substitute(PANELS[title].queries[index].expr)

    def read() -> float | None:
        found = [one for one in prometheus.query(query) if one["metric"] == labels]
        values = finite(found)
        return values[0] if values else None

    assert until(read, ANSWER_SECONDS, f"{title} of {labels}") == pytest.approx(expected, rel=1e-6)


def test_an_absent_gain_is_not_drawn_as_a_number(prometheus: Prometheus) -> None:
    until(lambda: prometheus.query("paceline_policy_info") or None, ANSWER_SECONDS, "policies are scraped")
    known = {one["metric"]["route"] for one in prometheus.query("paceline_speedup_ratio")}
    assert known == {"code-edit"}

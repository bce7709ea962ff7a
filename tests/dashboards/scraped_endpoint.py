"""An endpoint that a real Prometheus scrapes, and what a panel gets when it asks as Grafana does."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dashboards.panel import Form, Panel
from tests.dashboards.grafana_variables import substitute
from tests.dashboards.prometheus_process import Prometheus, running_prometheus
from tuner.metrics import CONTENT_TYPE

ANSWER_SECONDS = 60.0


@contextmanager
def scraping(scrape: Callable[[], bytes], folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that asks `scrape` for its metrics every second; `folder` holds its storage."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = scrape()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: Prometheus asks every second."""

    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=endpoint.serve_forever, name="metrics endpoint")
    thread.start()
    try:
        with running_prometheus(folder, endpoint.server_port) as server:
            yield server
    finally:
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()


def finite(series: list[dict[str, Any]]) -> list[float]:
    """Every number of an answer that a chart could draw."""
    texts = [text for one in series for _, text in one.get("values", [one["value"]] if "value" in one else [])]
    return [number for number in map(float, texts) if math.isfinite(number)]


def answer(server: Prometheus, panel: Panel, expr: str) -> list[float] | None:
    """As Grafana asks for this panel; None while there is nothing to draw."""
    query = substitute(expr)
    lines = panel.form in (Form.LINES, Form.STACKED)
    return finite(server.query_range(query, 60) if lines else server.query(query)) or None

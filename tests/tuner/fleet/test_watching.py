"""An upstream whose metrics tell nothing: that it was started anew is seen at the next reading, not in a minute."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.tuner.fleet.test_metrics import read
from tuner.fleet.metrics import FleetMetrics
from tuner.fleet.settings import UpstreamSettings
from tuner.fleet.types import Upstream
from tuner.fleet.watching import Watch

RESTARTS = "upstream_restarts_total{upstream=a}"


class Server(ThreadingHTTPServer):
    """Lists `model`, and has no metrics."""

    allow_reuse_address = True
    daemon_threads = True
    model = "first"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        found = self.path == "/v1/models"
        body = json.dumps({"data": [{"id": self.server.model}]} if found else {}).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def serving(port: int = 0, model: str = "first") -> Iterator[Server]:
    with Server(("127.0.0.1", port), _Handler) as server:
        server.model = model
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Seen:
    """What a `Watch` told of upstream ``a``."""

    def __init__(self, port: int) -> None:
        self.metrics = FleetMetrics(("a",))
        self._told: asyncio.Queue[Upstream] = asyncio.Queue()
        settings = {"a": UpstreamSettings(url=f"http://127.0.0.1:{port}")}
        self.watch = Watch(settings, 0.01, False, self.metrics, lambda found, _: self._told.put_nowait(found[0]))

    async def next(self) -> tuple[str, ...]:
        """The models that are listed when the next change is told."""
        return (await asyncio.wait_for(self._told.get(), 30.0)).models


def test_another_model_on_the_same_port_is_seen_at_the_next_reading_and_counted() -> None:
    async def play(server: Server) -> None:
        seen = Seen(server.server_port)
        watching = asyncio.create_task(seen.watch.run())
        assert await seen.next() == ("first",)
        server.model = "second"
        assert await seen.next() == ("second",)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert read(seen.metrics)[RESTARTS] == 1

    with serving() as server:
        asyncio.run(play(server))

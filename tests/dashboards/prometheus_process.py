"""A real Prometheus on a free loopback port, its storage in a test's folder, ended by its process id."""

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

CONFIG = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: paceline
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


def until(ask: Callable[[], T | None], seconds: float, what: str) -> T:
    """The first answer that is not None; fails after `seconds`."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while (answer := ask()) is None:
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        pause.wait(0.2)
    return answer


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Its HTTP API."""

    url: str

    def ready(self) -> bool | None:
        """True once it serves queries; None before."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as response:
                return True if response.status == 200 else None
        except (OSError, HTTPException):
            return None

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The present value of each series: ``{"metric": labels, "value": [time, text]}``."""
        return self._ask("query", {"query": expr})

    def query_range(self, expr: str, seconds: float) -> list[dict[str, Any]]:
        """The last `seconds` of each series, a value a second: ``{"metric": labels, "values": [...]}``."""
        now = time.time()
        return self._ask("query_range", {"query": expr, "start": now - seconds, "end": now, "step": 1})

    def _ask(self, path: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        body = urllib.parse.urlencode(fields).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data=body, timeout=10) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@contextmanager
def running_prometheus(folder: Path, target_port: int) -> Iterator[Prometheus]:
    """A Prometheus that scrapes ``127.0.0.1:target_port/metrics`` every second."""
    binary = shutil.which("prometheus")
    assert binary is not None, "guard the test with @pytest.mark.binary('prometheus')"
    (folder / "prometheus.yml").write_text(CONFIG.format(port=target_port))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "prometheus.log"
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")

        def ready_or_dead() -> bool | None:
            assert process.poll() is None, f"prometheus ended at once:\n{log.read_text()}"
            return server.ready()

        until(ready_or_dead, 60, "prometheus serves queries")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

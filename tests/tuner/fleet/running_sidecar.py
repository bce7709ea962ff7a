"""`paceline sidecar` as people start it: a program of its own, on ports that the system chose."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.05
_DATA = re.compile(r"passing requests on at (http://\S+)/v1")
_ADMIN = re.compile(r"admin API and metrics at (http://\S+)")


@dataclass(frozen=True, slots=True)
class RunningSidecar:
    """A sidecar that passes requests on, and whose control process answers."""

    url: str
    """Of the data path, without ``/v1``."""
    admin_url: str
    process: "subprocess.Popen[bytes]"
    output: Path

    def told(self) -> str:
        """All that it printed."""
        return self.output.read_text(errors="replace")

    def admin(self, path: str) -> httpx.Response:
        """A reading of the admin port."""
        return httpx.get(f"{self.admin_url}{path}", timeout=30)

    def wait_for(self, url: str) -> None:
        """Until `url`, of the control process, answers 200."""
        until = time.monotonic() + START_SECONDS
        while httpx.get(url, timeout=30).status_code != 200:
            assert time.monotonic() < until, self.told()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_SECONDS)

    def wait_for_decision(self, pattern: str, headers: Mapping[str, str] | None = None) -> None:
        """Until `pattern`, a regular expression, is in the decision of a request with `headers`: what the control
        process says is in force some milliseconds after it was said. Asks for one token at a time."""
        with httpx.Client(base_url=self.url, timeout=START_SECONDS) as client:
            (model, *_) = client.get("/v1/models").json()["data"]
            message = {"role": "user", "content": "Hello"}
            body = {"model": model["id"], "messages": [message], "max_tokens": 1}
            until = time.monotonic() + START_SECONDS
            while time.monotonic() < until:
                answer = client.post("/v1/chat/completions", json=body, headers=dict(headers or {}))
                decision = answer.headers.get("x-paceline-decision")
                if decision is not None and re.search(pattern, decision):
                    return
        raise AssertionError(f"no decision has {pattern!r}: {self.told()}")

    def control_process(self) -> int:
        """The id of the control process: the child that is no helper of `multiprocessing`."""
        for children in Path(f"/proc/{self.process.pid}/task").glob("*/children"):  # by the thread that started them
            for child in children.read_text().split():
                if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                    return int(child)
        raise AssertionError("there is no control process")


@contextmanager
def start_sidecar(
    folder: Path,
    upstreams: Mapping[str, str],
    mode: str,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[RunningSidecar]:
    """A sidecar before `upstreams`, by name, that decides already; it is told to end when the block ends, and must.

    Args:
        folder: keeps its database and its output.
        upstreams: URLs by name.
        mode: of all routes.
        variables: more settings, by the names of their variables.
        arguments: more of the command line; what comes later goes before what came earlier.
    """
    output = folder / f"sidecar-{time.monotonic_ns()}.txt"
    command = [sys.executable, "-c", "from tuner.entry import main; main()", "sidecar", "--mode", mode]
    command += ["--port", "0", "--admin-port", "0"]
    for name, url in upstreams.items():
        command += ["--upstream", f"{name}={url}"]
    command += arguments
    environment = os.environ | {
        "PACELINE_DATABASE__URL": f"sqlite:///{folder / 'sidecar.db'}",
        "COLUMNS": "400",
        **(variables or {}),
    }
    with (
        output.open("wb") as sink,
        subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            url, admin_url = (_address(process, output, pattern) for pattern in (_DATA, _ADMIN))
            sidecar = RunningSidecar(url, admin_url, process, output)
            if mode != "observe":
                sidecar.wait_for_decision("")
            yield sidecar
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS) == 0, output.read_text(errors="replace")
        finally:
            process.kill()


def _address(process: "subprocess.Popen[bytes]", output: Path, pattern: re.Pattern[str]) -> str:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        text = output.read_text(errors="replace")
        if found := pattern.search(text):
            return found[1]
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
            break
    raise AssertionError(f"the sidecar did not start: {output.read_text(errors='replace')}")

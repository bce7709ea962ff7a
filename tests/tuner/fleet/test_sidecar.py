"""`paceline sidecar` as a process, in front of a real llama.cpp: what goes wrong beside the data path fails nobody."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.tuner.fleet.llama_server import LlamaServer
from tuner.cli import app

SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[3]
PACELINE = (sys.executable, "-c", "from tuner.entry import main; main()")


@dataclass
class SidecarProcess:
    """A sidecar that runs; what it prints is read as it comes."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    came: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.came:
                self.lines.append(line)
                self.came.notify_all()

    def printed(self, pattern: str, times: int = 1) -> str:
        """The first group of the given match of `pattern` in what was printed; waits until it is there."""
        found: list[str] = []

        def there() -> bool:
            found[:] = re.findall(pattern, " ".join(" ".join(self.lines).split()))
            return len(found) >= times

        with self.came:
            assert self.came.wait_for(there, SECONDS), f"{pattern} was not printed:\n{''.join(self.lines)}"
        return found[times - 1]

    @property
    def data_url(self) -> str:
        return self.printed(r"passing requests on at (\S+)/v1")

    @property
    def admin_url(self) -> str:
        return self.printed(r"admin API and metrics at (\S+)")

    def control_pid(self) -> int:
        """The process that learns."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        children = [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
        (control,) = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
        return int(control)


@contextmanager
def sidecar(folder: Path, *arguments: str, **environment: str) -> Iterator[SidecarProcess]:
    """Start one on free ports; it is killed at the end if it still runs."""
    command = [*PACELINE, "sidecar", "--port", "0", "--admin-port", "0", *arguments]
    given = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PACELINE_DATABASE__URL": f"sqlite:///{folder}/paceline.db",
        **environment,
    }
    with subprocess.Popen(
        command, cwd=folder, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        running = SidecarProcess(process)
        reader = threading.Thread(target=running.read)
        reader.start()
        try:
            yield running
        finally:
            process.kill()
            reader.join()


@contextmanager
def passed_on(listener: socket.socket, start: bytes) -> Iterator[None]:
    """While a request that begins with `start` waits for its answer; those before it, such as our own for metrics, get
    none."""
    listener.settimeout(SECONDS)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(SECONDS)
            if connection.recv(4096).startswith(start):
                yield
                return


def ask(url: str, **more: object) -> httpx.Response:
    body = {"model": "any", "prompt": "one two three one two", "max_tokens": 4, "temperature": 0, **more}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=SECONDS)


def test_requests_pass_while_the_control_process_is_dead_and_it_comes_back(
    llama_plain: LlamaServer, tmp_path: Path
) -> None:
    with sidecar(tmp_path, "--upstream", llama_plain.url) as running:
        assert running.admin_url
        os.kill(running.control_pid(), signal.SIGKILL)
        running.printed(r"(the control process ended; requests go on)")
        assert ask(running.data_url).status_code == 200
        running.printed(r"admin API and metrics at (\S+)", times=2)
        assert httpx.get(f"{running.admin_url}/livez", timeout=SECONDS).status_code == 200


def test_what_was_measured_while_the_control_process_was_dead_is_learned_once_it_is_back(
    llama_plain: LlamaServer, tmp_path: Path
) -> None:
    with sidecar(tmp_path, "--upstream", llama_plain.url) as running:
        assert running.admin_url
        os.kill(running.control_pid(), signal.SIGKILL)
        running.printed(r"(the control process ended; requests go on)")
        for _ in range(3):
            assert ask(running.data_url).status_code == 200
        admin = running.printed(r"admin API and metrics at (\S+)", times=2)
        folded = re.compile(r'^paceline_exchanges_total\{.*end="done".*\} 3', re.MULTILINE)
        for _ in range(1000):
            told = httpx.get(f"{admin}/metrics", timeout=SECONDS).text
            if folded.search(told):
                break
        assert folded.search(told), told


def test_a_second_signal_waits_for_nobody_and_leaves_no_traceback(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        sidecar(tmp_path, "--upstream", f"http://127.0.0.1:{silent.getsockname()[1]}") as running,
    ):
        assert running.admin_url
        url = httpx.URL(running.data_url)
        with socket.create_connection((url.host, url.port or 0), timeout=SECONDS) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            with passed_on(silent, b"POST /v1/completions"):
                running.process.send_signal(signal.SIGTERM)
                running.printed(r"(stopping: no more requests are taken)")
                running.process.send_signal(signal.SIGTERM)
                assert running.process.wait(SECONDS) == 128 + signal.SIGTERM
    assert "Traceback" not in "".join(running.lines)


def test_a_signal_while_the_control_process_starts_ends_both_with_0(tmp_path: Path) -> None:
    with sidecar(tmp_path, "--upstream", "http://127.0.0.1:9") as running:
        assert running.data_url
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SECONDS) == 0
    assert "Traceback" not in "".join(running.lines)


def test_a_signal_ends_both_processes_with_0(llama_plain: LlamaServer, tmp_path: Path) -> None:
    with sidecar(tmp_path, "--upstream", llama_plain.url) as running:
        assert running.admin_url
        control = running.control_pid()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SECONDS) == 0
        assert not Path(f"/proc/{control}").exists()


def test_a_database_that_cannot_be_reached_fails_no_request_and_no_order(
    llama_plain: LlamaServer, tmp_path: Path
) -> None:
    nowhere = f"sqlite:///{tmp_path}/no/such/folder/paceline.db"
    with sidecar(
        tmp_path, "--upstream", f"a={llama_plain.url}", "--mode", "auto", PACELINE_DATABASE__URL=nowhere
    ) as running:
        admin = running.admin_url
        assert ask(running.data_url).status_code == 200
        assert httpx.get(f"{admin}/readyz", timeout=SECONDS).status_code == 200
        order = {"route": "*", "active": True, "reason": "no database"}
        kill = httpx.post(f"{admin}/api/v1/kill-switch", json=order, timeout=SECONDS)
        assert kill.status_code == 200, kill.text
        # What is in force here reaches the data path by a message: the next request is asked until it has come.
        for _ in range(100):
            decision = ask(running.data_url).headers["x-paceline-decision"]
            if "KILL_SWITCH" in decision:
                break
        assert "KILL_SWITCH" in decision


def test_an_upstream_that_is_down_is_a_502_in_the_shape_of_openai_and_readiness_says_so(
    tmp_path: Path,
) -> None:
    with sidecar(tmp_path, "--upstream", "http://127.0.0.1:9") as running:
        answer = ask(running.data_url)
        assert answer.status_code in (502, 503)
        assert answer.json()["error"]["message"].endswith(".")
        assert httpx.get(f"{running.admin_url}/readyz", timeout=SECONDS).status_code == 503


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "fleet.upstreams is empty"),
        (("--upstream", "127.0.0.1:8080"), "fleet.upstreams.a.url is '127.0.0.1:8080'"),
        (("--upstream", "a=http://h:1", "--upstream", "a=http://h:2"), "give each upstream a name of its own"),
        (("--upstream", "http://h:1", "--upstream", "http://h:1/v1"), "give each URL once"),
    ],
)
def test_what_keeps_a_sidecar_from_starting_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["sidecar", *arguments])
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())


def test_a_sidecar_needs_no_tensor_library() -> None:
    program = "import json, sys, tuner.fleet.sidecar; print(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "transformers", "optuna", "triton"} & set(json.loads(done.stdout))

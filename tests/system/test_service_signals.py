"""``paceline serve`` as a process of its own: ended by a signal, it ends in order."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import httpx

from policies.store import Store
from tests.engine.tiny_model import make_tiny_model
from tests.system.live_service import DEADLINE_SECONDS, ENDLESS

TOKENS = 60_000
"""Far more than the seconds that requests get to end are enough for."""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def url_in(process: "subprocess.Popen[str]") -> str:
    """Where it serves, from what it prints; fails when it ends instead."""
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"serving tiny at (http://\S+)/v1", line)
        if found:
            return found.group(1)
    raise AssertionError(f"it ended with {process.wait()} before it served")


def serve(folder: Path, database: str, errors: IO[str]) -> "subprocess.Popen[str]":
    """``paceline serve`` of a tiny model on free ports."""
    settings = {
        "PACELINE_MODEL__PATH": str(make_tiny_model(folder / "model", max_position=TOKENS + 64)),
        "PACELINE_MODEL__NAME": "tiny",
        "PACELINE_MODEL__THREADS": "1",
        "PACELINE_ENGINE__CONTEXT_LIMIT": str(TOKENS + 64),
        "PACELINE_ENGINE__SLOTS": "4",
        "PACELINE_DATABASE__URL": database,
        "COLUMNS": "200",
    }
    command = [sys.executable, "-c", "from tuner.cli import main; main()", "serve", "--port", "0", "--admin-port", "0"]
    return subprocess.Popen(
        command, env=os.environ | settings, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder
    )


def test_sigint_during_the_start_ends_it_without_serving(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w+") as errors:
        process = serve(tmp_path, f"sqlite:///{tmp_path / 'paceline.db'}", errors)
        assert process.stdout is not None
        try:
            assert any("calibrating" in line for line in process.stdout)
            (engine,) = children(process.pid)
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            assert process.wait(DEADLINE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        assert "Traceback" not in errors.read()
    assert "stopped before the start was done" in rest
    assert "serving" not in rest
    assert not Path(f"/proc/{engine}").exists()


def test_sigterm_with_a_stream_in_flight_ends_everything_with_exit_code_0(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'paceline.db'}"
    with (tmp_path / "errors").open("w+") as errors:
        process = serve(tmp_path, database, errors)
        try:
            base = url_in(process)
            (engine,) = children(process.pid)
            assert b"engine.process" in Path(f"/proc/{engine}/cmdline").read_bytes()
            body = {"model": "tiny", "prompt": "one two", "max_tokens": TOKENS, "n": 4, "logit_bias": ENDLESS}
            url = f"{base}/v1/completions"
            with httpx.stream("POST", url, json=body | {"stream": True}, timeout=DEADLINE_SECONDS) as answer:
                lines = answer.iter_lines()
                assert json.loads(next(lines).removeprefix("data: "))["model"] == "tiny"
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
        assert process.stdout is not None
        said = process.stdout.read()
        process.stdout.close()
        errors.seek(0)
        told = errors.read()
    assert said.count("stopping: no more requests are taken") == 1
    assert "Traceback" not in told
    assert "timeout graceful shutdown exceeded" in told, "the streams were still in flight"
    assert not Path(f"/proc/{engine}").exists()
    windows = Store(database).request_windows(0.0)
    assert sum(window.cancelled for window in windows) == 4

"""What `.ci/install` asks pip for, with a Python that only writes down how it is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NVIDIA = Path("/proc/driver/nvidia/version").exists()
PYTHON = """#!/usr/bin/env bash
case "$*" in
*"-m venv "*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
*found.version*) exit "$TORCH_IS_THERE" ;;
*"-m pip "*)
    all=$*
    echo "${all#*--progress-bar off }" >>"$CALLS"
    case "$*" in
    *--extra-index-url*) exit "$PYTORCH_ORG" ;;
    *+cpu) exit "$KNOWN_INDEX" ;;
    esac
    ;;
esac
"""
KNOWN = "torch==2.13.0+cpu"
PYTORCH_ORG = f"{KNOWN} --extra-index-url https://download.pytorch.org/whl/cpu"
PAIRS = [
    pytest.param({"KNOWN_INDEX": "0"}, [KNOWN], id="an index that pip knows has it"),
    pytest.param({"PYTORCH_ORG": "0"}, [KNOWN, PYTORCH_ORG], id="pytorch.org has it"),
    pytest.param({}, [KNOWN, PYTORCH_ORG], id="nobody has it"),
    pytest.param({"TORCH_IS_THERE": "0"}, [], id="a torch is there"),
]


@pytest.mark.skipif(sys.platform != "linux" or NVIDIA, reason="an NVIDIA GPU takes PyPI's torch")
@pytest.mark.parametrize(("answers", "asked"), PAIRS)
def test_without_a_gpu_the_cpu_build_of_torch_is_asked_for_first(
    answers: dict[str, str], asked: list[str], tmp_path: Path
) -> None:
    python, calls = tmp_path / "python3.11", tmp_path / "calls"
    python.write_text(PYTHON)
    python.chmod(0o755)
    fails = {"KNOWN_INDEX": "1", "PYTORCH_ORG": "1", "TORCH_IS_THERE": "1"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", ".ci/install", str(tmp_path / "venv")],
        cwd=ROOT,
        env={**os.environ, **fails, **answers, "PATH": path, "CALLS": str(calls), "CC": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    *before, last = calls.read_text().splitlines()
    assert before == asked
    assert last.strip() == "--editable .[engine,dev]"
    assert ("taking PyPI's torch, which is large" in done.stdout) is (not answers)


def test_progress_on_a_terminal_is_cut_to_its_columns() -> None:
    script = (ROOT / ".ci/install").read_text(encoding="utf-8")
    show = script[script.index("show_progress() {") : script.index("attempt() {")]
    leader, follower = os.openpty()
    with os.fdopen(leader, "rb", buffering=0) as terminal:
        subprocess.run(
            ["bash", "-c", f"log=/dev/null\n{show}\necho Collecting {'x' * 200} | show_progress"],
            stdout=follower,
            env={**os.environ, "COLUMNS": "40"},
            check=True,
        )
        os.close(follower)
        (line,) = [part for part in terminal.read(1000).decode().split("\r\x1b[K") if part.strip()]
    assert line == f"  Collecting {'x' * 26}"

"""What a measured number says of its machine."""

import json
import os
import platform
import re
import subprocess
from pathlib import Path

from tests.tuner.telemetry_examples import INFO
from tuner.machine import describe_machine, source_commit


def test_the_machine_is_described_without_naming_it() -> None:
    description = describe_machine()
    text = json.dumps(description)
    assert description["processor"]
    assert description["cores"] == len(os.sched_getaffinity(0))
    assert platform.node() not in re.findall(r"[\w.-]+", text)
    assert os.getcwd() not in text


def test_the_versions_are_those_installed() -> None:
    description = describe_machine()
    assert description["python"] == platform.python_version()
    assert str(description["torch"]).startswith("2.13.0")
    assert description["paceline"] != "not installed"


def test_a_checkout_tells_its_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "machine.py"
    file.write_text("one\n")
    assert source_commit(tmp_path) is None, "no repository"
    git("init", "--quiet")
    assert source_commit(tmp_path) is None, "a repository of somebody else"
    git("add", "machine.py")
    git("commit", "--quiet", "-m", "one")
    commit = git("rev-parse", "--short", "HEAD")
    assert source_commit(tmp_path) == commit
    results = tmp_path / "docs" / "results.json"
    results.parent.mkdir()
    results.write_text("1\n")
    git("add", "docs")
    assert source_commit(tmp_path) == commit, "results are no source"
    file.write_text("two\n")
    assert source_commit(tmp_path) == f"{commit}-dirty"


def test_the_engine_in_use_is_part_of_it() -> None:
    assert "model" not in describe_machine()
    description = describe_machine(INFO)
    assert (description["model"], description["dtype"], description["threads"]) == ("tiny", "float32", 1)
    assert (description["slots"], description["context_limit"]) == (6, 512)

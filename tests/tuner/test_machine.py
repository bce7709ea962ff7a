"""What a measured number says of its machine."""

import json
import os
import platform
import re

from tests.tuner.telemetry_examples import INFO
from tuner.machine import describe_machine


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


def test_the_engine_in_use_is_part_of_it() -> None:
    assert "model" not in describe_machine()
    description = describe_machine(INFO)
    assert (description["model"], description["dtype"], description["threads"]) == ("tiny", "float32", 1)
    assert (description["slots"], description["context_limit"]) == (6, 512)

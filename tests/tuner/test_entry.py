"""The script `paceline` under an interrupt, whatever it is importing then."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tuner.entry import main

INTERRUPTED_IMPORT = """
import importlib.abc, os, signal, sys
from tuner.entry import main

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        return None

interrupted = sys.argv[1]
sys.meta_path.insert(0, Interrupt())
sys.argv = ["paceline", "draft", "list"]
main()
"""


@pytest.mark.parametrize("module", ["typer", "sqlalchemy.orm", "tuner.cli.draft", "tuner.root", "safetensors"])
def test_an_interrupt_during_imports_is_one_line(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 130
    assert (ended.stdout, ended.stderr) == ("", "Stopped.\n")


def test_the_script_is_this_one() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, name = project["project"]["scripts"]["paceline"].partition(":")
    assert getattr(import_module(module), name) is main

"""Writes ``paceline_vllm``: the plug-in and what it needs of `policies`, as a package that needs nothing else."""

import ast
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import policies
from tuner.fleet.vllm import plugin

PACKAGE = "paceline_vllm"
_SOURCE = plugin.__name__
_HEADER = "# Written by `paceline plugin vllm`; changes are lost when it is written anew. Paceline "
_OURS = re.compile(rf"^(\s*)from (?:({re.escape(_SOURCE)})|policies)\b", re.MULTILINE)


class ForeignFolder(ValueError):
    """What is to be written over was not written by this; the text is one sentence."""


def plugin_files() -> dict[str, bytes]:
    """The package: contents by path below its folder, the same bytes each time."""
    found: dict[str, str] = {}
    for path in sorted(Path(plugin.__path__[0]).glob("*.py")):
        found[path.name] = path.read_text(encoding="utf-8")
    root = Path(policies.__path__[0])
    found["policies/__init__.py"] = '"""The part of Paceline\'s policies that steering vLLM needs."""\n'
    needed = _policies_of(found.values())
    while needed:
        module = needed.pop()
        name = f"policies/{module}.py"
        if name not in found:
            found[name] = (root / f"{module}.py").read_text(encoding="utf-8")
            needed |= _policies_of([found[name]])
    header = f"{_HEADER}{version('paceline')}.\n"
    return {name: (header + _renamed(text)).encode() for name, text in sorted(found.items())}


def write_plugin(out: Path) -> Path:
    """Write the package into the folder `out`, which is made where it is not there; returns the package's folder.

    What an earlier version wrote there and this one has not goes; files that somebody else added stay.

    Raises:
        ForeignFolder: there is something of the package's name that this did not write.
        OSError: it cannot be written.
    """
    folder = out / PACKAGE
    files = plugin_files()
    if folder.exists():
        if not _is_ours(folder / "__init__.py"):
            raise ForeignFolder(
                f"{folder} is there and was not written by `paceline plugin vllm`: give another --out, or move it away"
            )
        for path in folder.rglob("*.py"):
            if path.relative_to(folder).as_posix() not in files and _is_ours(path):
                path.unlink()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def _is_ours(path: Path) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(_HEADER)


def _policies_of(texts: Iterable[str]) -> set[str]:
    """The modules of `policies` that sources import."""
    modules: set[str] = set()
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("policies."):
                modules.add(node.module.split(".")[1])
    return modules


def _renamed(text: str) -> str:
    return _OURS.sub(lambda found: f"{found[1]}from {PACKAGE}{'' if found[2] else '.policies'}", text)

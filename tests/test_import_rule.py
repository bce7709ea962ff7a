"""The walls between the rooms: who may import what, what an import may load, and how files may be named."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ALLOWED = {
    "policies": (),
    "kernels": (),
    "engine": ("kernels", "policies"),
    "tuner": ("policies",),
    "migrations": ("policies.models",),
    "dashboards": ("tuner.metrics",),
}
"""What each room may import of ours besides itself, as module prefixes. Third-party packages are not its business."""

COMPOSITION_ROOT = "tuner/root/"
"""The one package of the tuner that may import the engine."""

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base"}

TENSOR_LIBRARIES = ("torch", "transformers", "triton", "optuna")
LIGHT_IMPORTS = {
    "policies": ("sqlalchemy", *TENSOR_LIBRARIES),
    "policies.allocate": ("sqlalchemy", *TENSOR_LIBRARIES),
    "policies.ladder": ("sqlalchemy", *TENSOR_LIBRARIES),
    "kernels": TENSOR_LIBRARIES,
    "kernels.sampling": TENSOR_LIBRARIES,
    "engine": TENSOR_LIBRARIES,
    "engine.scheduler": TENSOR_LIBRARIES,
    "engine.request": TENSOR_LIBRARIES,
    "engine.blocks": TENSOR_LIBRARIES,
    "engine.messages": TENSOR_LIBRARIES,
    "tuner.cli": TENSOR_LIBRARIES,
    "tuner.metrics": TENSOR_LIBRARIES,
    "migrations": TENSOR_LIBRARIES,
}
"""What importing a module must not load."""


def imported_modules(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import in `source`, wherever it stands: lazy and type-checking ones too.

    `from a import b` yields ``a.b``, since b may be a module; a prefix rule is served by either.
    """
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                anchor = package[: len(package) - (node.level - 1)]
                origin = ".".join([*anchor, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}".lstrip(".")
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def violations(relative: str, source: str) -> list[str]:
    """One sentence for each import in the file `relative` (a path from the repository's root) that breaks a wall."""
    room = relative.split("/")[0]
    path = Path(relative)
    is_package = path.name == "__init__.py"
    module = ".".join([*path.parent.parts, *([] if is_package else [path.stem])])
    allowed = (room, *ALLOWED[room], *(("engine",) if relative.startswith(COMPOSITION_ROOT) else ()))
    found = []
    for line, imported in imported_modules(source, module, is_package=is_package):
        if imported.split(".")[0] not in (*ALLOWED, "tests"):
            continue
        if not any(imported == prefix or imported.startswith(prefix + ".") for prefix in allowed):
            found.append(f"{relative}:{line} imports {imported}; {room} may import {', '.join(allowed)} of ours")
    return found


def badly_named(relative: list[str]) -> list[str]:
    """Paths whose name says nothing of what they own, or that are a module and a package at once."""
    paths = [Path(name) for name in relative]
    vague = [str(path) for path in paths if {path.stem, path.parent.name} & FORBIDDEN_NAMES]
    packages = {path.parent for path in paths}
    twice = [f"{path} and {path.with_suffix('')}/" for path in paths if path.with_suffix("") in packages]
    return vague + twice


def source_files(*rooms: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py"))


def loaded_by(module: str) -> set[str]:
    """Top-level names in sys.modules after a fresh interpreter imported `module`."""
    program = f"import json, sys; import {module}; print(json.dumps([name.split('.')[0] for name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"import {module} failed:\n{done.stderr}"
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_room_imports_only_what_the_design_allows() -> None:
    files = source_files(*ALLOWED)
    assert {name.split("/")[0] for name in files} == set(ALLOWED), "a room has no Python file, or lost its name"
    assert [sentence for name in files for sentence in violations(name, (ROOT / name).read_text())] == []


@pytest.mark.parametrize("module", sorted(LIGHT_IMPORTS))
def test_an_import_loads_no_more_than_the_design_allows(module: str) -> None:
    assert loaded_by(module) & set(LIGHT_IMPORTS[module]) == set()


def test_no_file_is_named_for_nothing_and_no_name_is_both_module_and_package() -> None:
    assert badly_named(source_files(*ALLOWED, "tests")) == []


def test_the_kernels_package_cannot_be_taken_for_the_distribution_of_that_name() -> None:
    tree = ast.parse((ROOT / "kernels/__init__.py").read_text())
    for statement in tree.body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_export = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
        is_import = isinstance(statement, ast.ImportFrom) and "__version__" not in ast.unparse(statement)
        assert is_docstring or is_export or is_import, ast.unparse(statement)


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("engine/loop.py", "import tuner.controller"),
        ("engine/server/app.py", "from tuner import telemetry"),
        ("engine/server/app.py", "from ... import tuner"),
        ("tuner/controller.py", "from engine.messages import Submit"),
        ("tuner/demo.py", "def run() -> None:\n    import engine.process"),
        ("tuner/bench/floor.py", "import importlib\nimportlib.import_module('engine.loop')"),
        ("tuner/api/app.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kernels import philox"),
        ("policies/types.py", "import kernels.sampling"),
        ("kernels/philox.py", "from policies import Context"),
        ("migrations/env.py", "from policies.store import Store"),
        ("migrations/env.py", "import policies"),
        ("dashboards/serving.py", "from tuner.controller import Controller"),
        ("policies/store.py", "from tests.conftest import SEED"),
    ],
)
def test_the_checker_reports_a_forbidden_import(relative: str, source: str) -> None:
    assert len(violations(relative, source)) == 1


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("tuner/root/serve.py", "from engine.process import EngineClient"),
        ("tuner/api/app.py", "from ..snapshot import PolicySnapshot"),
        ("tuner/controller.py", "import policies_of_another_house"),
        ("migrations/env.py", "from policies.models import Row"),
        ("engine/loop.py", "import torch\nfrom kernels.sampling import Block\nfrom . import cycle"),
        ("dashboards/serving.py", "from tuner.metrics import METRICS"),
    ],
)
def test_the_checker_lets_an_allowed_import_pass(relative: str, source: str) -> None:
    assert violations(relative, source) == []


def test_the_checker_reports_bad_names() -> None:
    assert badly_named(["tuner/utils.py", "engine/helpers/x.py", "tuner/cost_model.py"]) == [
        "tuner/utils.py",
        "engine/helpers/x.py",
    ]
    assert badly_named(["tuner/cli.py", "tuner/cli/__init__.py"]) == ["tuner/cli.py and tuner/cli/"]


def test_the_loading_check_sees_what_an_import_loads() -> None:
    assert "sqlalchemy" in loaded_by("sqlalchemy.engine")

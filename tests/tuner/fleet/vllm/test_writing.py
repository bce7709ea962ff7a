"""The package for vLLM's environment: it needs nothing but the standard library."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.fleet.vllm.writing import PACKAGE, ForeignFolder, plugin_files, write_plugin

CHECK = """
import sys, types
sys.path.insert(0, sys.argv[1])
for room in ("policies", "tuner", "engine", "kernels"):
    try:
        __import__(room)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{room} can be imported here")

for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["vllm"].__version__ = "0.32.0"
for name, kind in (("scheduler", "Scheduler"), ("async_scheduler", "AsyncScheduler")):
    module = sys.modules[f"vllm.v1.core.sched.{name}"] = types.ModuleType(name)
    setattr(module, kind, type(kind, (), {}))

import paceline_vllm
assert [each.__name__ for each in paceline_vllm.PolicyScheduler.__mro__] == [
    "PolicyScheduler", "Steered", "Scheduler", "object"]
assert paceline_vllm.AsyncPolicyScheduler.asynchronous
try:
    paceline_vllm.PolicySchedule
except AttributeError as error:
    print(error)
"""


def test_it_is_imported_where_paceline_is_not_installed(tmp_path: Path) -> None:
    write_plugin(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", CHECK, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "module 'paceline_vllm' has no attribute 'PolicySchedule'\n"


def test_it_imports_the_standard_library_itself_and_vllm_alone() -> None:
    roots = set()
    for name, content in plugin_files().items():
        for node in ast.walk(ast.parse(content)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module or ""]
            assert not any(one.startswith("vllm") for one in names) or name in ("scheduler.py", "steered.py")
            roots |= {one.split(".")[0] for one in names}
    assert roots - set(sys.stdlib_module_names) == {PACKAGE, "vllm"}


def test_no_file_or_folder_has_a_name_that_others_look_for() -> None:
    parts = {part.removesuffix(".py") for name in plugin_files() for part in Path(name).parts}
    assert not parts & {"kernels", "utils", "common"}


def test_it_is_the_same_bytes_each_time_and_says_who_wrote_it(tmp_path: Path) -> None:
    first, again = plugin_files(), plugin_files()
    assert first == again
    folder = write_plugin(tmp_path)
    written = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert written == first
    assert all(content.startswith(b"# Written by `paceline plugin vllm`") for content in written.values())


def test_it_is_written_anew_over_itself_and_only_what_is_its_own_goes(
    tmp_path: Path,
) -> None:
    folder = write_plugin(tmp_path)
    (folder / "older.py").write_bytes(plugin_files()["seat.py"])
    (folder / "mine.py").write_text("import os\n")
    (folder / "seat.py").write_text("changed")
    write_plugin(tmp_path)
    assert not (folder / "older.py").exists()
    assert (folder / "mine.py").read_text() == "import os\n"
    assert (folder / "seat.py").read_bytes() == plugin_files()["seat.py"]


@pytest.mark.parametrize("content", [None, "", "import os\n"])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    if content is not None:
        (folder / "__init__.py").write_text(content)
    with pytest.raises(ForeignFolder, match="was not written by `paceline plugin vllm`: give another --out"):
        write_plugin(tmp_path)
    assert [path.name for path in folder.iterdir()] == ([] if content is None else ["__init__.py"])

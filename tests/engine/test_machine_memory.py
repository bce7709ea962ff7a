"""The memory of the machine and of the containers on it, from trees of files as Linux has them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.machine_memory import free_bytes, machine_bytes

V2, V1 = "0::/user.slice/job/step\n", "3:cpu,cpuacct:/a\n5:memory:/docker/abc\n0::/init\n"


def make_system(root: Path, groups: str | None, files: Mapping[str, int | str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:        8192 kB\nMemFree:         1 kB\nMemAvailable:    7168 kB\n")
    if groups is not None:
        (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        (None, {}, 8),
        (V2, {}, 8),
        (V2, {"memory.max": "max"}, 8),
        (V2, {"memory.max": 4 << 20}, 4),
        (V2, {"memory.max": 1 << 40}, 8),
        (V2, {"memory.max": 4 << 20, "user.slice/job/step/memory.max": 3 << 20}, 3),
        (V2, {"user.slice/job/step/memory.max": 3 << 20, "user.slice/memory.max": 2 << 20}, 2),
        (V2, {"user.slice/job/memory.max": "max", "user.slice/memory.max": "max"}, 8),
        (V2, {"user.slice/other/memory.max": 1 << 20}, 8),
        ("0::/../../job\n", {"memory.max": 5 << 20}, 5),
        ("0::/\n", {"memory.max": 5 << 20}, 5),
        (V1, {"memory/memory.limit_in_bytes": (1 << 63) - 4096}, 8),
        (V1, {"memory/memory.limit_in_bytes": 6 << 20, "memory/docker/abc/memory.limit_in_bytes": 2 << 20}, 2),
        (V1, {"memory/docker/memory.limit_in_bytes": 3 << 20, "cpu,cpuacct/a/memory.limit_in_bytes": 1 << 20}, 3),
        (V1, {"unified/init/memory.max": 4 << 20}, 4),
    ],
)
def test_a_process_has_no_more_than_the_least_limit_of_the_groups_around_it(
    tmp_path: Path, groups: str | None, limits: dict[str, int | str], expected: int
) -> None:
    """`expected` is in MiB, and so is the machine's memory, 8."""
    make_system(tmp_path, groups, limits)
    assert machine_bytes(tmp_path) == expected << 20


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (None, {}, 7),
        (V2, {"user.slice/memory.max": 4 << 20, "user.slice/memory.current": 1 << 20}, 3),
        (V2, {"user.slice/memory.max": 4 << 20, "user.slice/memory.current": 5 << 20}, 0),
        (V2, {"user.slice/memory.max": "max", "user.slice/memory.current": 5 << 20}, 7),
        (
            V2,
            {
                "memory.max": 4 << 20,
                "memory.current": 3 << 20,
                "memory.stat": f"anon 1\nactive_file 5\ninactive_file {1 << 20}",
            },
            2,
        ),
        (
            V1,
            {
                "memory/docker/memory.limit_in_bytes": 4 << 20,
                "memory/docker/memory.usage_in_bytes": 3 << 20,
                "memory/docker/memory.stat": f"inactive_file 0\ntotal_inactive_file {2 << 20}",
            },
            3,
        ),
    ],
)
def test_what_is_free_is_what_the_least_group_has_left(
    tmp_path: Path, groups: str | None, files: dict[str, int | str], expected: int
) -> None:
    """`expected` is in MiB; 7 of the machine's 8 are available."""
    make_system(tmp_path, groups, files)
    assert free_bytes(tmp_path) == expected << 20


def test_a_system_that_tells_nothing_sets_no_limit(tmp_path: Path) -> None:
    assert machine_bytes(tmp_path) is None
    assert free_bytes(tmp_path) is None


def test_the_memory_of_this_machine_is_known() -> None:
    assert 64 << 20 < (free_bytes() or 0) <= (machine_bytes() or 0)

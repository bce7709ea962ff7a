"""The memory that the system gives this process: the machine's, within the limits of its control groups (containers).

/proc/self/cgroup has a line ``0::/path`` for the groups of version 2, ``N:memory:/path`` for those of version 1. Every
group from a process's own to the top may have a limit. A container may see its own group as the top of the tree: what
the path adds to it is then not there, or above it.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def machine_bytes(root: Path = _ROOT) -> int | None:
    """What this process may come to take, others left out of account.

    Args:
        root: where ``proc`` and ``sys`` are.

    Returns:
        Bytes; None where the system does not tell.
    """
    found = _from_meminfo(root, "MemTotal:")
    found += [limit for limit, _ in _limits(root)]
    return min(found, default=None)


def free_bytes(root: Path = _ROOT) -> int | None:
    """What this process may still take now; as `machine_bytes`."""
    found = _from_meminfo(root, "MemAvailable:")
    found += [max(0, limit - used) for limit, used in _limits(root)]
    return min(found, default=None)


def _from_meminfo(root: Path, name: str) -> list[int]:
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return []
    lines = meminfo.read_text(encoding="ascii").splitlines()
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith(name)]


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that the system cannot take back) of each group that has a limit."""
    for folder, names in _groups(root):
        limit, used = (_number(folder / name) for name in names)
        if limit is not None:
            yield limit, max(0, (used or 0) - _file_cache(folder / "memory.stat"))


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str]]]:
    """Folders of this process's control groups, with the files of limit and use."""
    groups = root / "proc/self/cgroup"
    if not groups.exists():
        return
    tree = root / "sys/fs/cgroup"
    for line in groups.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        tops: tuple[Path, ...]
        if not controllers:
            tops, names = (tree, tree / "unified"), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            tops, names = (tree / "memory",), ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in PurePosixPath(path).parts[1:] if part != ".."]
        for top in tops:
            for depth in range(len(parts) + 1):
                yield top.joinpath(*parts[:depth]), names


def _number(file: Path) -> int | None:
    """None where there is no such file, or no limit (``max``)."""
    text = file.read_text(encoding="ascii").strip() if file.exists() else ""
    return int(text) if text.isdecimal() else None


def _file_cache(stat: Path) -> int:
    """Bytes of files that nobody has read lately: counted as used, and given up where memory is wanted."""
    lines = stat.read_text(encoding="ascii").splitlines() if stat.exists() else []
    values = dict(line.split(" ", 1) for line in lines)
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))

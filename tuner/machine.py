"""What a measured number was measured on."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from policies.stats import EngineInfo

_PACKAGE = Path(__file__).resolve().parent


def describe_machine(info: EngineInfo | None = None) -> dict[str, object]:
    """Processor, memory and versions, and the engine's settings where there is one. Names no host and no path."""
    description: dict[str, object] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "instructions": [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in _flags()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "paceline": _version("paceline"),
        "torch": _version("torch"),
    }
    if info is not None:
        description |= {
            "model": info.model,
            "dtype": info.dtype,
            "device": info.device,
            "threads": info.threads,
            "slots": info.slots,
            "context_limit": info.context_limit,
        }
    return description


def source_commit(folder: Path = _PACKAGE) -> str | None:
    """The git commit of the checkout that `folder`, this package's, is in, with ``-dirty`` where files differ from it.

    What lies in ``docs`` does not count: results are written there. None where git does not know this file: an
    installed package may lie in somebody else's repository.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "machine.py")
        commit = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)docs")
    except (OSError, subprocess.CalledProcessError):  # no git, no repository, or not of this file
        return None
    return f"{commit}-dirty" if changed else commit


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpuinfo(key: str) -> str:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return ""
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _flags() -> frozenset[str]:
    return frozenset(_cpuinfo("flags").split())

"""Files that commands are asked to write. Whether one can be written is known before the work, not after it; what was
there before stays until the new one is whole; and a failure is one sentence."""

import os
import secrets
import shutil
from pathlib import Path

_STREAMS = ("/dev/std", "/dev/fd/", "/proc/self/fd/")
"""What this process has open already, under the names that the system gives it."""


class OutputFileError(Exception):
    """A file that cannot be written; one sentence with the path and a remedy."""


def check(path: Path) -> None:
    """Raises OutputFileError where `path` cannot be written, as far as it can be known before there is anything to
    write: a disk may still be full then."""
    try:
        if _is_no_regular_file(path):
            if path.is_dir():
                raise OutputFileError(f"{path} is a folder: name a file in it.")
            if not os.access(path, os.W_OK):
                raise OutputFileError(f"{path} may not be written: name another file.")
            return
        target = path.resolve()
        if not target.parent.is_dir():
            raise OutputFileError(f"there is no folder {path.parent}; make it first, or name another file.")
        if target.exists() and not os.access(target, os.W_OK):
            raise OutputFileError(f"{path} may not be written: name another file.")
        # Rights alone do not tell: a file system may be full or read-only, or none that takes files.
        trial = _beside(target)
        _create(trial, b"")
        trial.unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: symbolic links in a circle
        raise OutputFileError(f"{path} cannot be written ({_reason(error)}): name another file.") from error


def write(path: Path, option: str, content: bytes) -> None:
    """Write all of `content`, or leave at `path` what was there. What is no regular file is written straight.

    Raises:
        OutputFileError: it cannot be written; the sentence begins with the `option` that named it.
    """
    try:
        if _is_no_regular_file(path):
            with path.open("ab") as file:
                file.write(content)
            return
        target = path.resolve()
        whole = _beside(target)
        try:
            _create(whole, content)
            if target.exists():
                shutil.copymode(target, whole)
            whole.replace(target)
        except BaseException:
            whole.unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:
        raise OutputFileError(
            f"{option}: {path} cannot be written ({_reason(error)}): make room or mend it, or name another file, and "
            "run the command again."
        ) from error


def _is_no_regular_file(path: Path) -> bool:
    """A terminal, a pipe, a device; also standard output that goes to a file, which a new one must not replace."""
    return path.exists() and (not path.is_file() or str(path.absolute()).startswith(_STREAMS))


def _beside(target: Path) -> Path:
    return target.with_name(f".paceline-{secrets.token_hex(6)}")


def _create(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # some file systems tell only then that there was no room


def _reason(error: OSError | RuntimeError) -> str:
    return getattr(error, "strerror", None) or str(error)

"""The C kernels of ``kernels/native``: compiled for the processor at hand at first use, then kept.

The compiler is the machine's own (``CC``, else ``cc``), as Triton's is; without one the `ziglang` package serves. The
result is cached by the sources, the compiler and the processor, so that a changed source or a moved cache is compiled
anew.
"""

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from ctypes import POINTER, Structure, c_float, c_int, c_long, c_void_p
from pathlib import Path

SOURCES = Path(__file__).with_name("native")
FLAGS = ("-std=gnu11", "-O2", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC", "-pthread")
BFLOAT16, FLOAT32 = 16, 32
LANES = 16
"""Widths of a model must be multiples of this: the kernels work on so many float32 at a time."""


_UNFINISHED = ".unfinished"
_REMEDY = "name another C compiler in CC"


class NativeError(Exception):
    """The kernels cannot be compiled or loaded; the message is one sentence for people."""


class Layer(Structure):
    """``Layer`` of decoder.h: addresses of one layer's weights and cache."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("qkv", c_void_p),
        ("qkv_bias", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("attention_out", c_void_p),
        ("attention_out_bias", c_void_p),
        ("feed_forward_norm", c_void_p),
        ("gate_up", c_void_p),
        ("gate_up_bias", c_void_p),
        ("down", c_void_p),
        ("down_bias", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int),
    )


class Model(Structure):
    """``Model`` of decoder.h."""

    _fields_ = (
        ("element", c_int),
        ("hidden", c_int),
        ("feed_forward", c_int),
        ("layer_count", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("head_dim", c_int),
        ("vocabulary", c_int),
        ("capacity", c_int),
        ("norm_epsilon", c_float),
        ("layers", POINTER(Layer)),
        ("head", c_void_p),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("features", c_void_p),
    )


class Pass(Structure):
    """``Pass`` of decoder.h; the arrays are int32."""

    _fields_ = (
        ("rows", c_int),
        ("sequences", c_int),
        ("wanted", c_int),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("first_rows", c_void_p),
        ("table_starts", c_void_p),
        ("block_tables", c_void_p),
        ("wanted_rows", c_void_p),
    )


_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "threads_create": (c_void_p, (c_int,)),
    "threads_destroy": (None, (c_void_p,)),
    "workspace_create": (c_void_p, ()),
    "workspace_destroy": (None, (c_void_p,)),
    "workspace_bytes": (c_long, (c_void_p,)),
    "pack_strips": (None, (c_int, c_void_p, c_int, c_int, c_void_p)),
    "decoder_forward": (c_int, (POINTER(Model), c_void_p, c_void_p, POINTER(Pass), c_void_p)),
    "linear_layers": (c_int, (POINTER(Model), c_void_p, c_void_p, c_int, c_void_p)),
}


def load_library(cache: Path) -> ctypes.CDLL:
    """The kernels, compiled into the folder `cache` unless they are there already.

    Raises:
        NativeError: no compiler, or it fails, or the result cannot be loaded.
    """
    compiler = _compiler()
    sources = sorted(SOURCES.glob("*.c"))
    flags = (*FLAGS, "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native")
    parts = [file.read_bytes() for file in sorted(SOURCES.iterdir()) if file.suffix in (".c", ".h", ".inc")]
    parts += [os.fsencode(" ".join((*compiler, *flags))), _version(compiler), _processor()]
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    library = cache / f"kernels-{name}.so"
    if not library.is_file():
        _compile(compiler, [*flags, *map(str, sources), "-lm"], library)
    try:
        loaded = ctypes.CDLL(str(library))
        for function, (result, arguments) in _SIGNATURES.items():
            entry = getattr(loaded, function)
            entry.restype = result
            entry.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise NativeError(
            f"the compiled kernels cannot be loaded ({error}); delete {library} and start again"
        ) from error
    return loaded


def _compiler() -> list[str]:
    named = os.environ.get("CC")
    if named:
        try:
            command = shlex.split(named)
        except ValueError as error:
            raise NativeError(
                f"CC is {named!r}, which cannot be read ({error}); name a C compiler, or unset it"
            ) from error
        if not command or shutil.which(command[0]) is None:
            raise NativeError(f"CC is {named!r}, which is no command here; name a C compiler, or unset it")
        return command
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name) is not None), None)
    if found is not None:
        return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NativeError("no C compiler was found for the CPU kernels; install gcc or clang, or `pip install ziglang`")


def _named(compiler: list[str]) -> str:
    """A compiler, for a message that goes on with what is wrong with it."""
    named = os.environ.get("CC")
    return f"CC is {named!r}" if named else f"the C compiler is {shlex.join(compiler)}"


def _version(compiler: list[str]) -> bytes:
    try:
        return subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=120).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeError(f"{_named(compiler)}, which does not answer ({error}); {_REMEDY}") from error


def _processor() -> bytes:
    """What the processor can do: a cache may move to another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor().encode()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)})).encode()


def _compile(compiler: list[str], arguments: list[str], library: Path) -> None:
    """Make `library`, whole or not at all; of several processes that start together one compiles."""
    folder = library.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in folder.glob(f"*{_UNFINISHED}"):  # of one that was killed: nobody else has the lock
                leftover.unlink()
            for earlier in folder.glob("tmp*/"):  # where an earlier version compiled, and was killed
                shutil.rmtree(earlier)
            if not library.is_file():
                _run(compiler, arguments, library)
    except OSError as error:
        raise NativeError(
            f"the compiled kernels cannot be written into {folder} ({error}); make it a folder with room that can be "
            "written"
        ) from error


def _run(compiler: list[str], arguments: list[str], library: Path) -> None:
    # A name of its own: the compiler of one that was killed may still be writing.
    made = library.with_suffix(f".{os.getpid()}{_UNFINISHED}")
    try:
        done = subprocess.run(
            [*compiler, *arguments, "-o", str(made)], capture_output=True, text=True, errors="replace", timeout=600
        )
    except (OSError, subprocess.SubprocessError) as error:
        made.unlink(missing_ok=True)
        raise NativeError(f"{_named(compiler)}, which fails ({error}); {_REMEDY}") from error
    if done.returncode != 0:
        made.unlink(missing_ok=True)
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise NativeError(f"{_named(compiler)}, which does not compile the CPU kernels ({first[:200]}); {_REMEDY}")
    if not made.is_file():
        raise NativeError(f"{_named(compiler)}, which makes no library; {_REMEDY}")
    made.replace(library)

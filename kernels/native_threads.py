"""The threads that the native kernels share, and the library that they run."""

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path

from kernels.native_library import load_library


class NativeThreads:
    """A loaded library with `count` threads, the caller's own included; several models may share it, in turn.

    Attributes:
        library: the compiled kernels.
        count: threads.
        handle: address for the kernels; it changes when the count does.
    """

    def __init__(self, cache: Path, count: int = 1) -> None:
        """`cache` is the folder for the compiled kernels. Raises `kernels.native_library.NativeError`."""
        self.library: ctypes.CDLL = load_library(cache)
        self.count = 0
        self.handle = 0
        self._free: Callable[[], object] | None = None
        self.resize(count)

    def resize(self, count: int) -> None:
        """Use `count` threads from now on. OSError when the system gives no more of them."""
        if count < 1:
            raise ValueError(f"threads is {count}; use at least 1")
        if count == self.count:
            return
        handle = self.library.threads_create(count)
        if not handle:
            raise OSError(f"the system gives no {count} threads; use fewer")
        if self._free is not None:
            self._free()
        self.handle = handle
        self.count = count
        self._free = weakref.finalize(self, self.library.threads_destroy, handle)

"""What `engine.floor_run` measures: how close a plain cycle comes to what the machine allows. No tensors."""

from dataclasses import dataclass

LOADS = (1, 16)
CONTEXT = 512
BLOCK_LENGTH = 8


@dataclass(frozen=True, slots=True)
class LoadFloor:
    """One load; each list has one entry a round, in seconds, and entries of the same round belong together."""

    load: int
    linear_seconds: tuple[float, ...]
    kv_bytes: tuple[int, ...]
    kv_seconds: tuple[float, ...]
    cycle_seconds: tuple[float, ...]
    """A whole step of the engine's loop: schedule, pass, choice, commit, delivery."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What was measured."""

    dtype: str
    threads: int
    bandwidth: float
    """Bytes read in a second."""
    loads: tuple[LoadFloor, ...]
    single_seconds: tuple[float, ...]
    """Verifying one token at load 1, its choice included."""
    block_seconds: tuple[float, ...]
    """Verifying a block of `BLOCK_LENGTH` drafts, which is one row more."""

"""What ``paceline draft train`` asks of the engine's trainer, and what it hears of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """One drafter to train; asked again after an interruption, it goes on."""

    name: str
    kind: str
    """``feature_head`` or ``draft_model``."""
    tokens: int
    """Tokens that the model is to write."""
    files: Sequence[Path] = ()
    text_kinds: Sequence[str] = ()
    """Kinds of the model's text to train on; empty for all."""
    epochs: float = 2.0
    excluded: Sequence[str] = ()
    """Texts that must not be trained on."""
    start_from: Path | None = None
    work: Path | None = None
    """Where text and checkpoints lie; in the cache unless given."""
    output: Path | None = None
    """Where the drafter's folder is made; among those added unless given."""
    command: str = "paceline draft train"


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """Where a training keeps what it has so far."""

    folder: Path
    text_bytes: int
    """What the text that is asked for takes there, with the model's hidden states."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A trained drafter."""

    folder: Path
    held_out: tuple[float, ...]
    """S_1..S_8 on held-out text; empty where there was none."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """How far it is."""

    phase: str
    done: int
    total: int
    """0 where it is not known."""
    tokens_per_second: float
    first_survival: float | None
    """S_1: a running estimate while it trains, that of the held-out text at the end."""

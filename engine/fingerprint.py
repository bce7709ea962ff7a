"""Short fingerprints of what statistics depend on: equal for equal files, quick to make, no proof against malice."""

import hashlib
from collections.abc import Sequence
from ctypes import CDLL
from importlib.metadata import version
from pathlib import Path

from engine.drafter_files import NGRAM
from engine.drafter_plan import DrafterPlan

WHOLE_BYTES = 4 << 20
"""A file up to this size is read whole."""
SAMPLES = 64
SAMPLE_BYTES = 4096
"""Of a larger one, the beginning, the end, and places evenly between them are read."""


def of_parts(*parts: str) -> str:
    """The fingerprint of texts, in their order."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def of_files(files: Sequence[Path]) -> str:
    """The fingerprint of files: their names, sizes and contents, of large ones samples. Raises OSError."""
    digest = hashlib.sha256()
    for file in sorted(files):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\0".encode())
        with file.open("rb") as content:
            if size <= WHOLE_BYTES:
                digest.update(content.read())
                continue
            for place in range(SAMPLES):
                content.seek(place * (size - SAMPLE_BYTES) // (SAMPLES - 1))
                digest.update(content.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def of_target(folder: Path) -> str:
    """The fingerprint of a model's configuration and weights."""
    return of_files([folder / "config.json", *folder.glob("*.safetensors")])


def of_tokenizer(folder: Path) -> str:
    """The fingerprint of what turns messages into tokens, the chat template included."""
    return of_files([file for pattern in ("tokenizer*", "chat_template*") for file in folder.glob(pattern)])


def of_engine(kernels: CDLL, dtype: str) -> str:
    """The fingerprint of the engine: its release, its compiled kernels, whose name says it all, and its precision."""
    return of_parts(version("paceline"), version("torch"), Path(kernels._name).name, dtype)


def of_drafter(plan: DrafterPlan, *, ngram_match: tuple[int, int], stop: float, shared_routes: Sequence[str]) -> str:
    """The fingerprint of a drafter: its weights, and the settings that it works by."""
    if plan.learned is not None:
        weights = plan.learned.weights_sha256 or of_files([*plan.learned.folder.glob("*.safetensors")])
        return of_parts(weights, str(stop))
    if plan.folder is not None:
        return of_parts(of_target(plan.folder), str(stop))
    if plan.name == NGRAM:
        return of_parts(plan.name, *map(str, ngram_match))
    return of_parts(plan.name, *sorted(shared_routes))

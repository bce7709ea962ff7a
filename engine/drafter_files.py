"""Learned drafters as files: where they lie, what their drafter.json says, and whether they fit a target.

A folder of ours holds ``drafter.json`` and ``model.safetensors``; a folder of Hugging Face holds ``config.json``,
weights and a tokenizer, and may serve as a draft model. Imports no tensor library.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.model_config import ModelConfig, ModelError, parse_config, read_config
from engine.model_fetch import cache_folder
from engine.vocabulary import Vocabulary, first_difference, read_vocabulary

FORMAT = 1
DESCRIPTION = "drafter.json"
WEIGHTS = "model.safetensors"
OUTPUT_TOKENS = "output_tokens"
"""Tensor of the tokens that the rows of the head stand for."""
SHIPPED = Path(__file__).with_name("drafters")
NGRAM, SUFFIX = "ngram", "suffix"
BUILT_IN = (NGRAM, SUFFIX)
"""Drafters that need no file."""
RESERVED = ("target", "tokenizer", "engine")
"""What else has a version in `EngineInfo.versions`: no drafter is called so."""


class DrafterError(Exception):
    """A drafter cannot be found, read or used; the message is one sentence for people, with the remedy."""


class DamagedDrafterError(DrafterError):
    """The files of a drafter cannot be used with any target."""


class DrafterKind(StrEnum):
    FEATURE_HEAD = "feature_head"
    DRAFT_MODEL = "draft_model"


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """What an operator writes: ``ngram``, ``suffix``, ``NAME`` or ``FOLDER``, each with ``@DEVICE`` where it is not the
    CPU."""

    source: str
    device: str = "cpu"

    @property
    def name(self) -> str:
        """What decisions call it: the last part of a folder, else what was written."""
        return Path(self.source).name


@dataclass(frozen=True, slots=True)
class DrafterFile:
    """What a folder of ours says of itself, read from its drafter.json."""

    folder: Path
    name: str
    kind: DrafterKind
    config: ModelConfig
    """Its layers, with the target's hidden size and vocabulary; `max_position` is its own context limit."""
    target_model: str
    vocabulary_sha256: str
    special_tokens: Mapping[str, int]
    held_out: tuple[float, ...]
    """S_1..S_8 on text that it was not trained on."""
    training: Mapping[str, Any]
    weights_sha256: str = ""
    """Of its weights file; empty where drafter.json does not say."""


def parse_spec(text: str) -> DrafterSpec:
    """Read ``SOURCE[@DEVICE]``.

    Raises:
        DrafterError: nothing is named, or another device than the CPU, which is all that this engine runs on.
    """
    source, separator, device = text.rpartition("@")
    spec = DrafterSpec(source, device) if separator else DrafterSpec(text)
    if not spec.name:
        raise DrafterError(f"the drafter {text!r} names nothing; give ngram, suffix, a name or a folder")
    if spec.device != "cpu":
        raise DrafterError(f"the drafter {spec.source!r} is placed on {spec.device!r}; this engine has only cpu")
    return spec


def added_folder() -> Path:
    """Where drafters lie that an operator has added."""
    return cache_folder() / "drafters"


def known_drafters() -> dict[str, Path]:
    """The folders of shipped and added drafters by name; an added one hides a shipped one of the same name."""
    folders = [folder for parent in (SHIPPED, added_folder()) if parent.is_dir() for folder in sorted(parent.iterdir())]
    return {folder.name: folder for folder in folders if _is_drafter(folder)}


def find_drafter(spec: DrafterSpec) -> Path:
    """The folder of a learned drafter.

    Raises:
        DrafterError: there is none.
    """
    known = known_drafters()
    if spec.source in known:
        return known[spec.source]
    folder = Path(spec.source).expanduser()
    if _is_drafter(folder):
        return folder.absolute()
    names = ", ".join((*BUILT_IN, *known))
    raise DrafterError(
        f"there is no drafter {spec.source!r}; give one of {names}, or a folder that holds {DESCRIPTION} or config.json"
    )


def _is_drafter(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file() or (folder / "config.json").is_file()


def damaged(folder: Path, what: str) -> DamagedDrafterError:
    """What is wrong with a drafter's files, with the remedy for where they lie."""
    remedy = "train or fetch it again"
    if folder.parent == added_folder():
        remedy = f"take it away with `paceline draft remove {folder.name}`, or {remedy}"
    elif folder.parent == SHIPPED:
        remedy = "install paceline again"
    what = what.rstrip(".").removesuffix("; fetch the model again")
    return DamagedDrafterError(f"the drafter {folder.name!r} cannot be loaded: {what}; {remedy}")


def is_ours(folder: Path) -> bool:
    """Whether `folder` holds a drafter in our format, else a model of Hugging Face's."""
    return (folder / DESCRIPTION).is_file()


def read_drafter(folder: Path) -> DrafterFile:
    """Read and check `folder`/drafter.json.

    Raises:
        DamagedDrafterError: it is missing, no JSON, of another format, or has a field that cannot be.
    """
    file = folder / DESCRIPTION
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        if said["format"] != FORMAT:
            raise damaged(folder, f"{file} has format {said['format']!r}, and this version reads {FORMAT}")
        target, shape = said["target"], said["config"]
        # Its layers are a llama's, and held to the same rules as a model's.
        config = parse_config(
            {
                "model_type": "llama",
                "vocab_size": target["vocab_size"],
                "hidden_size": target["hidden_size"],
                "intermediate_size": shape["feed_forward_size"],
                "num_hidden_layers": shape["num_layers"],
                "num_attention_heads": shape["num_heads"],
                "num_key_value_heads": shape["num_kv_heads"],
                "head_dim": shape["head_dim"],
                "max_position_embeddings": shape["context_limit"],
                "rms_norm_eps": shape["norm_epsilon"],
                "rope_theta": shape["rope_theta"],
                "tie_word_embeddings": True,
            }
        )
        return DrafterFile(
            folder=folder,
            name=str(said["name"]),
            kind=DrafterKind(said["kind"]),
            config=config,
            target_model=str(target["model"]),
            vocabulary_sha256=str(target["vocabulary_sha256"]),
            special_tokens={str(text): int(token) for text, token in dict(target["special_tokens"]).items()},
            held_out=tuple(float(value) for value in said.get("held_out", {}).get("all", ())),
            training=dict(said.get("training", {})),
            weights_sha256=str(said.get("weights_sha256", "")),
        )
    except DrafterError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise damaged(folder, f"{file} cannot be read ({error!r})") from error


def check_fits(drafter: DrafterFile, target_path: Path, target: ModelConfig, vocabulary: Vocabulary) -> None:
    """Hold a drafter of ours against a target.

    Raises:
        DrafterError: the first difference between what it was trained for and the target.
    """
    trained_for = f"the drafter {drafter.name!r} was trained for {drafter.target_model}"
    remedy = f"use it with that model, or train one for {target_path.name}"
    if drafter.config.hidden_size != target.hidden_size:
        raise DrafterError(
            f"{trained_for}, of hidden size {drafter.config.hidden_size}, and the target's is {target.hidden_size}; "
            f"{remedy}"
        )
    ours, theirs = vocabulary.special_tokens, drafter.special_tokens
    for text in sorted(
        {*ours, *theirs}, key=lambda text: (min(ours.get(text, 1 << 31), theirs.get(text, 1 << 31)), text)
    ):
        if ours.get(text) != theirs.get(text):
            raise DrafterError(
                f"{trained_for}: the control token {text!a} has id {_id(ours, text)} in the target and "
                f"{_id(theirs, text)} there; {remedy}"
            )
    if drafter.vocabulary_sha256 != vocabulary.sha256:
        raise DrafterError(f"{trained_for}, whose vocabulary has other texts than the target's; {remedy}")
    if drafter.config.vocab_size > target.vocab_size:
        raise DrafterError(
            f"{trained_for}, with {drafter.config.vocab_size} rows of embedding, and the target has "
            f"{target.vocab_size}; {remedy}"
        )


def check_model_fits(folder: Path, target_path: Path) -> ModelConfig:
    """Hold a model folder that is to serve as a draft model against a target; padded rows are no difference.

    Raises:
        DrafterError: the first token in which their vocabularies differ.
        DamagedDrafterError: its files cannot be read, or are of a model that is not supported.
    """
    try:
        config = read_config(folder)
        vocabulary = read_vocabulary(folder)
    except ModelError as error:
        raise damaged(folder, str(error)) from error
    difference = first_difference(read_vocabulary(target_path), vocabulary)
    if difference is not None:
        raise DrafterError(
            f"the drafter {folder.name!r} has another vocabulary: {difference}; use a model of the target's family"
        )
    return config


def _id(tokens: Mapping[str, int], text: str) -> str:
    return str(tokens[text]) if text in tokens else "none"

"""What an operator sees and does with drafters: fits or why not, added once, removed."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.drafter_files import (
    DESCRIPTION,
    WEIGHTS,
    DrafterError,
    DrafterKind,
    added_folder,
    find_drafter,
    parse_spec,
)
from engine.drafter_shelf import add_drafter, check_new_name, fitting_drafters, remove_drafter, shelf
from tests.engine.tiny_drafter import make_tiny_drafter
from tests.engine.tiny_model import make_tiny_model


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return make_tiny_model(tmp_path / "target")


def test_drafters_without_weights_fit_every_target(target: Path) -> None:
    rows = {row.name: row for row in shelf(target)}
    assert [(rows[name].origin, rows[name].misfit) for name in ("ngram", "suffix")] == [("built in", "")] * 2


def test_a_model_of_the_same_vocabulary_is_added_found_by_name_and_removed(target: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    shutil.copytree(target, small)
    (small / "notes.bin").write_bytes(b"x" * 100)
    place = add_drafter(small, target)
    assert place == added_folder() / "small"
    assert not (place / "notes.bin").exists()
    assert find_drafter(parse_spec("small")) == place
    assert fitting_drafters(target, pytest.fail)[-1] == "small"
    row = next(row for row in shelf(target) if row.name == "small")
    assert (row.kind, row.origin, row.misfit) == ("draft_model", "added", "")
    with pytest.raises(DrafterError, match="there is a drafter 'small' already"):
        add_drafter(small, target)
    assert add_drafter(small, target, "other").name == "other"
    remove_drafter("small")
    assert not place.exists()
    assert "small" not in fitting_drafters(target, pytest.fail)


def test_a_model_of_another_vocabulary_is_refused_with_the_first_difference_and_leaves_nothing(
    target: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(target, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    pieces = tokenizer["model"]["vocab"]
    text = next(piece for piece, token in pieces.items() if token == 100)
    pieces["changed"] = pieces.pop(text)
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DrafterError, match=r"another vocabulary: .*100"):
        add_drafter(other, target)
    assert not added_folder().exists()


def test_a_folder_that_holds_no_drafter_is_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match=r"is no drafter: give a folder that holds drafter\.json or config\.json"):
        add_drafter(tmp_path / "absent", target)


def test_an_added_drafter_that_is_damaged_says_so_and_does_not_hide_the_others(target: Path) -> None:
    broken = added_folder() / "broken"
    broken.mkdir(parents=True)
    (broken / "drafter.json").write_text("{")
    rows = {row.name: row for row in shelf(target)}
    assert "drafter.json cannot be read" in rows["broken"].misfit
    assert "ngram" in rows
    assert "broken" not in fitting_drafters(target, lambda line: None)


def cut_off(folder: Path) -> None:
    weights = folder / WEIGHTS
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 64)


def lose_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.norm.weight"]
    save_file(tensors, folder / WEIGHTS)


def differ_in_the_head(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file(tensors | {"lm_head.weight": torch.zeros_like(tensors["model.embed_tokens.weight"])}, folder / WEIGHTS)


@pytest.mark.parametrize("damage", [cut_off, lose_a_tensor, differ_in_the_head])
def test_a_model_whose_weights_cannot_be_loaded_is_not_added(
    damage: Callable[[Path], None], target: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    shutil.copytree(target, small)
    damage(small)
    with pytest.raises(DrafterError, match=r"the drafter 'small' cannot be loaded: .*; train or fetch it again$"):
        add_drafter(small, target)
    assert not added_folder().exists()


@pytest.mark.parametrize("damage", [cut_off, lose_a_tensor])
def test_an_added_model_that_is_damaged_later_is_left_out_with_the_remedy(
    damage: Callable[[Path], None], target: Path, tmp_path: Path
) -> None:
    shutil.copytree(target, tmp_path / "small")
    damage(add_drafter(tmp_path / "small", target))
    told: list[str] = []
    assert fitting_drafters(target, told.append)[:2] == ("ngram", "suffix")
    assert "small" not in fitting_drafters(target, told.append)
    assert "take it away with `paceline draft remove small`" in told[0]
    assert "paceline draft remove small" in next(row for row in shelf(target) if row.name == "small").misfit


def test_weights_that_are_not_those_of_the_card_are_not_added(target: Path, tmp_path: Path) -> None:
    folder = make_tiny_drafter(tmp_path / "head", target, DrafterKind.FEATURE_HEAD)
    said = json.loads((folder / DESCRIPTION).read_text())
    (folder / DESCRIPTION).write_text(json.dumps(said | {"weights_sha256": "0" * 64}))
    with pytest.raises(DrafterError, match=r"has the sha256 [0-9a-f]{64}, and drafter\.json says 0{64}; train or"):
        add_drafter(folder, target)
    true = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    (folder / DESCRIPTION).write_text(json.dumps(said | {"weights_sha256": true}))
    assert add_drafter(folder, target).is_dir()


@pytest.mark.parametrize("name", ["ngram", "none", "auto", "", "a/b", "..", "a@cpu", "a,b", "a:4"])
def test_a_name_that_could_not_be_written_elsewhere_is_refused(target: Path, name: str) -> None:
    with pytest.raises(DrafterError, match="cannot be called"):
        check_new_name(name)


def test_what_was_not_added_cannot_be_removed(target: Path) -> None:
    for name in ("ngram", "absent", "../target"):
        with pytest.raises(DrafterError, match="was added, so it cannot be removed; none was added"):
            remove_drafter(name)
    assert target.is_dir()

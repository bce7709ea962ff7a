"""Fingerprints: another one for whatever changes what statistics depend on, the same for the same."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine.drafter_files import WEIGHTS, DrafterError, DrafterKind
from engine.drafter_plan import DraftedTarget, plan_drafter, unloaded_target
from engine.fingerprint import SAMPLE_BYTES, WHOLE_BYTES, of_drafter, of_files, of_target, of_tokenizer
from tests.engine.tiny_drafter import make_tiny_drafter
from tests.engine.tiny_model import make_tiny_model


@pytest.mark.parametrize("size", [0, 1000, WHOLE_BYTES, WHOLE_BYTES + 1, 3 * WHOLE_BYTES])
def test_a_file_that_is_longer_or_begins_or_ends_otherwise_has_another_fingerprint(size: int, tmp_path: Path) -> None:
    file = tmp_path / "file"
    seen = set()
    content = bytes(size)
    for _ in range(2):
        file.write_bytes(content)
        seen.add(of_files([file]))
    assert len(seen) == 1
    variants = [content + b"\0"]
    if size:
        variants += [b"\1" + content[1:], content[:-1] + b"\1"]
    for variant in variants:
        file.write_bytes(variant)
        seen.add(of_files([file]))
    assert len(seen) == 1 + len(variants)


def test_of_a_large_file_places_all_over_it_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    size = 2 * WHOLE_BYTES
    seen = set()
    for place in range(0, size, size // 8):
        content = bytearray(size)
        # As weights differ: over long stretches, never in a byte alone.
        content[place : place + size // 32] = b"\1" * (size // 32)
        file.write_bytes(content)
        seen.add(of_files([file]))
    assert len(seen) == 8
    assert size // 32 > SAMPLE_BYTES


def test_weights_and_tokenizer_of_a_model_are_told_apart(tiny_model: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", seed=1)
    assert of_target(tiny_model) != of_target(other)
    assert of_tokenizer(tiny_model) == of_tokenizer(other)
    config = other / "tokenizer_config.json"
    config.write_text(config.read_text().replace("assistant", "helper"))
    assert of_tokenizer(tiny_model) != of_tokenizer(other)


def fingerprint(source: str, target: DraftedTarget, **settings: object) -> str:
    chosen = {"ngram_match": (2, 16), "stop": 0.07, "shared_routes": ()} | settings
    return of_drafter(plan_drafter(source, target), **chosen)  # type: ignore[arg-type]


def test_a_drafter_is_its_weights_and_the_settings_that_it_works_by(tiny_model: Path, tmp_path: Path) -> None:
    target = unloaded_target(tiny_model)
    head = str(make_tiny_drafter(tmp_path / "head", tiny_model, DrafterKind.FEATURE_HEAD))
    moved = str(shutil.copytree(head, tmp_path / "moved"))
    trained = str(make_tiny_drafter(tmp_path / "trained", tiny_model, DrafterKind.FEATURE_HEAD, seed=2))
    model = str(make_tiny_model(tmp_path / "model", seed=3))
    assert fingerprint(head, target) == fingerprint(moved, target) != fingerprint(trained, target)
    assert (Path(trained) / WEIGHTS).is_file()
    sources = ["ngram", "suffix", head, trained, model]
    assert len({fingerprint(source, target) for source in sources}) == len(sources)
    assert fingerprint(head, target, stop=0.2) != fingerprint(head, target)
    assert fingerprint(model, target, stop=0.2) != fingerprint(model, target)
    assert fingerprint("ngram", target, ngram_match=(3, 16)) != fingerprint("ngram", target)
    assert fingerprint("suffix", target, shared_routes=("chat",)) != fingerprint("suffix", target)
    assert fingerprint("ngram", target, stop=0.2, shared_routes=("chat",)) == fingerprint("ngram", target)
    assert fingerprint("suffix", replace(target, blocks=9)) == fingerprint("suffix", target), "room is no version"


@pytest.mark.parametrize("name", ["target", "tokenizer", "engine"])
def test_no_drafter_is_called_as_something_else_that_has_a_version(name: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = make_tiny_drafter(tmp_path / name, tiny_model, DrafterKind.FEATURE_HEAD)
    with pytest.raises(DrafterError, match=rf"^a drafter cannot be called '{name}'; give its folder another name$"):
        plan_drafter(str(folder), unloaded_target(tiny_model))

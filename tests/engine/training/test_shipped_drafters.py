"""The drafters in the repository: small, complete, readable, and made for the default target."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.drafter_files import SHIPPED, DrafterKind, check_fits, read_drafter
from engine.model_config import read_config
from engine.model_fetch import DEFAULT_MODEL, default_model_path
from engine.training.drafter_export import model_card, weights_hash
from engine.training.networks import NETWORKS, NetworkShape
from engine.vocabulary import read_vocabulary

FOLDERS = sorted(folder for folder in SHIPPED.iterdir() if folder.is_dir())
LARGEST_BYTES = 12 * 2**20
LARGEST_VOCABULARY = 8192
KINDS = {
    "smollm2-135m-general": DrafterKind.FEATURE_HEAD,
    "smollm2-135m-code": DrafterKind.FEATURE_HEAD,
    "smollm2-135m-draft": DrafterKind.DRAFT_MODEL,
}
each_drafter = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def described(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / "drafter.json").read_text(encoding="utf-8"))
    return said


def test_a_general_head_a_code_head_and_a_draft_model_are_shipped() -> None:
    assert {folder.name: read_drafter(folder).kind for folder in FOLDERS} == KINDS


@each_drafter
def test_a_shipped_drafter_is_small_and_holds_the_tensors_of_its_kind(folder: Path) -> None:
    file = folder / "model.safetensors"
    assert file.stat().st_size < LARGEST_BYTES
    tensors = load_file(file)
    output_tokens = tensors.pop("output_tokens")
    drafter = read_drafter(folder)
    config = drafter.config
    shape = NetworkShape(
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        feed_forward_size=config.feed_forward_size,
        rope_theta=config.rope_theta,
        norm_epsilon=config.norm_epsilon,
    )
    expected = {name: each.shape for name, each in NETWORKS[drafter.kind](shape).state_dict().items()}
    assert {name: each.shape for name, each in tensors.items()} == expected
    assert all(each.dtype == torch.bfloat16 and bool(each.isfinite().all()) for each in tensors.values())
    assert output_tokens.dtype == torch.int32
    assert 0 < output_tokens.numel() <= LARGEST_VOCABULARY
    assert bool((output_tokens[1:] > output_tokens[:-1]).all())
    assert 0 <= int(output_tokens[0]) <= int(output_tokens[-1]) < config.vocab_size


@each_drafter
def test_a_shipped_drafter_says_how_it_was_made_and_how_good_it_is(folder: Path) -> None:
    said = described(folder)
    assert said["name"] == folder.name
    assert said["target"]["model"] == DEFAULT_MODEL
    training = said["training"]
    assert all(training[name] > 0 for name in ("tokens", "tokens_seen", "sequences", "seconds", "steps"))
    assert all(training[name] for name in ("data_sha256", "command", "machine", "date"))
    for curve in said["held_out"].values():
        assert len(curve) == 8
        assert all(0 <= share <= 1 for share in curve)
    curve = said["held_out"]["all"]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] > 0.2
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card == model_card(said, load_file(folder / "model.safetensors")["output_tokens"].numel())


@each_drafter
def test_a_shipped_drafter_fits_the_default_target(folder: Path) -> None:
    target = default_model_path()
    if not target.is_dir():
        pytest.skip("the default model has not been fetched")
    check_fits(read_drafter(folder), target, read_config(target), read_vocabulary(target))
    assert described(folder)["target"]["weights_sha256"] == weights_hash(target)

"""Drafters as files: what is found, what fits a target, what it will take, and what is refused in which words."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.blocks import BLOCK_TOKENS
from engine.decoder import Decoder
from engine.drafter_files import (
    DESCRIPTION,
    WEIGHTS,
    DrafterError,
    DrafterKind,
    DrafterSpec,
    added_folder,
    check_fits,
    check_model_fits,
    find_drafter,
    known_drafters,
    parse_spec,
    read_drafter,
)
from engine.drafter_plan import DraftedTarget, DrafterPlan, check_memory, plan_drafter, planned_bytes
from engine.drafter_set import DrafterSet
from engine.drafter_shelf import add_drafter, fitting_drafters
from engine.learned_weights import load_learned
from engine.model_config import ModelError, read_config
from engine.vocabulary import Vocabulary, first_difference, read_vocabulary
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads
from tests.engine.tiny_drafter import make_tiny_drafter
from tests.engine.tiny_model import make_tiny_model

KINDS = tuple(DrafterKind)
BLOCKS = 12


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own: what an operator of this machine has added plays no part."""
    monkeypatch.setattr("engine.drafter_files.added_folder", lambda: tmp_path / "cache" / "drafters")
    return tmp_path / "cache"


def target_of(path: Path, **changes: Any) -> DraftedTarget:
    return DraftedTarget(
        path=path,
        config=read_config(path),
        vocabulary=read_vocabulary(path),
        dtype="float32",
        blocks=BLOCKS,
        context_limit=BLOCKS * BLOCK_TOKENS,
        **changes,
    )


def loaded(path: Path, native: NativeThreads, *, features: bool = True) -> Decoder:
    return load_decoder(
        path, "float32", blocks=BLOCKS, capacity=BLOCKS * BLOCK_TOKENS, features=features, native=native
    )


def test_what_an_operator_writes_is_a_source_and_a_device() -> None:
    assert parse_spec("ngram") == DrafterSpec("ngram")
    assert parse_spec("/models/small-one@cpu") == DrafterSpec("/models/small-one", "cpu")
    assert parse_spec("/models/small-one@cpu").name == "small-one"


@pytest.mark.parametrize("device", ["cuda", "cuda:1", ""])
def test_another_device_is_refused_in_one_sentence(device: str) -> None:
    with pytest.raises(DrafterError, match=rf"the drafter 'head' is placed on '{device}'; this engine has only cpu$"):
        parse_spec(f"head@{device}")


def test_a_drafter_that_is_nowhere_is_refused_with_those_that_are_known(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match=r"no drafter 'oracle'; give one of ngram, suffix.*, or a folder"):
        plan_drafter("oracle", target_of(tiny_model))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DrafterError, match=r"no drafter '.*empty'"):
        find_drafter(DrafterSpec(str(tmp_path / "empty")))


def test_added_drafters_are_known_by_name_and_hide_shipped_ones(
    tiny_model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.drafter_files.SHIPPED", tmp_path / "shipped")
    for parent, name in ((tmp_path / "shipped", "a"), (tmp_path / "shipped", "b"), (cache / "drafters", "b")):
        make_tiny_drafter(parent / name, tiny_model, DrafterKind.FEATURE_HEAD)
    (cache / "drafters" / "no-drafter").mkdir()
    assert known_drafters() == {"a": tmp_path / "shipped" / "a", "b": cache / "drafters" / "b"}
    assert find_drafter(DrafterSpec("b")) == cache / "drafters" / "b"


def test_drafters_that_nobody_named_are_left_out_when_they_do_not_fit(
    tiny_model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.drafter_files.SHIPPED", tmp_path / "shipped")
    other = make_tiny_model(tmp_path / "other", heads=6)
    make_tiny_drafter(tmp_path / "shipped" / "fits", tiny_model, DrafterKind.DRAFT_MODEL)
    make_tiny_drafter(tmp_path / "shipped" / "wide", other, DrafterKind.DRAFT_MODEL)
    (make_tiny_drafter(cache / "drafters" / "torn", tiny_model, DrafterKind.DRAFT_MODEL) / DESCRIPTION).write_text("{")
    make_tiny_model(cache / "drafters" / "whole", layers=1)
    edited_tokenizer(make_tiny_model(cache / "drafters" / "foreign", layers=1), lambda t: rename(t, 300, "zzz"))
    told: list[str] = []
    assert fitting_drafters(tiny_model, told.append) == ("ngram", "suffix", "fits", "whole")
    assert fitting_drafters(other, told.append) == ("ngram", "suffix", "wide", "whole")
    assert {line.partition(" cannot be loaded")[0] for line in told} == {"left out: the drafter 'torn'"}
    with pytest.raises(DrafterError, match=r"of hidden size 96, and the target's is 64"):
        plan_drafter("wide", target_of(tiny_model))


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    said = json.loads((folder / DESCRIPTION).read_text())
    change(said)
    (folder / DESCRIPTION).write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda said: said.update(format=2), r"has format 2, and this version reads 1; train or fetch it again"),
        (lambda said: said.pop("kind"), r"cannot be read \(KeyError\('kind'\)\)"),
        (lambda said: said.update(kind="tree"), r"cannot be read \(ValueError\(\"'tree' is not a valid DrafterKind"),
        (lambda said: said["config"].update(num_heads=None), r"num_attention_heads None, which must be a positive"),
        (lambda said: said["config"].update(num_layers=-3), r"num_hidden_layers -3, which must be a positive"),
        (
            lambda said: said["config"].update(num_heads=1, num_kv_heads=2),
            r"1 heads of width 16 over 2 key-value heads",
        ),
        (
            lambda said: said["config"].update(num_heads=3, num_kv_heads=2),
            r"3 heads of width 16 over 2 key-value heads",
        ),
        (lambda said: said["config"].update(num_kv_heads=0), r"num_key_value_heads 0, which must be a positive"),
        (lambda said: said["config"].update(head_dim=0), r"head_dim 0, which must be a positive"),
        (lambda said: said["config"].update(feed_forward_size=0), r"intermediate_size 0, which must be a positive"),
        (lambda said: said["config"].update(context_limit=-5), r"max_position_embeddings -5, which must be a positive"),
        (lambda said: said["config"].update(context_limit=float("inf")), r"max_position_embeddings inf, which must be"),
        (lambda said: said["config"].update(norm_epsilon=float("nan")), r"rms_norm_eps nan, which must be a number"),
        (lambda said: said["config"].update(rope_theta=0), r"rope_theta 0, which must be a number above 0"),
        (
            lambda said: said["config"].update(rope_theta=float("nan")),
            r"rope_theta nan, which must be a number above 0",
        ),
        (lambda said: said["target"].update(vocab_size=-5), r"vocab_size -5, which must be a positive"),
        (lambda said: said.update(target=[]), r"cannot be read \(TypeError"),
    ],
)
def test_a_description_that_cannot_be_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = changed(make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.DRAFT_MODEL), change)
    with pytest.raises(DrafterError, match=message):
        read_drafter(folder)


def test_what_a_description_says_is_read(tiny_model: Path, tmp_path: Path) -> None:
    drafter = read_drafter(make_tiny_drafter(tmp_path / "mine", tiny_model, DrafterKind.FEATURE_HEAD, layers=1))
    assert (drafter.name, drafter.kind, drafter.target_model) == ("mine", DrafterKind.FEATURE_HEAD, tiny_model.name)
    assert (drafter.config.hidden_size, drafter.config.num_layers, drafter.config.max_position) == (64, 1, 2048)
    assert drafter.held_out == (0.5, 0.25)
    check_fits(drafter, tiny_model, read_config(tiny_model), read_vocabulary(tiny_model))


def test_the_first_control_token_that_differs_is_named_with_both_ids(tiny_model: Path, tmp_path: Path) -> None:
    special = {"<|endoftext|>": 0, "<|im_start|>": 9, "<|tool|>": 2}
    folder = make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.DRAFT_MODEL, special_tokens=special)
    with pytest.raises(
        DrafterError,
        match=r"the control token '<\|im_start\|>' has id 1 in the target and 9 there; use it with",
    ):
        plan_drafter(str(folder), target_of(tiny_model))


def test_report_53_another_vocabulary_of_the_same_size_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = changed(
        make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.DRAFT_MODEL),
        lambda said: said["target"].update(vocabulary_sha256="1" * 64),
    )
    with pytest.raises(DrafterError, match=r"whose vocabulary has other texts than the target's; use it with that"):
        plan_drafter(str(folder), target_of(tiny_model))


def test_report_52_a_target_with_padded_rows_takes_the_drafter_and_one_with_fewer_does_not(
    tiny_model: Path, tmp_path: Path
) -> None:
    drafter = read_drafter(make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.DRAFT_MODEL))
    config, vocabulary = read_config(tiny_model), read_vocabulary(tiny_model)
    check_fits(drafter, tiny_model, replace(config, vocab_size=512), vocabulary)
    with pytest.raises(DrafterError, match=r"with 384 rows of embedding, and the target has 380"):
        check_fits(drafter, tiny_model, replace(config, vocab_size=380), vocabulary)


def edited_tokenizer(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    edit(tokenizer)
    file.write_text(json.dumps(tokenizer))
    return folder


def rename(tokenizer: dict[str, Any], token: int, text: str) -> None:
    vocab = tokenizer["model"]["vocab"]
    old = next(known for known, number in vocab.items() if number == token)
    tokenizer["model"]["vocab"] = {text if known == old else known: number for known, number in vocab.items()}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: rename(t, 300, "zzz"), r"token 300 is '.*' in the target and 'zzz' in the drafter"),
        (lambda t: t["added_tokens"][2].update(special=False), r"token 2, '<\|im_end\|>', is a control token in the "),
        (
            lambda t: t["added_tokens"][1].update(content="<|tool|>"),
            r"token 1 is '<\|im_start\|>' in the target and '<",
        ),
        (
            lambda t: t["added_tokens"].append({"id": 384, "content": "<x>", "special": True}),
            r"token 384 is missing in the target and '<x>' in the drafter; use a model of the target's family",
        ),
    ],
)
def test_a_model_folder_is_refused_with_the_first_token_that_differs(
    edit: Callable[[dict[str, Any]], None], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = edited_tokenizer(make_tiny_model(tmp_path / "small", layers=1), edit)
    with pytest.raises(DrafterError, match=message):
        check_model_fits(folder, tiny_model)


def test_a_model_folder_with_the_same_tokens_fits_whatever_its_width(tiny_model: Path, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "small", layers=1, heads=6, kv_heads=2)
    assert check_model_fits(folder, tiny_model).hidden_size == 96
    shutil.copytree(folder, tmp_path / "foreign")
    config = json.loads((tmp_path / "foreign" / "config.json").read_text())
    (tmp_path / "foreign" / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(DrafterError, match=r"the drafter 'foreign' cannot be loaded: .*model_type 'mamba'"):
        check_model_fits(tmp_path / "foreign", tiny_model)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DrafterError, match=r"holds no tokenizer\.json; give a folder with the model's own tokenizer"):
        check_model_fits(folder, tiny_model)


def test_a_list_of_pieces_is_read_as_a_vocabulary(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": [["<unk>", 0.0], ["a", -1.0]]}, "added_tokens": [{"id": 0, "content": "<unk>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert read_vocabulary(tmp_path) == Vocabulary({0: "<unk>", 1: "a"}, {})
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(ModelError, match=r"is no tokenizer that can be read"):
        read_vocabulary(tmp_path)


def test_equal_vocabularies_have_no_difference_and_one_hash() -> None:
    one = Vocabulary({0: "a", 2: "c"}, {2: "c"})
    assert first_difference(one, Vocabulary({2: "c", 0: "a"}, {2: "c"})) is None
    assert one.sha256 == Vocabulary({2: "c", 0: "a"}, {}).sha256
    assert one.sha256 != Vocabulary({0: "a", 1: "c"}, {}).sha256
    assert one.special_tokens == {"c": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_known_before_a_drafter_of_ours_is_loaded(
    kind: DrafterKind, tiny_model: Path, native: NativeThreads, tmp_path: Path
) -> None:
    folder = make_tiny_drafter(tmp_path / "d", tiny_model, kind, outputs=256)
    plan = plan_drafter(str(folder), target_of(tiny_model))
    assert plan.learned is not None
    # Everything but the rows of a call lies in tensors of the file, in the head, or in the cache.
    held = sum(tensor.nbytes for name, tensor in load_file(folder / WEIGHTS).items() if name != "output_tokens")
    head = 256 * 64 * 4
    cache = BLOCKS * BLOCK_TOKENS * 2 * 32 * 4
    assert 0 < plan.memory_bytes - held - head - cache < 1_000_000
    target = loaded(tiny_model, native)
    assert load_learned(plan.learned, target, memory_bytes=plan.memory_bytes).memory_bytes == plan.memory_bytes


def test_memory_of_a_model_folder_is_known_before_it_is_loaded(
    tiny_model: Path, native: NativeThreads, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path / "small", layers=2, tied=False)
    plan = plan_drafter(str(folder), target_of(tiny_model))
    assert (plan.name, plan.folder) == ("small", folder)
    assert 0 <= plan.memory_bytes - loaded(folder, native, features=False).memory_bytes < 1_000_000


def test_the_memory_of_several_drafters_is_summed(tiny_model: Path) -> None:
    target = target_of(tiny_model)
    shared = target_of(tiny_model, suffix_shared_routes=("chat", "story"))
    plans = [plan_drafter(name, target) for name in ("ngram", "suffix")]
    assert planned_bytes(plans) == plans[0].memory_bytes + plans[1].memory_bytes > 0
    assert plan_drafter("suffix", shared).memory_bytes > plans[1].memory_bytes


def test_a_drafter_that_memory_does_not_hold_is_refused() -> None:
    check_memory(DrafterPlan("d", 4 * 2**20), 4 * 2**20)
    with pytest.raises(DrafterError, match=r"'d' needs 5 MiB of memory and 4 MiB are free; unload another drafter"):
        check_memory(DrafterPlan("d", 4 * 2**20 + 1), 4 * 2**20)
    check_memory(DrafterPlan("d", 2**50), None)


def damaged(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors: dict[str, torch.Tensor] = dict(load_file(folder / WEIGHTS))
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return damage


def overwrite(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"\0" * 40)


def claim_header(folder: Path, length: bytes, header: bytes = b"{}") -> None:
    (folder / WEIGHTS).write_bytes(length + header)


def cut_off(weights: Path) -> None:
    """The header stays whole, and its last tensors have no data."""
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 64)


DAMAGES: Mapping[str, Callable[[Path], None]] = {
    r"has no tensor norm\.weight": damaged(lambda t: t.pop("norm.weight")),
    r"has tensor layers\.7\.x, which the decoder would not use": damaged(
        lambda t: t.update({"layers.7.x": torch.zeros(1)})
    ),
    r"has tensor fc\.weight of shape \(64, 64\); the config says \(64, 128\)": damaged(
        lambda t: t.update({"fc.weight": torch.zeros(64, 64)})
    ),
    r"has output_tokens that are no list of int32": damaged(
        lambda t: t.update({"output_tokens": torch.arange(9, dtype=torch.int64)})
    ),
    r"has output_tokens that do not rise within 0\.\.383": damaged(
        lambda t: t.update({"output_tokens": torch.tensor([3, 3], dtype=torch.int32)})
    ),
    r"do not rise within 0\.\.383; train or fetch it": damaged(
        lambda t: t.update({"output_tokens": torch.tensor([3, 384], dtype=torch.int32)})
    ),
    r"has tensor fc\.weight stored as F8": damaged(
        lambda t: t.update({"fc.weight": torch.zeros(64, 128).to(torch.float8_e4m3fn)})
    ),
    r"cannot be read": overwrite,
    r"cannot be read \(.*too large": lambda folder: claim_header(folder, (1 << 50).to_bytes(8, "little")),
    r"cannot be read \(.*; train or fetch": lambda folder: claim_header(folder, b"\xff" * 8),
    r"cannot be read \(.*eader": lambda folder: claim_header(folder, (200_000).to_bytes(8, "little"), b"[" * 200_000),
    r"cannot be read \(.*not fully covered": lambda folder: cut_off(folder / WEIGHTS),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_weights_that_cannot_be_are_refused_by_name(
    message: str, tiny_model: Path, native: NativeThreads, tmp_path: Path
) -> None:
    folder = make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.FEATURE_HEAD)
    DAMAGES[message](folder)
    drafters = DrafterSet(loaded(tiny_model, native), target_of(tiny_model), ngram_match=(2, 4))
    with pytest.raises(DrafterError, match=message):
        drafters.load(str(folder))
    assert drafters.names == ("none",)
    with pytest.raises(DrafterError, match=message):
        add_drafter(folder, tiny_model)


@pytest.mark.parametrize("message", DAMAGES)
def test_a_start_leaves_out_an_added_drafter_that_is_damaged_and_says_how_to_be_rid_of_it(
    message: str, tiny_model: Path, cache: Path
) -> None:
    folder = make_tiny_drafter(cache / "drafters" / "d", tiny_model, DrafterKind.FEATURE_HEAD)
    told: list[str] = []
    assert fitting_drafters(tiny_model, told.append)[-1] == "d"
    assert told == []
    DAMAGES[message](folder)
    assert "d" not in fitting_drafters(tiny_model, told.append)
    (line,) = told
    assert line.startswith("left out: the drafter 'd' cannot be loaded: ")
    assert "; take it away with `paceline draft remove d`" in line
    with pytest.raises(DrafterError, match="take it away with `paceline draft remove d`"):
        plan_drafter("d", target_of(tiny_model))  # what a serving engine does when it is told to load one


def test_a_feature_head_over_a_target_without_features_is_refused(
    tiny_model: Path, native: NativeThreads, tmp_path: Path
) -> None:
    folder = make_tiny_drafter(tmp_path / "d", tiny_model, DrafterKind.FEATURE_HEAD)
    drafters = DrafterSet(loaded(tiny_model, native, features=False), target_of(tiny_model), ngram_match=(2, 4))
    with pytest.raises(DrafterError, match=r"'d' reads features, which this target was loaded without"):
        drafters.load(str(folder))


def test_drafters_are_added_to_the_cache() -> None:
    assert added_folder().name == "drafters"

"""`train_drafter` from beginning to end on a tiny target."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.drafter_files import DrafterKind, check_fits, read_drafter
from engine.learned_weights import load_learned
from engine.model_config import read_config
from engine.training import generation, train
from engine.training.distillation import DistillationSettings
from engine.training.train import Phase, TrainingOptions, TrainingProgress, train_drafter
from engine.vocabulary import read_vocabulary
from engine.weights import load_decoder
from kernels.native_threads import NativeThreads


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "GENERATION_SLOTS", 4)
    monkeypatch.setattr(generation, "MAX_ANSWER", 16)
    monkeypatch.setattr(generation, "MAX_USER_TURN", 6)


@pytest.fixture
def options(tiny_model: Path, tmp_path: Path) -> TrainingOptions:
    notes = tmp_path / "notes.txt"
    notes.write_text("The riders take turns at the front so that the others can draft behind them. " * 30)
    return TrainingOptions(
        target_path=tiny_model,
        kind=DrafterKind.FEATURE_HEAD,
        name="tiny-head",
        output_folder=tmp_path / "drafters",
        work_folder=tmp_path / "work",
        tokens=600,
        files=(notes,),
        output_tokens=200,
        distillation=DistillationSettings(epochs=1, batch_tokens=512, warm_up_steps=2),
        command="paceline draft train tiny-head",
    )


def test_two_trainings_do_not_work_in_one_folder(options: TrainingOptions) -> None:
    refused: list[str] = []

    def try_another(step: TrainingProgress) -> None:
        with pytest.raises(ValueError, match=r"^another training works in .*/work: wait until it has ended, or give"):
            train_drafter(options, lambda step: None)
        refused.append(step.phase)
        raise KeyboardInterrupt

    for _ in range(2):  # the second time, the lock that the first left is free again
        with pytest.raises(KeyboardInterrupt):
            train_drafter(options, try_another)
    assert len(refused) == 2


@pytest.mark.parametrize("kind", list(DrafterKind))
def test_a_drafter_is_made_that_fits_its_target(
    kind: DrafterKind, options: TrainingOptions, tiny_model: Path, native: NativeThreads
) -> None:
    seen: list[TrainingProgress] = []
    made = train_drafter(replace(options, kind=kind), seen.append)
    phases = list(dict.fromkeys(each.phase for each in seen))
    assert phases == list(Phase)
    losses = [each.loss for each in seen if each.phase == Phase.TRAIN and each.loss is not None]
    assert losses[-1] < losses[0]
    assert made.folder == options.output_folder / "tiny-head"
    read = read_drafter(made.folder)
    check_fits(read, tiny_model, read_config(tiny_model), read_vocabulary(tiny_model))
    assert read.kind == kind
    assert read.training["command"] == options.command
    tensors = load_file(made.folder / "model.safetensors")
    assert tensors["output_tokens"].dtype == torch.int32
    assert tensors["output_tokens"].tolist() == sorted(set(tensors["output_tokens"].tolist()))
    assert {each.dtype for name, each in tensors.items() if name != "output_tokens"} == {torch.bfloat16}
    if kind == DrafterKind.FEATURE_HEAD:
        target = load_decoder(tiny_model, blocks=16, capacity=128, features=True, native=native)
        assert load_learned(read, target, memory_bytes=made.weight_bytes).name == "tiny-head"


def test_the_card_and_the_description_say_how_it_was_made(options: TrainingOptions) -> None:
    made = train_drafter(options, lambda _: None)
    described = json.loads((made.folder / "drafter.json").read_text())
    assert set(described) == {"format", "name", "kind", "weights_sha256", "target", "config", "training", "held_out"}
    assert set(described["training"]) >= {
        *("tokens", "sequences", "seconds", "steps", "data_sha256", "command", "machine", "date"),
    }
    assert set(described["config"]) == {
        *("num_layers", "num_heads", "num_kv_heads", "head_dim", "feed_forward_size"),
        *("rope_theta", "norm_epsilon", "context_limit"),
    }
    card = (made.folder / "README.md").read_text()
    for said in (
        *("# tiny-head", "feature head", options.command, described["training"]["data_sha256"]),
        *(described["target"]["weights_sha256"], described["target"]["vocabulary_sha256"], made.record.date),
        *(f"{made.record.tokens:,} tokens", f"{made.record.sequences:,} sequences", "S_8"),
    ):
        assert said in card


def test_a_second_call_takes_up_text_and_weights(options: TrainingOptions) -> None:
    first = train_drafter(options, lambda _: None)
    weights = (first.folder / "model.safetensors").read_bytes()
    seen: list[TrainingProgress] = []
    again = train_drafter(options, seen.append)
    assert {each.phase for each in seen} == {Phase.PREPARE, Phase.MEASURE, Phase.DONE}
    assert (again.folder / "model.safetensors").read_bytes() == weights
    assert again.record.data_sha256 == first.record.data_sha256


def test_a_drafter_can_start_from_another_on_text_of_one_kind(options: TrainingOptions) -> None:
    first = train_drafter(options, lambda _: None)
    second = train_drafter(
        replace(
            options,
            name="tiny-code",
            kinds=("file",),
            start_from=first.folder,
            distillation=replace(options.distillation, matrix_rate=0.0, vector_rate=0.0, weight_decay=0.0),
        ),
        lambda _: None,
    )
    assert second.record.sequences < first.record.sequences
    (earlier,) = json.loads((second.folder / "drafter.json").read_text())["training"]["started_from"]
    assert earlier["name"] == "tiny-head"
    assert earlier["steps"] == first.record.steps
    card = (second.folder / "README.md").read_text()
    assert f"from what earlier runs had made: tiny-head ({first.record.steps:,} steps" in card
    assert "Of it, only file." in card
    before, after = (load_file(each.folder / "model.safetensors") for each in (first, second))
    assert torch.equal(before["fc.weight"], after["fc.weight"])
    assert torch.equal(before["layers.0.mlp.up_proj.weight"], after["layers.0.mlp.up_proj.weight"])


def test_nothing_to_train_on_is_refused(options: TrainingOptions) -> None:
    with pytest.raises(ValueError, match="ask for tokens to generate, or give text files"):
        train_drafter(replace(options, tokens=0, files=()), lambda _: None)


def test_a_checkpoint_of_other_settings_is_not_taken_up(options: TrainingOptions) -> None:
    first = train_drafter(options, lambda _: None)
    seen: list[TrainingProgress] = []
    longer = replace(options, distillation=replace(options.distillation, epochs=2))
    second = train_drafter(longer, seen.append)
    assert next(each.done for each in seen if each.phase == Phase.TRAIN) == 1
    assert second.record.steps > first.record.steps

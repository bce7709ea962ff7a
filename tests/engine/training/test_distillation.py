"""The distillation on a small invented target: it learns, and an interrupted run ends in the same weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.training.acceptance_curve import TargetRows, acceptance_curves
from engine.training.dataset import TextSequence
from engine.training.distillation import DistillationProgress, DistillationSettings, distil, rate_at
from engine.training.initial_weights import start_from_target
from engine.training.networks import NETWORKS, Drafter, NetworkShape

HIDDEN, VOCABULARY = 32, 24
SHAPE = NetworkShape(HIDDEN, 1, 4, 2, 8, 64, 10000.0, 1e-5)
SETTINGS = DistillationSettings(epochs=4, batch_tokens=128, warm_up_steps=2)


class StoppedError(Exception):
    """The interruption of these tests."""


@pytest.fixture(scope="module")
def rows() -> TargetRows:
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(5)).bfloat16()
    output_tokens = torch.arange(2, VOCABULARY)
    return TargetRows(embedding, output_tokens, embedding[output_tokens])


@pytest.fixture(scope="module")
def text(rows: TargetRows) -> list[TextSequence]:
    """A target that counts: after token t comes t + 3, whose row of the head its feature is."""
    sequences = []
    for start in range(40):
        tokens = [2 + (start * 7 + 3 * position) % (VOCABULARY - 2) for position in range(16 + start % 5)]
        following = torch.tensor([2 + (token - 2 + 3) % (VOCABULARY - 2) for token in tokens])
        sequences.append(
            TextSequence(
                torch.tensor(tokens, dtype=torch.int32),
                rows.embedding[following],
                ((2, len(tokens)),),
                "chat",
                "en",
                0.0,
            )
        )
    return sequences


def new_drafter(kind: str) -> Drafter:
    torch.manual_seed(3)
    return NETWORKS[kind](SHAPE)


@pytest.mark.parametrize(("kind", "epochs"), [("feature_head", 8), ("draft_model", 30)])
def test_the_loss_falls_and_the_drafter_learns_what_follows(
    kind: str, epochs: int, text: list[TextSequence], rows: TargetRows, tmp_path: Path
) -> None:
    drafter = new_drafter(kind)
    before = acceptance_curves(drafter, text, rows)["all"]
    seen: list[DistillationProgress] = []
    last = distil(drafter, text, rows, replace(SETTINGS, epochs=epochs), tmp_path / "checkpoint", seen.append)
    after = acceptance_curves(drafter, text, rows)
    assert last.step == last.steps == len(seen)
    assert last.tokens == epochs * sum(len(each.tokens) for each in text)
    assert last.loss < 0.7 * seen[0].loss
    assert before[0] < 0.3
    assert after["all"][0] > 0.9
    assert after["all"][2] > 0.7
    assert set(after) == {"all", "chat", "chat/en"}


def test_an_interrupted_run_ends_in_the_same_weights(
    text: list[TextSequence], rows: TargetRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = new_drafter("feature_head")
    distil(whole, text, rows, SETTINGS, tmp_path / "whole", lambda _: None)

    monkeypatch.setattr("engine.training.distillation._CHECKPOINT_SECONDS", 0.0)

    def interrupt(now: DistillationProgress) -> None:
        if now.step == 9:
            raise StoppedError

    with pytest.raises(StoppedError):
        distil(new_drafter("feature_head"), text, rows, SETTINGS, tmp_path / "part", interrupt)
    resumed, steps = new_drafter("feature_head"), []
    torch.nn.init.zeros_(resumed.norm.weight)
    last = distil(resumed, text, rows, SETTINGS, tmp_path / "part", lambda now: steps.append(now.step))
    assert steps[0] == 10
    assert last.steps > 20
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name


def test_the_start_from_the_target_is_better_than_random_numbers(text: list[TextSequence], rows: TargetRows) -> None:
    drafter = new_drafter("feature_head")
    before = acceptance_curves(drafter, text, rows)["all"][0]
    copied = {name: weight.clone() for name, weight in new_drafter("draft_model").layers[0].state_dict().items()}
    start_from_target(drafter, text, rows.embedding, torch.full((HIDDEN,), 1.5), [copied])
    assert acceptance_curves(drafter, text, rows)["all"][0] > before + 0.3
    assert torch.equal(drafter.state_dict()["layers.0.self_attn.q_proj.weight"], copied["self_attn.q_proj.weight"])


def test_the_rate_warms_up_and_falls_to_a_twentieth() -> None:
    settings = DistillationSettings(warm_up_steps=10)
    rates = [rate_at(step, 110, settings) for step in range(110)]
    assert rates[:10] == sorted(rates[:10])
    assert max(rates) == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.05 <= rates[-1] < 0.06

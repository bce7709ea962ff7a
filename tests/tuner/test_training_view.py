"""What `paceline draft train` shows and says, around a trainer that is scripted."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.engine.tiny_model import make_tiny_model
from tuner.cli import app
from tuner.cli.training_view import LINE_SECONDS, TrainingLines
from tuner.settings import Settings
from tuner.training_request import TrainingRequest, TrainingResult, TrainingStep

CURVE = (0.5, 0.25, 0.1, 0.05, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def test_a_file_gets_a_line_for_each_phase_and_one_every_twenty_seconds() -> None:
    lines: list[str] = []
    now = 0.0
    view = TrainingLines(lines.append, lambda: now)
    view.show(TrainingStep("load the model", 0, 0, 0.0, None))
    for done in range(5_000, 9_001, 50):
        view.show(TrainingStep("generate", done, 10_000, 480.0, None))
        now += LINE_SECONDS / 20
    view.show(TrainingStep("train", 3, 9, 900.0, 0.41))
    assert lines == [
        "load the model",
        "generate 5,000 of 10,000, 480 tokens/s",
        "generate 6,000 of 10,000, 480 tokens/s",
        "generate 7,000 of 10,000, 480 tokens/s",
        "generate 8,000 of 10,000, about 40s left, 480 tokens/s",
        "generate 9,000 of 10,000, about 20s left, 480 tokens/s",
        "train 3 of 9, 900 tokens/s, S_1 0.41",
    ]


Trainer = Callable[[Settings, TrainingRequest, Callable[[TrainingStep], None]], TrainingResult]


def train(model: Path, monkeypatch: pytest.MonkeyPatch, trainer: Trainer, *more: str) -> Result:
    monkeypatch.setattr("tuner.root.train_drafter", trainer)
    return CliRunner().invoke(app, ["draft", "train", "mine", "--model", str(model), "--tokens", "1000", *more])


def test_the_end_says_where_the_drafter_lies_what_it_keeps_and_what_comes_next(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"

    def trained(settings: Settings, asked: TrainingRequest, progress: Callable[[TrainingStep], None]) -> TrainingResult:
        progress(TrainingStep("train", 1, 2, 100.0, 0.3))
        return TrainingResult(tmp_path / "mine", CURVE)

    result = train(model, monkeypatch, trained, "--work", str(work))
    assert result.exit_code == 0, result.output
    first, step, *rest = result.stdout.splitlines()
    assert first.startswith(f"Text and checkpoints are kept in {work}, 0 MB in the end.")
    assert step.endswith("train 1 of 2, 100 tokens/s, S_1 0.30")
    assert rest == [
        f"Trained mine, which lies in {tmp_path / 'mine'}.",
        "S_1..S_8 on held-out text: 0.50, 0.25, 0.10, 0.05, 0.00, 0.00, 0.00, 0.00",
        f"Next: paceline draft test mine --model {model}",
    ]
    elsewhere = train(model, monkeypatch, trained, "--output-folder", str(tmp_path))
    assert elsewhere.stdout.splitlines()[-1] == f"Next: paceline draft add {tmp_path / 'mine'} --model {model}"


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_the_last_line_says_where_what_is_done_lies(
    number: signal.Signals, exit_code: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def interrupted(
        settings: Settings, asked: TrainingRequest, progress: Callable[[TrainingStep], None]
    ) -> TrainingResult:
        signal.raise_signal(number)
        raise AssertionError("the signal did not end it")

    result = train(model, monkeypatch, interrupted, "--work", str(tmp_path / "work"))
    assert result.exit_code == exit_code
    assert signal.getsignal(signal.SIGTERM) is before
    assert result.stderr == f"Stopped. What is done is in {tmp_path / 'work'}: the same command goes on.\n"

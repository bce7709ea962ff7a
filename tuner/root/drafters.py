"""The drafters of the configured model, apart from a server: shown, taken over, trained."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.drafter_files import added_folder
from engine.drafter_shelf import add_drafter as engine_add_drafter
from engine.drafter_shelf import shelf
from engine.model_config import read_config
from engine.model_fetch import cache_folder
from tuner.root.model import model_folder
from tuner.settings import Settings, SettingsError
from tuner.training_request import TrainingPlace, TrainingRequest, TrainingResult, TrainingStep


def drafter_rows(settings: Settings) -> list[dict[str, Any]]:
    """Every drafter, and whether the configured model can use it. Raises what `engine_options` does."""
    return [asdict(row) for row in shelf(model_folder(settings))]


def add_drafter(settings: Settings, folder: Path, name: str | None) -> Path:
    """Take a drafter over for the configured model. Raises DrafterError, and what `engine_options` does."""
    return engine_add_drafter(folder, model_folder(settings), name)


def training_place(settings: Settings, asked: TrainingRequest) -> TrainingPlace:
    """Where the training of the configured model's drafters keeps text and checkpoints. Raises as `train_drafter`."""
    target = model_folder(settings)
    config = read_config(target)
    token_bytes = 4 + 2 * config.hidden_size  # its id, and a hidden state in 16 bits
    return TrainingPlace(asked.work or cache_folder() / "training" / target.name, asked.tokens * token_bytes)


def train_drafter(
    settings: Settings, asked: TrainingRequest, progress: Callable[[TrainingStep], None]
) -> TrainingResult:
    """Train a drafter for the configured model in this process, and take it over.

    Raises what `engine_options` does, and SettingsError when there is nothing to train on.
    """
    from engine.drafter_files import DrafterKind
    from engine.training.distillation import DistillationSettings  # the tensor library, which nothing else here needs
    from engine.training.train import TrainingOptions, TrainingProgress
    from engine.training.train import train_drafter as train

    target = model_folder(settings)
    options = TrainingOptions(
        target_path=target,
        kind=DrafterKind(asked.kind),
        name=asked.name,
        output_folder=asked.output or added_folder(),
        work_folder=training_place(settings, asked).folder,
        tokens=asked.tokens,
        files=tuple(asked.files),
        excluded=tuple(asked.excluded),
        kinds=tuple(asked.text_kinds),
        start_from=asked.start_from,
        distillation=DistillationSettings(epochs=asked.epochs),
        threads=settings.model.threads or len(os.sched_getaffinity(0)),
        command=asked.command,
    )

    def told(now: TrainingProgress) -> None:
        progress(TrainingStep(now.phase.value, now.done, now.total, now.tokens_per_second, now.first_survival))

    try:
        made = train(options, told)
    except ValueError as error:
        raise SettingsError(f"{error}.") from error
    return TrainingResult(made.folder, made.held_out.get("all", ()))

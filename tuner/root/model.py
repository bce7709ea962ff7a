"""The model that is configured: fetched, and with the drafters that fit it."""

from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from engine.drafter_files import fitting_drafters
from engine.model_check import is_complete
from engine.model_fetch import DEFAULT_MODEL, default_model_path, fetch_default_model
from tuner.root.options import engine_options
from tuner.settings import AUTO, Settings, SettingsError


def model_folder(settings: Settings) -> Path:
    """The folder of the model that is configured. Raises what `engine_options` does."""
    return Path(engine_options(settings).model_path)


def prepared(settings: Settings, console: Console) -> Settings:
    """Fetch the default model if it is to be served, and put the drafters that fit it in the place of auto.

    Raises:
        SettingsError: a default names a drafter that is not among them, or what `engine_options` refuses.
        ModelError: the model cannot be had.
    """
    if (settings.model.path or DEFAULT_MODEL) == DEFAULT_MODEL:
        fetch_model(console)
    if settings.engine.drafters != (AUTO,):
        return settings
    values = settings.model_dump(exclude_unset=True)
    drafters = fitting_drafters(model_folder(settings))
    try:
        return Settings(**values | {"engine": values.get("engine", {}) | {"drafters": drafters}})
    except ValidationError as error:
        faults = ". ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
        raise SettingsError(f"{faults}.") from error


def fetch_model(console: Console) -> Path:
    """Fetch the default model unless it is there, with a progress bar. Raises ModelError."""
    path = default_model_path()
    if is_complete(path):
        return path
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console) as progress:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        return fetch_default_model(show)

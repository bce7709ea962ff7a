"""The model that is configured: fetched, and with the drafters that fit it."""

from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from engine.drafter_files import DrafterError
from engine.drafter_plan import plan_drafter, unloaded_target
from engine.drafter_shelf import fitting_drafters
from engine.model_check import is_complete
from engine.model_fetch import DEFAULT_MODEL, default_model_path, fetch_default_model
from tuner.root.options import engine_options
from tuner.settings import AUTO, Settings, SettingsError, drafter_name


def model_folder(settings: Settings) -> Path:
    """The folder of the model that is configured. Raises what `engine_options` does."""
    return Path(engine_options(settings).model_path)


def prepared(settings: Settings, console: Console) -> Settings:
    """Fetch the default model if it is to be served, and see that the drafters can be loaded: those that are named,
    else every one that fits the model, which then stands in the place of auto.

    Raises:
        SettingsError: a drafter that is named cannot be used, a default names one that is not among them, or what
            `engine_options` refuses.
        ModelError: the model cannot be had.
    """
    if (settings.model.path or DEFAULT_MODEL) == DEFAULT_MODEL:
        fetch_model(console)
    folder = model_folder(settings)
    if settings.engine.drafters != (AUTO,):
        target = unloaded_target(folder)
        for given in settings.engine.drafters:
            try:
                plan_drafter(given, target)
            except DrafterError as error:
                raise SettingsError(f"engine.drafters has {given!r}: {error}.") from error
        return settings
    drafters = fitting_drafters(folder, lambda sentence: console.print(sentence, soft_wrap=True, markup=False))
    values = settings.model_dump(exclude_unset=True)
    try:
        return Settings(**values | {"engine": values.get("engine", {}) | {"drafters": drafters}})
    except ValidationError as error:
        faults = (
            "".join(f"{part}." for part in fault["loc"]) + fault["msg"].removeprefix("Value error, ")
            for fault in error.errors()
        )
        raise SettingsError(f"{'. '.join(faults)}.") from error


def with_one_drafter(settings: Settings, given: str, console: Console) -> Settings:
    """As `prepared`, with one drafter alone, whatever the configuration loads: what `engine.drafters` may hold.

    Raises:
        DrafterError: there is no such drafter, it does not fit the model, or cannot be loaded.
    """
    if (settings.model.path or DEFAULT_MODEL) == DEFAULT_MODEL:
        fetch_model(console)
    # A folder of the configuration serves under its last part.
    source = next((source for source in settings.engine.drafters if drafter_name(source) == given), given)
    plan_drafter(source, unloaded_target(model_folder(settings)))
    engine = settings.engine.model_copy(update={"drafters": (source,), "default_drafter": None})
    routes = {name: route.model_copy(update={"default_arm": None}) for name, route in settings.routes.items()}
    return settings.model_copy(update={"engine": engine, "routes": routes})


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

"""The drafters that an operator has: which fit a target and why not, adding one, removing one. No tensors."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import Checkpoint
from engine.drafter_files import (
    BUILT_IN,
    DESCRIPTION,
    RESERVED,
    SHIPPED,
    DamagedDrafterError,
    DrafterError,
    added_folder,
    damaged,
    is_ours,
    known_drafters,
    read_drafter,
)
from engine.drafter_plan import DraftedTarget, plan_folder, unloaded_target
from engine.drafter_weights import check_hash
from engine.model_config import ModelConfig, ModelError
from policies.types import PLAIN

MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.md", "*.jinja")
"""What is taken over of a folder."""


@dataclass(frozen=True, slots=True)
class ShelfRow:
    """One drafter."""

    name: str
    kind: str
    """``lookup``, ``feature_head`` or ``draft_model``."""
    origin: str
    """``built in``, ``shipped`` or ``added``."""
    target: str
    """The model that it was trained for; empty for one that needs no training, or a model of its own."""
    file_bytes: int
    held_out: tuple[float, ...]
    """S_1.. on held-out text, as its training measured them."""
    misfit: str
    """Why the target cannot use it, in one sentence; empty if it can."""


def shelf(target_path: Path) -> list[ShelfRow]:
    """Every drafter: built in, shipped, added. One that an operator added hides a shipped one of its name."""
    target = unloaded_target(target_path)
    rows = [ShelfRow(name, "lookup", "built in", "", 0, (), "") for name in BUILT_IN]
    found: dict[str, ShelfRow] = {}
    for parent, origin in ((SHIPPED, "shipped"), (added_folder(), "added")):
        for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
            if (folder / DESCRIPTION).is_file() or (folder / "config.json").is_file():
                found[folder.name] = _row(folder, origin, target)
    return rows + [found[name] for name in sorted(found)]


def add_drafter(folder: Path, target_path: Path, name: str | None = None) -> Path:
    """Copy a drafter into the operator's own folder, once it is known to fit the target. Returns where it lies.

    Raises:
        DrafterError: it is no drafter, does not fit, is damaged, or the name is taken.
    """
    folder = folder.expanduser()
    if not any((folder / file).is_file() for file in (DESCRIPTION, "config.json")):
        raise DrafterError(f"{folder} is no drafter: give a folder that holds {DESCRIPTION} or config.json")
    chosen = name or folder.resolve().name
    plan = plan_folder(folder, chosen, unloaded_target(target_path))
    if plan.learned is not None:
        check_hash(plan.learned)
    elif plan.config is not None:
        _check_second_head(folder, plan.config)
    check_new_name(chosen)
    place = added_folder() / chosen
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{chosen}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for pattern in MODEL_FILES:
            for file in folder.glob(pattern):
                shutil.copy2(file, partial / file.name)
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def fitting_drafters(target_path: Path, tell: Callable[[str], None]) -> tuple[str, ...]:
    """The names of every drafter that the target can use without being told: built in, shipped and added.

    Nobody asked for them by name: one that does not fit is left out, and one that fits nothing, since it cannot be
    loaded, is told of in a sentence.
    """
    target = unloaded_target(target_path)
    names = list(BUILT_IN)
    for name, folder in known_drafters().items():
        try:
            plan_folder(folder, name, target)
        except DamagedDrafterError as error:
            tell(f"left out: {error}")
        except DrafterError:
            continue  # trained for another model
        else:
            names.append(name)
    return tuple(names)


def check_new_name(name: str) -> None:
    """Raises DrafterError when a drafter cannot be called `name`, or one that was added already is."""
    if (
        name in (*BUILT_IN, *RESERVED, PLAIN, "auto", "")
        or Path(name).name != name
        or name.startswith(".")
        or {"@", ",", ":"} & set(name)
    ):
        raise DrafterError(f"a drafter cannot be called {name!r}; give another name")
    if (added_folder() / name).exists():
        raise DrafterError(f"there is a drafter {name!r} already; remove it first, or give another name")


def remove_drafter(name: str) -> Path:
    """Delete a drafter that was added. Returns where it lay.

    Raises:
        DrafterError: no such drafter was added.
    """
    place = added_folder() / name
    if Path(name).name != name or not place.is_dir():
        there = [folder.name for folder in sorted(added_folder().iterdir())] if added_folder().is_dir() else []
        added = f"those added are {', '.join(there)}" if there else "none was added"
        raise DrafterError(f"no drafter {name!r} was added, so it cannot be removed; {added}")
    shutil.rmtree(place)
    return place


def _check_second_head(folder: Path, config: ModelConfig) -> None:
    from engine.model_weights import refuse_a_second_head  # the tensor library: values are compared, once

    try:
        refuse_a_second_head(config, Checkpoint(folder))
    except ModelError as error:
        raise damaged(folder, str(error)) from error


def _row(folder: Path, origin: str, target: DraftedTarget) -> ShelfRow:
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    misfit = ""
    try:
        plan_folder(folder, folder.name, target)
    except DrafterError as error:
        misfit = str(error)
    if not is_ours(folder):
        return ShelfRow(folder.name, "draft_model", origin, "", size, (), misfit)
    try:
        drafter = read_drafter(folder)
    except DrafterError:  # `misfit` has it
        return ShelfRow(folder.name, "unknown", origin, "", size, (), misfit)
    return ShelfRow(folder.name, drafter.kind.value, origin, drafter.target_model, size, drafter.held_out, misfit)

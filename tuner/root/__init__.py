"""The composition root: builds every object, joins them, and starts and stops them in order.

It is the only part of this room that imports the engine.
"""

from engine.drafter_files import DrafterError
from engine.drafter_shelf import check_new_name, remove_drafter
from engine.floor import Floor
from tuner.root.drafters import add_drafter, drafter_rows, train_drafter, training_place
from tuner.root.measuring import engine_start_phases, floor_of
from tuner.root.model import fetch_model, model_folder, prepared, with_one_drafter
from tuner.root.serve import START_ERRORS, running_service, serve
from tuner.root.service import Service
from tuner.root.tracing import Task, TracedWorkload

__all__ = [
    "START_ERRORS",
    "DrafterError",
    "Floor",
    "Service",
    "Task",
    "TracedWorkload",
    "add_drafter",
    "check_new_name",
    "drafter_rows",
    "engine_start_phases",
    "fetch_model",
    "floor_of",
    "model_folder",
    "prepared",
    "remove_drafter",
    "running_service",
    "serve",
    "train_drafter",
    "training_place",
    "with_one_drafter",
]

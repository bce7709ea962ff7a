"""Whether a converted model folder is whole: its files, and every tensor that the config calls for.

Reads the header of the weights only, and imports no tensor library.
"""

import json
from pathlib import Path

from engine.model_config import ModelError, read_config
from engine.model_tensors import model_tensors

FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
WEIGHTS = "model.safetensors"


def check_complete(folder: Path) -> None:
    """Check a folder that `engine.gguf_convert` wrote.

    Raises:
        ModelError: something is missing or cut off.
    """
    config = read_config(folder)
    for name in (*FILES, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(f"{folder} holds no {name}; fetch the model again")
    names = _tensor_names(folder / WEIGHTS)
    for name in model_tensors(config):
        if name not in names:
            raise ModelError(f"{folder / WEIGHTS} has no tensor {name}; fetch the model again")


def is_complete(folder: Path) -> bool:
    """Whether `check_complete` finds nothing amiss."""
    try:
        check_complete(folder)
    except ModelError:
        return False  # the answer, not a failure: the caller fetches, or says so
    return True


def _tensor_names(weights: Path) -> set[str]:
    """The tensors of a safetensors file that is as long as its header says.

    The format: 8 bytes little-endian length, JSON with `data_offsets` counted from its end, then the data.
    """
    size = weights.stat().st_size
    try:
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if 8 + length > size:
                raise ValueError("its header is cut off")
            header = json.loads(file.read(length))
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        if size != 8 + length + end:
            raise ValueError("its data is cut off")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{weights} is no whole safetensors file ({error}); fetch the model again") from error
    return set(header)

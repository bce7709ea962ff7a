"""The tensors of a model folder by name, over one safetensors file or its shards.

Imports no tensor library before a tensor is taken, so that a folder can be looked over without one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from engine.model_config import ModelConfig, ModelError
from engine.model_tensors import model_tensors

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints carry the rotary frequencies; they follow from the config."""
STORED_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Checkpoint:
    """Tensors by name. The files are closed between calls: what is not held any more takes no memory.

    Raises ModelError on construction when a weight file is missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of: dict[str, Path] = {}
        self._shape_of: dict[str, tuple[int, ...]] = {}
        self._dtype_of: dict[str, str] = {}
        for file in _weight_files(folder):
            try:
                with safe_open(file, framework="np") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                        entry = tensors.get_slice(name)
                        self._file_of[name] = file
                        self._shape_of[name] = tuple(entry.get_shape())
                        self._dtype_of[name] = entry.get_dtype()
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file} cannot be read ({error}); fetch the model again") from error

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def check(self, expected: Mapping[str, tuple[int, ...]], *, allowed: tuple[str, ...] = ()) -> None:
        """Hold the folder against the tensors that the config calls for, without reading their data.

        Args:
            expected: name and shape of each.
            allowed: names that may be there as well.

        Raises:
            ModelError: a tensor is missing, has another shape, is quantised, or would not be used; one that is not
                used would change the model's output.
        """
        for name, shape in expected.items():
            self._check_one(name, shape)
        left = [name for name in self._file_of if not (name in expected or name.endswith(IGNORED_SUFFIX))]
        unknown = sorted(set(left) - set(allowed))
        if unknown:
            raise ModelError(f"{self.folder} has tensor {unknown[0]}, which the decoder would not use")

    def check_model(self, config: ModelConfig) -> None:
        """`check` for a whole model, whose tied head may be there as well. Raises ModelError."""
        expected = model_tensors(config)
        expected[embedding_name(config, self)] = expected.pop(EMBEDDING)
        self.check(expected, allowed=(HEAD,) if config.tied_head else ())

    def take(self, name: str, *shape: int) -> "Tensor":
        """The tensor `name` of `shape`, as it is stored. It lies in the mapped file: copy it to keep it.

        Raises ModelError as `check` does.
        """
        self._check_one(name, shape)
        with safe_open(self._file_of[name], framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
        return tensor

    def stored_dtype(self, name: str) -> str:
        """Name of the dtype that the tensor `name` is stored in. Raises ModelError as `check` does."""
        stored = self._dtype_of.get(name)
        if stored is None:
            raise ModelError(f"{self.folder} has no tensor {name}; fetch the model again")
        if stored not in STORED_DTYPES:
            raise ModelError(
                f"{self.folder} has tensor {name} stored as {stored}; use unquantised weights in one of "
                f"{', '.join(STORED_DTYPES.values())}"
            )
        return STORED_DTYPES[stored]

    def _check_one(self, name: str, shape: tuple[int, ...]) -> None:
        self.stored_dtype(name)
        if self._shape_of[name] != shape:
            raise ModelError(
                f"{self.folder} has tensor {name} of shape {self._shape_of[name]}; the config says {shape}"
            )


def embedding_name(config: ModelConfig, checkpoint: Checkpoint) -> str:
    """Tied weights may be stored under either name."""
    return HEAD if config.tied_head and EMBEDDING not in checkpoint and HEAD in checkpoint else EMBEDDING


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            files = [folder / Path(name).name for name in names]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index} is not a safetensors index ({error}); fetch the model again") from error
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{folder} has no {file.name}; only safetensors weights are supported")
    return files

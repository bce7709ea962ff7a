"""The weights of a drafter's folder, looked over before they are loaded: every file whole, every tensor in its shape.

Imports no tensor library.
"""

import hashlib
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from engine.checkpoint import Checkpoint
from engine.drafter_files import OUTPUT_TOKENS, WEIGHTS, DrafterFile, DrafterKind, damaged
from engine.model_config import ModelConfig, ModelError
from engine.model_tensors import check_widths, layer_tensors

JOIN, EMBEDDING_NORM, FEATURE_NORM = "fc.weight", "embedding_norm.weight", "feature_norm.weight"


def learned_checkpoint(drafter: DrafterFile) -> Checkpoint:
    """The tensors of a drafter of ours, all of which are there.

    Raises:
        ModelError: the file is not whole, or a tensor is missing or has another shape than drafter.json says.
    """
    config = drafter.config
    check_widths(config)
    hidden = config.hidden_size
    expected: dict[str, tuple[int, ...]] = {"norm.weight": (hidden,)}
    if drafter.kind is DrafterKind.FEATURE_HEAD:
        expected |= {JOIN: (hidden, 2 * hidden), EMBEDDING_NORM: (hidden,), FEATURE_NORM: (hidden,)}
    for layer in range(config.num_layers):
        expected |= layer_tensors(config, f"layers.{layer}.")
    checkpoint = Checkpoint(drafter.folder)
    checkpoint.check(expected, allowed=(OUTPUT_TOKENS,))
    return checkpoint


def output_tokens(drafter: DrafterFile, vocabulary: int) -> np.ndarray:
    """The token of every row of its head, [outputs] int32. Raises ModelError where they cannot be."""
    file = drafter.folder / WEIGHTS
    try:
        with safe_open(file, framework="np") as tensors:
            stored = tensors.get_slice(OUTPUT_TOKENS)
            if stored.get_dtype() != "I32" or len(stored.get_shape()) != 1 or stored.get_shape()[0] == 0:
                raise ModelError(f"{file} has {OUTPUT_TOKENS} that are no list of int32")
            tokens: np.ndarray = tensors.get_tensor(OUTPUT_TOKENS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read ({error})") from error
    if tokens[0] < 0 or tokens[-1] >= vocabulary or bool((tokens[1:] <= tokens[:-1]).any()):
        raise ModelError(f"{file} has {OUTPUT_TOKENS} that do not rise within 0..{vocabulary - 1}")
    return tokens


def check_learned_weights(drafter: DrafterFile, vocabulary: int) -> int:
    """How many output tokens a drafter of ours has, whose weights can be loaded. Raises DamagedDrafterError."""
    try:
        learned_checkpoint(drafter)
        return len(output_tokens(drafter, vocabulary))
    except ModelError as error:
        raise damaged(drafter.folder, str(error)) from error


def check_model_weights(folder: Path, config: ModelConfig) -> None:
    """Hold the weights of a model that is to serve as a draft model against its config. Raises DamagedDrafterError."""
    try:
        check_widths(config)
        Checkpoint(folder).check_model(config)
    except ModelError as error:
        raise damaged(folder, str(error)) from error


def check_hash(drafter: DrafterFile) -> None:
    """Hold the weights against the hash in drafter.json, if it has one. Raises DamagedDrafterError."""
    if not drafter.weights_sha256:
        return
    file = drafter.folder / WEIGHTS
    with file.open("rb") as weights:
        found = hashlib.file_digest(weights, "sha256").hexdigest()
    if found != drafter.weights_sha256:
        raise damaged(drafter.folder, f"{file} has the sha256 {found}, and drafter.json says {drafter.weights_sha256}")

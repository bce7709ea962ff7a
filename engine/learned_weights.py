"""A drafter of ours from its folder into layers over the target's blocks."""

from dataclasses import dataclass, replace

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.decoder import Decoder
from engine.drafter_files import OUTPUT_TOKENS, WEIGHTS, DrafterError, DrafterFile, DrafterKind
from engine.model_config import ModelConfig, ModelError
from engine.model_tensors import layer_tensors
from engine.model_weights import Weights, layer_weights
from kernels.native_draft import head_rows

JOIN, EMBEDDING_NORM, FEATURE_NORM = "fc.weight", "embedding_norm.weight", "feature_norm.weight"


@dataclass(frozen=True, slots=True)
class LearnedWeights:
    """What drafts: layers with their cache and a head of the output tokens, and where they stand for."""

    layers: Decoder
    output_tokens: Tensor
    """int32, rising: the token of each row of the head."""
    extra: dict[str, Tensor]
    """The tensors that only a feature head has, by name."""


def load_learned(drafter: DrafterFile, target: Decoder) -> LearnedWeights:
    """Read a drafter that `engine.drafter_files.check_fits` found to fit `target`.

    Raises:
        DrafterError: a tensor is missing or has another shape than drafter.json says.
    """
    config = drafter.config
    hidden = config.hidden_size
    extra: dict[str, tuple[int, ...]] = {}
    if drafter.kind is DrafterKind.FEATURE_HEAD:
        extra = {JOIN: (hidden, 2 * hidden), EMBEDDING_NORM: (hidden,), FEATURE_NORM: (hidden,)}
    expected = {"norm.weight": (hidden,), **extra}
    for layer in range(config.num_layers):
        expected |= layer_tensors(config, f"layers.{layer}.")
    try:
        checkpoint = Checkpoint(drafter.folder)
        checkpoint.check(expected, allowed=(OUTPUT_TOKENS,))
        output_tokens = _output_tokens(drafter, target.config.vocab_size)
        layers = Decoder(
            replace(config, vocab_size=output_tokens.numel()),
            _weights(config, checkpoint, output_tokens, target),
            target.native,
            blocks=target.blocks,
            capacity=min(config.max_position, target.capacity),
        )
        tensors = {name: checkpoint.take(name, *shape).clone() for name, shape in extra.items()}
    except ModelError as error:
        raise DrafterError(f"the drafter {drafter.name!r} cannot be loaded: {error}") from error
    return LearnedWeights(layers, output_tokens, tensors)


def _weights(config: ModelConfig, checkpoint: Checkpoint, output_tokens: Tensor, target: Decoder) -> Weights:
    """Layers from the file, the head from the target. The embedding is the target's as well, which the drafter reads
    where it lies."""

    def rows() -> Tensor:
        return head_rows(target.native, target.model, output_tokens, target.dtype)

    return Weights(
        dtype=target.dtype,
        read_embedding=rows,
        read_head=rows,
        layers=(
            layer_weights(config, checkpoint, f"layers.{layer}.", target.dtype) for layer in range(config.num_layers)
        ),
        norm=checkpoint.take("norm.weight", config.hidden_size).to(torch.float32),
    )


def _output_tokens(drafter: DrafterFile, vocabulary: int) -> Tensor:
    file = drafter.folder / WEIGHTS
    try:
        with safe_open(file, framework="pt") as tensors:
            tokens: Tensor = tensors.get_tensor(OUTPUT_TOKENS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read ({error}); train or fetch the drafter again") from error
    if tokens.dim() != 1 or tokens.dtype != torch.int32 or tokens.numel() == 0:
        raise ModelError(f"{file} has {OUTPUT_TOKENS} that are no list of int32; train it again")
    if tokens[0] < 0 or tokens[-1] >= vocabulary or bool((tokens[1:] <= tokens[:-1]).any()):
        raise ModelError(f"{file} has {OUTPUT_TOKENS} that do not rise within 0..{vocabulary - 1}; train it")
    return tokens.clone()

"""Draft models: a small causal model that shares the target's vocabulary.

One of ours is layers only: it reads the target's embedding and scores the target's rows of a reduced output
vocabulary. Or any model folder whose tokenizer is the target's: it brings its own embedding and head.
"""

from pathlib import Path

from engine.decoder import Decoder
from engine.drafter_files import DrafterError, DrafterFile
from engine.learned_drafter import DRAFT_STOP, LearnedDrafter
from engine.learned_weights import load_learned
from engine.model_config import ModelConfig, ModelError
from engine.weights import load_decoder
from kernels.native_draft import NativeDraft


def load_draft_model(
    drafter: DrafterFile, target: Decoder, *, memory_bytes: int, stop: float = DRAFT_STOP
) -> LearnedDrafter:
    """One of ours.

    Raises:
        DrafterError: a tensor is missing or has another shape than drafter.json says.
    """
    weights = load_learned(drafter, target)
    layers = weights.layers
    native_draft = NativeDraft(
        target.native,
        target.model,
        layers.model,
        weights.output_tokens.numel(),
        weights.output_tokens,
        None,
        keep=layers,
    )
    return LearnedDrafter(
        drafter.name,
        native_draft,
        context_limit=layers.capacity,
        memory_bytes=memory_bytes,
        reads_features=False,
        stop=stop,
    )


def load_model_as_drafter(
    folder: Path, name: str, config: ModelConfig, target: Decoder, *, memory_bytes: int, stop: float = DRAFT_STOP
) -> LearnedDrafter:
    """A whole model, which `engine.drafter_files.check_model_fits` found to fit.

    Raises:
        DrafterError: it cannot be loaded.
    """
    try:
        model = load_decoder(
            folder,
            str(target.dtype).removeprefix("torch."),
            blocks=target.blocks,
            capacity=min(config.max_position, target.capacity),
            native=target.native,
        )
    except ModelError as error:
        raise DrafterError(f"the drafter {name!r} cannot be loaded: {error}") from error
    # Rows that only one of the two has are padding: no text holds such a token.
    outputs = min(config.vocab_size, target.config.vocab_size)
    native_draft = NativeDraft(target.native, model.model, model.model, outputs, None, None, keep=model)
    return LearnedDrafter(
        name,
        native_draft,
        context_limit=model.capacity,
        memory_bytes=memory_bytes,
        reads_features=False,
        stop=stop,
    )

"""Any model folder whose tokenizer is the target's, as a drafter: it brings its own embedding and head."""

from pathlib import Path

from engine.decoder import Decoder
from engine.drafter_files import damaged
from engine.learned_drafter import DRAFT_STOP, LearnedDrafter
from engine.model_config import ModelConfig, ModelError
from engine.weights import load_decoder
from kernels.native_draft import NativeDraft


def load_model_as_drafter(
    folder: Path, name: str, config: ModelConfig, target: Decoder, *, memory_bytes: int, stop: float = DRAFT_STOP
) -> LearnedDrafter:
    """A whole model, which `engine.drafter_files.check_model_fits` found to fit.

    Raises:
        DamagedDrafterError: it cannot be loaded.
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
        raise damaged(folder, str(error)) from error
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

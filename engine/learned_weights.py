"""A drafter of ours from its folder: layers over the target's blocks, which read the target's embedding and score the
target's rows of a reduced output vocabulary.

A draft model is no more than that. A feature head (EAGLE, Li et al. 2024) reads the target's own view of the text as
well. At position i it joins the embedding of token x_i with the target's feature of position i - 1, the hidden state
after its final norm: ``u = fc . concat(rmsnorm(embedding), rmsnorm(feature))``. One layer of the target's kind follows,
causal over its own keys and values. Its output, normed, stands for the target's feature at i: times the target's rows
of the output tokens it gives the draft's logits, and it is the feature that the next step joins with the drafted token.
The feature before the first token is zero.
"""

from dataclasses import replace

import torch
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.decoder import Decoder
from engine.drafter_files import DrafterError, DrafterFile, DrafterKind, damaged
from engine.drafter_weights import EMBEDDING_NORM, FEATURE_NORM, JOIN, learned_checkpoint, output_tokens
from engine.learned_drafter import DRAFT_STOP, LearnedDrafter
from engine.model_config import ModelConfig, ModelError
from engine.model_weights import Weights, layer_weights
from engine.packed import packed
from kernels.native_draft import Join, NativeDraft, head_rows


def load_learned(
    drafter: DrafterFile, target: Decoder, *, memory_bytes: int, stop: float = DRAFT_STOP
) -> LearnedDrafter:
    """Read a drafter that `engine.drafter_files.check_fits` found to fit `target`.

    Raises:
        DrafterError: it reads features, which the target does not keep.
        DamagedDrafterError: its weights are not what drafter.json says.
    """
    reads_features = drafter.kind is DrafterKind.FEATURE_HEAD
    if reads_features and target.features is None:
        raise DrafterError(f"the drafter {drafter.name!r} reads features, which this target was loaded without")
    config = drafter.config
    hidden = config.hidden_size
    try:
        checkpoint = learned_checkpoint(drafter)
        tokens = torch.from_numpy(output_tokens(drafter, target.config.vocab_size).copy())
        layers = Decoder(
            replace(config, vocab_size=tokens.numel()),
            _weights(config, checkpoint, tokens, target),
            target.native,
            blocks=target.blocks,
            capacity=min(config.max_position, target.capacity),
        )
        join = _join(checkpoint, hidden, target) if reads_features else None
    except ModelError as error:
        raise damaged(drafter.folder, str(error)) from error
    native_draft = NativeDraft(target.native, target.model, layers.model, tokens.numel(), tokens, join, keep=layers)
    return LearnedDrafter(
        drafter.name,
        native_draft,
        context_limit=layers.capacity,
        memory_bytes=memory_bytes,
        reads_features=reads_features,
        stop=stop,
    )


def _join(checkpoint: Checkpoint, hidden: int, target: Decoder) -> Join:
    assert target.features is not None
    return Join(
        strips=packed(target.native, checkpoint.take(JOIN, hidden, 2 * hidden).to(target.dtype)),
        embedding_norm=checkpoint.take(EMBEDDING_NORM, hidden).to(torch.float32, copy=True),
        feature_norm=checkpoint.take(FEATURE_NORM, hidden).to(torch.float32, copy=True),
        features=target.features,
    )


def _weights(config: ModelConfig, checkpoint: Checkpoint, tokens: Tensor, target: Decoder) -> Weights:
    """Layers from the file, the head from the target. The embedding is the target's as well, which the drafter reads
    where it lies."""

    def rows() -> Tensor:
        return head_rows(target.native, target.model, tokens, target.dtype)

    return Weights(
        dtype=target.dtype,
        read_embedding=rows,
        read_head=rows,
        layers=(
            layer_weights(config, checkpoint, f"layers.{layer}.", target.dtype) for layer in range(config.num_layers)
        ),
        norm=checkpoint.take("norm.weight", config.hidden_size).to(torch.float32),
    )

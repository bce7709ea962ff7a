"""A feature head: one layer that reads the target's own view of the text (EAGLE, Li et al. 2024).

At position i it joins the embedding of token x_i with the target's feature of position i - 1, the hidden state after
its final norm: ``u = fc . concat(rmsnorm(embedding), rmsnorm(feature))``. One layer of the target's kind follows,
causal over its own keys and values. Its output, normed, stands for the target's feature at i: times the target's rows
of the output tokens it gives the draft's logits, and it is the feature that the next step joins with the drafted token.
The feature before the first token is zero.
"""

import torch

from engine.decoder import Decoder
from engine.drafter_files import DrafterError, DrafterFile
from engine.learned_drafter import DRAFT_STOP, LearnedDrafter
from engine.learned_weights import EMBEDDING_NORM, FEATURE_NORM, JOIN, load_learned
from engine.packed import packed
from kernels.native_draft import Join, NativeDraft


def load_feature_head(
    drafter: DrafterFile, target: Decoder, *, memory_bytes: int, stop: float = DRAFT_STOP
) -> LearnedDrafter:
    """A feature head over `target`, which keeps its features.

    Raises:
        DrafterError: the target keeps none, or a tensor is missing or has another shape than drafter.json says.
    """
    if target.features is None:
        raise DrafterError(f"the drafter {drafter.name!r} reads features, which this target was loaded without")
    weights = load_learned(drafter, target)
    layers = weights.layers
    native_draft = NativeDraft(
        target.native,
        target.model,
        layers.model,
        weights.output_tokens.numel(),
        weights.output_tokens,
        Join(
            strips=packed(target.native, weights.extra[JOIN].to(target.dtype)),
            embedding_norm=weights.extra[EMBEDDING_NORM].to(torch.float32),
            feature_norm=weights.extra[FEATURE_NORM].to(torch.float32),
            features=target.features,
        ),
        keep=layers,
    )
    return LearnedDrafter(
        drafter.name,
        native_draft,
        context_limit=layers.capacity,
        memory_bytes=memory_bytes,
        reads_features=True,
        stop=stop,
    )

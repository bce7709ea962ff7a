"""Cross entropy against the target's own distribution over a reduced vocabulary, without keeping the logits."""

from typing import Any

import torch
from torch import Tensor

_ROWS = 512
"""Rows whose logits exist at once: 512 by 8,192 in float32 are 16 MiB."""


class _SoftCrossEntropy(torch.autograd.Function):
    """The gradient by the estimates is made with the loss, so that no logits are kept for the way back."""

    @staticmethod
    def forward(ctx: Any, estimates: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        gradient = torch.empty_like(estimates)
        total = estimates.new_zeros(())
        for start in range(0, estimates.shape[0], _ROWS):
            part = slice(start, start + _ROWS)
            log_probs = torch.log_softmax((estimates[part].to(rows.dtype) @ rows.T).float(), -1)
            wanted = labels[part].float()
            total -= (wanted * log_probs).sum()
            gradient[part] = ((log_probs.exp_() - wanted).to(rows.dtype) @ rows).float()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0], None, None


def target_labels(features: Tensor, rows: Tensor) -> Tensor:
    """softmax(features . rows^T), [n, vocabulary] in the dtype of `rows`; the head's rows are [vocabulary, hidden]."""
    parts = [
        torch.softmax((part.to(rows.dtype) @ rows.T).float(), -1).to(rows.dtype)
        for part in torch.split(features, _ROWS)
    ]
    return torch.cat(parts)


def soft_cross_entropy(estimates: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Sum over the n estimates of -sum_v labels[v] log softmax(estimates . rows^T)[v].

    Args:
        estimates: [n, hidden] float32, the drafter's estimates of the features.
        labels: [n, vocabulary], of `target_labels`.
        rows: [vocabulary, hidden], the target's head; it is not trained.
    """
    loss: Tensor = _SoftCrossEntropy.apply(estimates, labels, rows)  # type: ignore[no-untyped-call]
    return loss

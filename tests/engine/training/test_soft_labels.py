"""The cross entropy that keeps no logits, against autograd over the plain formula."""

import torch

from engine.training.soft_labels import soft_cross_entropy, target_labels


def test_loss_and_gradient_are_those_of_the_plain_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 16, generator=generator)
    features = torch.randn(700, 16, generator=generator)
    estimates = torch.randn(700, 16, generator=generator, requires_grad=True)
    labels = target_labels(features, rows)
    loss = 0.5 * soft_cross_entropy(estimates, labels, rows)
    loss.backward()  # type: ignore[no-untyped-call]
    plain = estimates.detach().clone().requires_grad_()
    wanted = -0.5 * (torch.softmax(features @ rows.T, -1) * torch.log_softmax(plain @ rows.T, -1)).sum()
    wanted.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, wanted)
    assert estimates.grad is not None
    torch.testing.assert_close(estimates.grad, plain.grad)
    torch.testing.assert_close(labels.sum(-1), torch.ones(700))

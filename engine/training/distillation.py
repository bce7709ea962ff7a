"""The training of a drafter: soft labels and features of the target, with the drafter's own features fed back.

At each of a few unrolled steps a base's draft reads the true next token and what it made itself in the step before, as
it will when it drafts; so the later positions of a block are trained for as they are used (EAGLE-3, Li et al. 2025,
"training-time test").
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.training.acceptance_curve import TargetRows
from engine.training.dataset import Batch, TextSequence, batches, make_batch
from engine.training.networks import Drafter
from engine.training.soft_labels import soft_cross_entropy, target_labels

_CHECKPOINT_SECONDS = 30.0
_ORTHOGONAL_STEPS = 3
"""Newton-Schulz iterations of Muon: with its usual five they cost as much as a batch does."""


@dataclass(frozen=True, slots=True)
class DistillationSettings:
    """How a drafter is trained. The defaults are those of the shipped ones."""

    epochs: float = 2.0
    batch_tokens: int = 3072
    """Padded tokens of a batch."""
    matrix_rate: float = 0.02
    """Muon's learning rate, for matrices."""
    vector_rate: float = 1e-3
    """AdamW's, for the norms."""
    warm_up_steps: int = 10
    unrolled_steps: int = 3
    single_step_share: float = 0.5
    """Share of the training, at its begin, in which only one step is unrolled: most is learned there, at a third of
    the time."""
    step_decay: float = 0.8
    """Weight of a step's loss over that of the step before."""
    feature_weight: float = 0.3
    """Of the smooth L1 distance of the features, in units of their root mean square."""
    weight_decay: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DistillationProgress:
    step: int
    steps: int
    tokens: int
    """Seen so far, padding aside."""
    seconds: float
    """Spent so far, earlier runs included."""
    loss: float
    """Cross entropy of step 1 per drafted position, a running mean."""
    agreement: float
    """Share of the drafted positions where step 1 chose the target's most likely token, a running mean."""


def drafting_loss(
    drafter: Drafter, batch: Batch, rows: TargetRows, settings: DistillationSettings, unrolled_steps: int
) -> tuple[Tensor, float, float]:
    """The loss of a batch; cross entropy per position and share of agreement in step 1."""
    drafted = batch.drafted
    wanted = batch.features[drafted]
    labels = target_labels(wanted, rows.output_rows)
    spread = wanted.float().square().mean().sqrt()
    numbers = torch.full(drafted.shape, -1)
    numbers[drafted] = torch.arange(len(wanted))
    features = torch.cat([torch.zeros_like(batch.features[:, :1]), batch.features[:, :-1]], 1).float()
    tokens, cache = batch.tokens, drafter.new_cache()
    total, weight, first_entropy, agreement = torch.zeros(()), 1.0, 0.0, 0.0
    for step in range(1, unrolled_steps + 1):
        if step > 1:
            tokens = functional.pad(tokens[:, 1:], (0, 1))
            numbers = functional.pad(numbers[:, 1:], (0, 1), value=-1)
        with torch.autocast("cpu", torch.bfloat16):
            features = drafter.step(rows.embedding[tokens], features, step, cache)
        judged = (numbers >= 0) & drafted
        chosen = numbers[judged]
        if len(chosen) == 0:
            break
        estimates = features[judged]
        its_labels = labels if step == 1 else labels[chosen]
        entropy = soft_cross_entropy(estimates, its_labels, rows.output_rows) / len(chosen)
        distance = functional.smooth_l1_loss(estimates / spread, wanted[chosen].float() / spread)
        total = total + weight * (entropy + settings.feature_weight * distance)
        weight *= settings.step_decay
        if step == 1:
            first_entropy = float(entropy.detach())
            with torch.no_grad():
                sample = slice(0, 256)
                guesses = (estimates[sample].to(rows.output_rows.dtype) @ rows.output_rows.T).argmax(-1)
                agreement = float((guesses == its_labels[sample].argmax(-1)).float().mean())
    return total, first_entropy, agreement


def rate_at(step: int, steps: int, settings: DistillationSettings) -> float:
    """Share of the learning rate: linear warm-up, then a cosine down to a twentieth."""
    if step < settings.warm_up_steps:
        return (step + 1) / settings.warm_up_steps
    share = (step - settings.warm_up_steps) / max(1, steps - settings.warm_up_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def _plan(sequences: Sequence[TextSequence], settings: DistillationSettings) -> list[list[int]]:
    lengths = [len(each.tokens) for each in sequences]
    planned: list[list[int]] = []
    for epoch in range(math.ceil(settings.epochs)):
        groups = list(batches(lengths, settings.batch_tokens, random.Random(f"{settings.seed}/{epoch}")))
        planned += groups[: math.ceil(len(groups) * min(1.0, settings.epochs - epoch))]
    return planned


def distil(
    drafter: Drafter,
    sequences: Sequence[TextSequence],
    rows: TargetRows,
    settings: DistillationSettings,
    checkpoint: Path,
    progress: Callable[[DistillationProgress], None],
) -> DistillationProgress:
    """Train `drafter` in place; returns the last progress.

    A checkpoint found at `checkpoint` is taken up: the same data and settings then end in the same weights as a run
    that was never interrupted.
    """
    planned = _plan(sequences, settings)
    single_steps = settings.single_step_share * len(planned)
    optimizers = _optimizers(drafter, settings)
    now = DistillationProgress(0, len(planned), 0, 0.0, float("nan"), float("nan"))
    if checkpoint.is_file():
        saved = torch.load(checkpoint, weights_only=True)
        drafter.load_state_dict(saved["drafter"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        now = DistillationProgress(**saved["progress"])
    begin = time.monotonic() - now.seconds
    saved_at = time.monotonic()
    while now.step < len(planned):
        indices = planned[now.step]
        batch = make_batch([sequences[index] for index in indices])
        unrolled = 1 if now.step < single_steps else settings.unrolled_steps
        loss, entropy, agreement = drafting_loss(drafter, batch, rows, settings, unrolled)
        drafter.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        rate = rate_at(now.step, len(planned), settings)
        for optimizer, full in zip(optimizers, (settings.matrix_rate, settings.vector_rate), strict=True):
            optimizer.param_groups[0]["lr"] = full * rate
            optimizer.step()
        keep = 0.0 if math.isnan(now.loss) else 0.95
        now = DistillationProgress(
            step=now.step + 1,
            steps=len(planned),
            tokens=now.tokens + sum(len(sequences[index].tokens) for index in indices),
            seconds=time.monotonic() - begin,
            loss=entropy if keep == 0 else keep * now.loss + (1 - keep) * entropy,
            agreement=agreement if keep == 0 else keep * now.agreement + (1 - keep) * agreement,
        )
        if time.monotonic() - saved_at > _CHECKPOINT_SECONDS or now.step == len(planned):
            _save(checkpoint, drafter, optimizers, now)
            saved_at = time.monotonic()
        progress(now)
    return now


def _optimizers(drafter: Drafter, settings: DistillationSettings) -> tuple[torch.optim.Optimizer, ...]:
    """Muon (Jordan 2024) for the matrices, AdamW for the norms: in trials AdamW alone needed 1.7 times the steps."""
    matrices = [each for each in drafter.parameters() if each.dim() == 2]
    vectors = [each for each in drafter.parameters() if each.dim() == 1]
    return (
        torch.optim.Muon(
            matrices, lr=settings.matrix_rate, weight_decay=settings.weight_decay, ns_steps=_ORTHOGONAL_STEPS
        ),
        torch.optim.AdamW(vectors, lr=settings.vector_rate, betas=(0.9, 0.95), weight_decay=0.0),
    )


def _save(path: Path, drafter: Drafter, optimizers: Sequence[torch.optim.Optimizer], now: DistillationProgress) -> None:
    unfinished = path.with_suffix(".unfinished")
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"drafter": drafter.state_dict(), "optimizers": states, "progress": asdict(now)}, unfinished)
    unfinished.replace(path)

"""How far a drafter is right: S_k, the share of drafts whose first k tokens are all the target's greedy ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.training.dataset import TextSequence, make_batch
from engine.training.networks import Drafter

DRAFT_LENGTH = 8


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The target's embedding and the part of its head that a drafter chooses from."""

    embedding: Tensor
    """[vocabulary, hidden]."""
    output_tokens: Tensor
    """[reduced] int64, rising."""
    output_rows: Tensor
    """[reduced, hidden]."""


def survival_counts(drafted: Tensor, tokens: Tensor, ranges: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """How many drafts could have kept k tokens, and how many did, for k of 1 to K.

    Args:
        drafted: [n, K], what was drafted from base b for the positions b + 1 .. b + K.
        tokens: [n], the target's own.
        ranges: bases lie in start..stop - 2: their next token is in the range; a draft is judged up to its end.
    """
    length = drafted.shape[1]
    tried, kept = torch.zeros(length, dtype=torch.int64), torch.zeros(length, dtype=torch.int64)
    for start, stop in ranges:
        right = torch.ones(stop - start, dtype=torch.bool)
        for step in range(min(length, stop - start - 1)):
            last = stop - step - 1
            right = right[: last - start] & (drafted[start:last, step] == tokens[start + step + 1 : last + step + 1])
            tried[step] += right.numel()
            kept[step] += int(right.sum())
    return tried, kept


@torch.no_grad()
def draft_greedily(drafter: Drafter, sequences: Sequence[TextSequence], rows: TargetRows) -> Tensor:
    """[batch, bases, 8] tokens drafted from every base, features of the target up to the base."""
    batch = make_batch(sequences)
    features = torch.cat([torch.zeros_like(batch.features[:, :1]), batch.features[:, :-1]], 1).float()
    tokens, cache, drafted = batch.tokens, drafter.new_cache(), []
    for step in range(1, DRAFT_LENGTH + 1):
        with torch.autocast("cpu", torch.bfloat16):
            features = drafter.step(rows.embedding[tokens], features, step, cache)
        logits = features.to(rows.output_rows.dtype) @ rows.output_rows.T
        tokens = rows.output_tokens[logits.argmax(-1)]
        drafted.append(tokens)
    return torch.stack(drafted, -1)


def acceptance_curves(
    drafter: Drafter, sequences: Sequence[TextSequence], rows: TargetRows, batch_size: int = 8
) -> Mapping[str, tuple[float, ...]]:
    """S_1..S_8 by kind and language (`story/de`), by kind, and of `all`, over the greedy answers of `sequences`."""
    counts: dict[str, tuple[Tensor, Tensor]] = {}
    greedy = sorted((each for each in sequences if each.temperature == 0), key=lambda each: len(each.tokens))
    for start in range(0, len(greedy), batch_size):
        part = greedy[start : start + batch_size]
        drafted = draft_greedily(drafter, part, rows)
        for row, each in enumerate(part):
            length = len(each.tokens)
            found = survival_counts(drafted[row, :length], each.tokens.long(), each.answers)
            for key in ("all", each.kind, f"{each.kind}/{each.language}"):
                before = counts.get(key, (torch.zeros(DRAFT_LENGTH), torch.zeros(DRAFT_LENGTH)))
                counts[key] = before[0] + found[0], before[1] + found[1]
    return {
        key: tuple(round(float(share), 4) for share in kept / tried.clamp(min=1))
        for key, (tried, kept) in sorted(counts.items())
    }

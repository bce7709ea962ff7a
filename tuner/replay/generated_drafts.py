"""Draws what drafters would offer and the target keep, for many requests at once.

Requests stand in columns, output positions in rows, so that what depends on the token before is one step over all
requests. Whether a drafter is right at a position is one draw per (position, drafter) with a known probability: kept is
then the run of right ones, whatever the blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.scenarios import Bursts, Copier, Copying, Latent

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

NGRAM_EDGES = (2, 4, 8, 15)
"""Lengths of the match after which the next confidence bucket begins: those of engine/ngram.py."""
SUFFIX_EDGES = (0.4, 0.7, 0.9, 0.97)
"""Probabilities of the first token from which on a proposal is in bucket 2 and so on: those of engine/suffix.py."""
LEARNED_EDGES = (0.3, 0.5, 0.7, 0.85, 0.95)
"""The same of engine/learned_drafter.py."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """One drafter over all requests: three arrays of shape (requests, longest output)."""

    offered: Bytes
    kept: Bytes
    confidence: Bytes


@dataclass(frozen=True, slots=True)
class Copies:
    """Where the text repeats itself; shared by the drafters that copy. Shapes (positions, requests)."""

    copied: NDArray[np.bool_]
    age: NDArray[np.int32]
    """Tokens of the copied stretch that stand before this position; 0 where none does."""


def draw_copies(generator: np.random.Generator, positions: int, start: Floats, length: Floats) -> Copies:
    """Stretches that start with a probability of `start` at a token that is not copied, and last `length` on average;
    both of shape (requests,)."""
    requests = len(start)
    draws = generator.random((positions, requests), dtype=np.float32)
    copied = np.empty((positions, requests), dtype=np.bool_)
    age = np.empty((positions, requests), dtype=np.int32)
    inside = np.zeros(requests, dtype=np.bool_)
    before = np.zeros(requests, dtype=np.int32)
    stay = 1.0 - 1.0 / length
    for position in range(positions):
        inside = draws[position] < np.where(inside, stay, start)
        copied[position] = inside
        age[position] = before
        before = np.where(inside, before + 1, 0)
    return Copies(copied, age)


def draw_copying(
    generator: np.random.Generator,
    copies: Copies,
    copier: Copier,
    copying: Copying,
    outputs: NDArray[np.int64],
    *,
    by_length: bool,
) -> Drafts:
    """A drafter that copies. `by_length`: its confidence is the match's length, else m / (m + 1) for a match of m."""
    shape = copies.copied.shape
    by_chance = generator.random(shape, dtype=np.float32) < copier.chance
    match = np.where(copies.age >= copier.match, copies.age, np.where(by_chance, copier.match, 0))
    right = generator.random(shape, dtype=np.float32) < np.where(
        copies.copied, np.float32(copying.right), np.float32(copying.right_elsewhere)
    )
    if copier.stop > 0.0:
        # A match of m gives its j-th token m/(m+1) * ... = m / (m + j); the proposal ends where that falls under stop.
        longest = np.floor(match * (1.0 / copier.stop - 1.0))
        offered = np.clip(longest, match > 0, MAX_BLOCK_LENGTH).astype(np.uint8)
    else:
        offered = np.where(match > 0, np.uint8(MAX_BLOCK_LENGTH), np.uint8(0))
    if by_length:
        confidence = 1 + np.searchsorted(np.array(NGRAM_EDGES), match, side="left")
    else:
        confidence = 1 + np.searchsorted(np.array(SUFFIX_EDGES), match / (match + 1.0), side="right")
    return _drafts(offered, right, np.where(match > 0, confidence, 0), outputs)


def draw_stretches(
    generator: np.random.Generator, positions: int, requests: int, latent: Latent, bursts: Bursts | None
) -> tuple[Floats, float]:
    """How easy the text is here for any learned drafter, in logits, and its variance; shape (positions, requests).

    Without `bursts` a first-order chain of normal values; with them two states that change with 1 - stay, as logits
    around the logit of their mean.
    """
    values = np.empty((positions, requests), dtype=np.float32)
    if bursts is not None:
        changed = generator.random((positions, requests), dtype=np.float32) >= bursts.stay
        changed[0] = generator.random(requests, dtype=np.float32) < 0.5
        levels = _logit(np.array(bursts.right, dtype=np.float32)) - _logit(np.float32(np.mean(bursts.right)))
        values[:] = levels[np.cumsum(changed, axis=0) % 2]
        return values, float(np.var(levels))
    fresh = generator.standard_normal((positions, requests), dtype=np.float32)
    fresh *= np.float32(latent.stretch_sd)
    values[0] = fresh[0]
    memory = np.float32(latent.stretch_memory)
    fresh *= np.sqrt(1.0 - memory * memory)
    for position in range(1, positions):
        values[position] = memory * values[position - 1] + fresh[position]
    return values, latent.stretch_sd**2


def draw_learned(
    generator: np.random.Generator,
    mean_right: Floats,
    difficulty: Floats,
    stretches: tuple[Floats, float],
    latent: Latent,
    stop: float,
    outputs: NDArray[np.int64],
) -> Drafts:
    """A learned drafter that is right with a mean share of `mean_right`; it and `difficulty` are of shape (requests,).

    The share is that of the mean over all that varies, by the usual approximation of a logistic-normal mean
    (MacKay 1992): sigmoid(b / sqrt(1 + pi v / 8)).
    """
    eases, stretch_variance = stretches
    variance = stretch_variance + latent.request_sd**2 + latent.drafter_sd**2 + latent.token_sd**2
    base = _logit(mean_right) * np.float32(np.sqrt(1.0 + np.pi * variance / 8.0))
    base = base + difficulty + generator.standard_normal(len(base), dtype=np.float32) * np.float32(latent.drafter_sd)
    logits = generator.standard_normal(eases.shape, dtype=np.float32)
    logits *= np.float32(latent.token_sd)
    logits += eases
    logits += base
    right = generator.random(eases.shape, dtype=np.float32) < _sigmoid(logits)
    logits += generator.standard_normal(eases.shape, dtype=np.float32) * np.float32(latent.confidence_sd)
    confidences = _sigmoid(logits)
    sums = np.zeros((eases.shape[0] + 1, eases.shape[1]), dtype=np.float32)
    np.cumsum(np.log(confidences), axis=0, out=sums[1:])
    limit = np.float32(np.log(max(stop, 1e-30)))
    offered = np.ones(eases.shape, dtype=np.uint8)
    for length in range(1, MAX_BLOCK_LENGTH):
        # A draft goes on while the product of its confidences stays over the stop; it is a falling product.
        offered[:-length] += sums[length:-1] - sums[: -length - 1] >= limit
    confidence = 1 + np.searchsorted(np.array(LEARNED_EDGES, dtype=np.float32), confidences, side="right")
    return _drafts(offered, right, confidence, outputs)


def _drafts(offered: Bytes, right: NDArray[np.bool_], confidence: NDArray[Any], outputs: NDArray[np.int64]) -> Drafts:
    """Cuts what is kept to the text and to what is offered; the longest output says how much is returned."""
    longest = int(outputs.max())
    kept = np.zeros((longest, len(outputs)), dtype=np.uint8)
    run = np.zeros(len(outputs), dtype=np.uint8)
    for position in range(longest - 1, -1, -1):
        run = np.where(right[position] & (position < outputs), np.minimum(run, 254) + 1, 0).astype(np.uint8)
        kept[position] = run
    np.minimum(kept, offered[:longest], out=kept)
    return Drafts(
        np.ascontiguousarray(offered[:longest].T),
        np.ascontiguousarray(kept.T),
        np.ascontiguousarray(confidence[:longest].astype(np.uint8).T),
    )


def _logit(share: Floats | np.float32) -> Floats:
    clipped = np.clip(share, np.float32(1e-4), np.float32(1.0 - 1e-4))
    return np.asarray(np.log(clipped / (1.0 - clipped)), dtype=np.float32)


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)), dtype=np.float32)


def cut(drafts: Drafts, outputs: Sequence[int]) -> list[tuple[bytes, bytes, bytes]]:
    """(offered, kept, confidence) of each request, as long as its output."""
    width = drafts.offered.shape[1]
    offered, kept, confidence = (part.tobytes() for part in (drafts.offered, drafts.kept, drafts.confidence))
    return [
        (offered[at : at + count], kept[at : at + count], confidence[at : at + count])
        for at, count in zip(range(0, width * len(outputs), width), outputs, strict=True)
    ]

"""Intervals: simulated experiments in which the truth is known.

Requests have a latent ease, so that their blocks are alike. Whether the drafter would be right at a position is one
draw, and so is how much a proposal that starts there would offer; some are silent and some fall short. Each block asks
for 2, 4 or 8 drafts. The truth comes from many more requests of the same kind.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.stats import BlockEnd, SequenceStats
from tests.tuner.acceptance.text import CHAT, cycle
from tuner.acceptance import Acceptance, Curve

TOKENS = 40
LENGTHS = np.array([2, 4, 8])
Ints = NDArray[np.int64]


@dataclass
class Requests:
    """Requests in columns, positions in rows."""

    kept: Ints
    """Drafts that an unlimited block which starts here would keep."""
    offered: Ints


def draw(generator: np.random.Generator, requests: int) -> Requests:
    ease = generator.uniform(0.3, 0.9, requests)
    right = generator.random((TOKENS, requests)) < ease
    offered = np.where(generator.random((TOKENS, requests)) < 0.15, generator.integers(1, 4, (TOKENS, requests)), 16)
    offered = np.where(~right & (generator.random((TOKENS, requests)) < 0.4), 0, offered)
    kept = np.zeros((TOKENS, requests), dtype=np.int64)
    run = np.zeros(requests, dtype=np.int64)
    for position in range(TOKENS - 1, -1, -1):
        run = np.where(right[position], run + 1, 0)
        kept[position] = np.minimum(run, offered[position])
    return Requests(kept, offered)


@dataclass
class Block:
    """One block of every request that still runs."""

    left: Ints
    request: Ints
    requested: Ints
    proposed: Ints
    accepted: Ints
    kept: Ints


def serve(generator: np.random.Generator, requests: Requests, lengths: Ints) -> list[Block]:
    blocks = []
    alive = np.arange(requests.kept.shape[1])
    position = np.zeros(len(alive), dtype=np.int64)
    while len(alive):
        left = TOKENS - position[alive]
        requested = np.minimum(generator.choice(lengths, len(alive)), left - 1)
        kept, offered = requests.kept[position[alive], alive], requests.offered[position[alive], alive]
        proposed = np.minimum(offered, requested)
        accepted = np.minimum(kept, requested)
        blocks.append(Block(left, alive, requested, proposed, accepted, kept))
        position[alive] += accepted + 1
        alive = alive[position[alive] < TOKENS]
    return blocks


def truths(seed: int) -> tuple[float, float, float]:
    """S_1 and S_3 of blocks as they start when served, and E(4) of blocks of 4."""
    generator = np.random.default_rng(seed)
    requests = draw(generator, 100_000)
    logged = serve(generator, requests, LENGTHS)
    # Near the end of the text there is no room for three drafts.
    first = [block.kept[block.left > 1] >= 1 for block in logged]
    third = [block.kept[block.left > 3] >= 3 for block in logged]
    whole = serve(generator, requests, np.array([4]))
    emitted = np.concatenate([block.accepted + 1 for block in whole])
    return float(np.concatenate(first).mean()), float(np.concatenate(third).mean()), float(emitted.mean())


def learned(blocks: list[Block], first: int, requests: int) -> Curve:
    """One experiment: the requests `first` to `first + requests`, served eight at a time."""
    acceptance = Acceptance()
    for begin in range(first, first + requests, 8):
        for number, block in enumerate(blocks):
            places = slice(*np.searchsorted(block.request, (begin, begin + 8)))
            columns = (block.request, block.requested, block.proposed, block.accepted)
            sequences = [seen(*row) for row in zip(*(column[places].tolist() for column in columns), strict=True)]
            if not sequences:
                break
            acceptance.fold(cycle(number, sequences))
        for key in range(begin, begin + 8):
            acceptance.finish(key)
    return acceptance.curves("ngram", [("chat", "en")])[1]["chat", "en"]


def seen(key: int, requested: int, proposed: int, accepted: int) -> SequenceStats:
    end = BlockEnd.PLAIN if not proposed else BlockEnd.FULL if accepted == proposed else BlockEnd.REJECTED
    bucket = 1 + key % 2 if proposed else 0
    return SequenceStats(key, CHAT, "ngram", requested, proposed, proposed, accepted, accepted + 1, bucket, end)


def test_the_95_percent_intervals_contain_the_truth_in_93_to_97_percent_of_1000_experiments() -> None:
    experiments, requests = 1000, 32
    generator = np.random.default_rng(11)
    blocks = serve(generator, draw(generator, experiments * requests), LENGTHS)
    curves = [learned(blocks, experiment * requests, requests) for experiment in range(experiments)]
    first, third, emitted = truths(12)
    found = {
        "S_1": np.mean([curve.low[0] <= first <= curve.high[0] for curve in curves]),
        "S_3": np.mean([curve.low[2] <= third <= curve.high[2] for curve in curves]),
        "E(4)": np.mean([curve.emitted_low[4] <= emitted <= curve.emitted_high[4] for curve in curves]),
    }
    assert all(0.93 <= share <= 0.97 for share in found.values()), found
    assert np.mean([curve.unconditioned[0] for curve in curves]) == pytest.approx(first, abs=0.005)
    assert np.mean([curve.unconditioned[2] for curve in curves]) == pytest.approx(third, abs=0.005)
    assert np.mean([curve.emitted[4] for curve in curves]) == pytest.approx(emitted, rel=0.01)

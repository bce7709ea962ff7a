"""Engines whose costs are known, for the tests of the cost model."""

import random
from collections.abc import Callable, Sequence

from policies.cycle_policy import PassCost
from policies.stats import CycleStats, DraftTiming, EngineInfo
from tests.tuner.simulated_engine import TRUE_COST, calibration, cycle
from tuner.cost import CostModel

CPU = PassCost(
    (1, 4, 9, 16, 24, 48, 72, 144, 272),
    (0.0088, 0.0092, 0.00985, 0.0128, 0.0160, 0.0255, 0.0345, 0.0600, 0.1050),
    0.00015,
    7e-7,
)
"""Two cores."""
BUCKETS = PassCost(
    (1, 8, 9, 16, 17, 32, 34, 64, 68, 136),
    (0.0065, 0.0065, 0.0073, 0.0073, 0.0070, 0.0070, 0.0077, 0.0077, 0.0098, 0.0098),
    2e-5,
    3.9e-8,
)
"""Passes are padded to buckets, of which the one of 9 to 16 tokens is dearer than the next."""


def engine(
    cycles: Sequence[CycleStats] = calibration(TRUE_COST),
    drafting: Sequence[DraftTiming] = (),
    resident_seconds: dict[str, float] | None = None,
) -> EngineInfo:
    """An engine that says nothing but its calibration."""
    return EngineInfo(
        model="m",
        drafters=("none", "ngram", "draft"),
        dtype="float32",
        device="cpu",
        threads=1,
        slots=16,
        blocks=1000,
        context_limit=2048,
        vocabulary=100,
        linear_seconds=0.01,
        calibration=tuple(cycles),
        draft_calibration=tuple(drafting),
        resident_seconds=resident_seconds or {},
    )


def wrongly_calibrated(cost: PassCost, chance: random.Random, spread: float = 0.1) -> PassCost:
    """With an error at each knot and in each term."""

    def wrong(seconds: float) -> float:
        return seconds * min(max(1.0 + spread * chance.gauss(0.0, 1.0), 0.5), 1.5)

    return PassCost(
        cost.token_knots,
        tuple(wrong(seconds) for seconds in cost.knot_seconds),
        wrong(cost.sequence_seconds),
        wrong(cost.kv_token_seconds),
    )


def mixed(chance: random.Random, most: int = 8, drafts: Sequence[int] = (0, 0, 0, 2, 4, 6)) -> tuple[int, int, int]:
    """Tokens, load and context of a cycle of up to `most` sequences."""
    load = chance.randint(1, most)
    return load + sum(chance.choice(drafts) for _ in range(load)), load, load * chance.randint(150, 500)


def serve(
    model: CostModel,
    cost: Callable[[int, int, int], float],
    chance: random.Random,
    cycles: int,
    noise: float = 0.03,
    stalls: float = 0.01,
    shape: Callable[[random.Random], tuple[int, int, int]] = mixed,
) -> int:
    """Fold cycles with noise, some of them stalled, and refit now and then; how many changes were found."""
    changes = 0
    for index in range(cycles):
        tokens, load, kv_tokens = shape(chance)
        seconds = cost(tokens, load, kv_tokens) * chance.lognormvariate(0.0, noise)
        if chance.random() < stalls:
            seconds *= 5.0
        model.fold(cycle(load=load, tokens=tokens, kv_tokens=kv_tokens, seconds=seconds))
        changes += model.changed()
        if index % 70 == 69:
            model.refit()
    model.refit()
    return changes


def error(model: CostModel, cost: Callable[[int, int, int], float], shapes: Sequence[tuple[int, int, int]]) -> float:
    """Mean absolute relative error of predictions."""
    found = model.cost
    assert found is not None
    return sum(abs(found.seconds(*shape) / cost(*shape) - 1.0) for shape in shapes) / len(shapes)

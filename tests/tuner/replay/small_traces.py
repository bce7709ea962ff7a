"""Traces that are small and made of nothing but a seed, for tests of what plays them."""

import random
from collections.abc import Mapping, Sequence

from policies.cycle_policy import DraftCost, PassCost
from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.trace import Costs, DraftTrace, Trace, TracedRequest

STEPPED_COSTS = Costs(
    PassCost((1, 2, 4, 5, 8, 40), (0.010, 0.0102, 0.0106, 0.0125, 0.0131, 0.030), 0.0002, 1e-6),
    {
        "copy": DraftCost(0.0001, 0.00002, 0.0, 0.00001),
        "learned": DraftCost(0.0004, 0.00005, 0.0006, 0.00003),
    },
)
"""A pass with steps; one drafter that is nearly free and one whose steps are not."""


def small_trace(
    seed: int,
    requests: int = 60,
    loads: Sequence[int] = (1, 2, 3),
    most: int = MAX_BLOCK_LENGTH,
    costs: Costs = STEPPED_COSTS,
    right: Mapping[str, Mapping[str, float]] | None = None,
    hold: int = 10,
) -> Trace:
    """`requests` of two routes and two languages; `right` says by route how likely each drafter is right with a token.

    ``copy`` is silent for stretches; ``learned`` stops where it likes. `most` is the longest proposal.
    """
    generator = random.Random(seed)
    right = right or {"code": {"copy": 0.9, "learned": 0.4}, "chat": {"copy": 0.2, "learned": 0.7}}
    traced = []
    for _ in range(requests):
        route = generator.choice(sorted(right))
        length = generator.randint(12, 40)
        drafts = {
            "copy": _draft(generator, length, right[route]["copy"], most, silent=True),
            "learned": _draft(generator, length, right[route]["learned"], most, silent=False),
        }
        traced.append(TracedRequest(route, generator.choice(("da", "en")), generator.randint(20, 200), length, drafts))
    return Trace(
        drafters=("copy", "learned"),
        requests=tuple(traced),
        loads=tuple(loads[index // hold % len(loads)] for index in range(requests)),
        costs=costs,
        slots=max(loads),
        confidence_buckets={"copy": 3, "learned": 3},
    )


def _draft(generator: random.Random, length: int, right: float, most: int, silent: bool) -> DraftTrace:
    offered, kept, confidence = bytearray(length), bytearray(length), bytearray(length)
    run = 0
    quiet = False
    for position in reversed(range(length)):
        if silent and generator.random() < 0.15:
            quiet = not quiet
        run = run + 1 if generator.random() < right else 0
        offered[position] = 0 if quiet else generator.randint(1, most)
        kept[position] = min(run, offered[position])
        confidence[position] = 0 if quiet else min(3, 1 + kept[position] // 2 + generator.randint(0, 1))
    return DraftTrace(bytes(offered), bytes(kept), bytes(confidence))

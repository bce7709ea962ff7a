"""When a search ends, and how large the noise is that it has to see through."""

import math
from collections.abc import Sequence

LEAST = 0.002
"""An improvement below this is none, however quiet the machine."""


def noise_of(ratios: Sequence[float], rounds: int) -> float:
    """The standard error of a trial's ratio, from `ratios` of production to itself, each of one round.

    Their logarithms have the mean 0 by construction, so their mean square is their variance; a trial averages `rounds`
    of them. 0.0 without any.
    """
    if not ratios:
        return 0.0
    return math.sqrt(sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios) / rounds)


def spread_of(trials: Sequence[Sequence[float]]) -> float:
    """The standard error of a trial's ratio, from how far the ratios of its rounds lie apart, over all trials: besides
    the machine it tells how far the work of a round decides. 0.0 without a trial of two rounds."""
    squares, freedom, rounds = 0.0, 0, 0
    for ratios in trials:
        logarithms = [math.log(ratio) for ratio in ratios]
        centre = sum(logarithms) / len(logarithms)
        squares += sum((each - centre) ** 2 for each in logarithms)
        freedom += len(logarithms) - 1
        rounds = max(rounds, len(logarithms))
    return math.sqrt(squares / freedom / rounds) if freedom else 0.0


def should_stop(ratios: Sequence[float], noise: float, patience: int) -> bool:
    """Whether the best candidate has not improved by more than the noise for `patience` candidates.

    `ratios` are the candidates' to production, in order. The mark to beat starts at production's own, 1, and moves only
    with an improvement that counts: so a slow climb in steps below the noise counts once it adds up, and the largest of
    many lucky draws does not go on postponing the end.
    """
    mark, since = 1.0, 0
    for ratio in ratios:
        if ratio > mark + max(noise, LEAST):
            mark, since = ratio, 0
        else:
            since += 1
    return since >= patience

"""An objective whose truth is known: a smooth hill over two knobs, with noise that a pair shares in part."""

import math
import random
from collections.abc import Callable, Sequence

from tuner.tune.knobs import KNOBS, Knob, Values
from tuner.tune.study import Pair

SPACE: tuple[Knob, ...] = tuple(knob for knob in KNOBS if knob.name in ("ngram_min_match", "draft_stop"))
PRODUCTION = {"ngram_min_match": 2, "draft_stop": 0.07}


def flat(values: Values) -> float:
    """Every candidate as good as production."""
    return 1.0


def hill(values: Values) -> float:
    """1 for production, 1.2 at the top: matches of at least 5 tokens and a stop at 0.3."""
    return 1.2 * math.exp(-(((values["ngram_min_match"] - 5) / 9.94) ** 2) - ((values["draft_stop"] - 0.3) / 0.76) ** 2)


class Synthetic:
    """Measures `truth`; the same round of the same candidate is always the same."""

    def __init__(
        self, truth: Callable[[Values], float], noise: float = 0.02, seed: int = 0, limit: int = 10_000
    ) -> None:
        self._truth, self._noise, self._seed, self._limit = truth, noise, seed, limit
        self.measured: list[tuple[tuple[tuple[str, float], ...], tuple[int, ...]]] = []

    async def measure(self, values: Values, rounds: Sequence[int]) -> list[Pair]:
        if len(self.measured) >= self._limit:
            raise KeyboardInterrupt
        self.measured.append((tuple(values.items()), tuple(rounds)))
        pairs = []
        for index in rounds:
            source = random.Random(f"{self._seed} {sorted(values.items())} {index}")
            machine = 100.0 * source.lognormvariate(0.0, 0.3)
            fast, slow = (machine * source.lognormvariate(0.0, self._noise / math.sqrt(2)) for _ in range(2))
            pairs.append(Pair(self._truth(values) * fast, slow))
        return pairs

"""Controllers that others published, each from its source, and what hindsight would have chosen.

Plain and the fixed arms are not among them: `tuner.replay.run` plays those with `tuner.replay.fixed_play`.
"""

from collections.abc import Callable, Mapping

from tuner.replay.baselines.bandit_spec import Exp3, UcbPaper, UcbRepo
from tuner.replay.baselines.cascade import Cascade
from tuner.replay.baselines.goodput import TurboSpec, VllmGoodput
from tuner.replay.baselines.hedge_spec import HedgeSpec
from tuner.replay.baselines.hugging_face import ConfidenceThreshold, Heuristic
from tuner.replay.baselines.ik_llama import EpsilonGreedy
from tuner.replay.baselines.nightjar import Nightjar
from tuner.replay.baselines.sglang import EmaTiers, ThroughputAware
from tuner.replay.baselines.thompson import Thompson
from tuner.replay.copying_oracle import CopyingOracle
from tuner.replay.hindsight import (
    Hindsight,
    Single,
    best_fixed,
    best_per_context,
    best_per_context_and_load,
    best_per_load,
)
from tuner.replay.oracle import Truth
from tuner.replay.player import Player

_PUBLISHED: dict[str, Callable[[Single], Player]] = {
    "hf-heuristic": Heuristic,
    "hf-confidence": ConfidenceThreshold,
    "sglang-ema": EmaTiers,
    "sglang-throughput": ThroughputAware,
    "goodput-turbospec": TurboSpec,
    "goodput-vllm": VllmGoodput,
    "ucbspec-repo": UcbRepo,
    "nightjar": Nightjar,
    "cascade": Cascade,
    "ik-llama": EpsilonGreedy,
}
_AMONG_DRAFTERS: dict[str, Callable[[Mapping[str, int]], Player]] = {
    "ucbspec-paper": UcbPaper,
    "exp3spec": Exp3,
    "hedgespec": HedgeSpec,
}
_IN_HINDSIGHT: dict[str, Callable[[Hindsight], Player]] = {
    "best-fixed": best_fixed,
    "best-per-load": best_per_load,
    "best-per-context": best_per_context,
    "best-per-context-load": best_per_context_and_load,
}
HINDSIGHT = frozenset((*_IN_HINDSIGHT, CopyingOracle.name))
"""Those that know the trace. No others do, but for the drafter or the lengths that most are given."""
INFORMED = frozenset((ConfidenceThreshold.name, HedgeSpec.name))
"""Those that are published as seeing more than an engine tells: the confidence of a block while it is drafted, and what
every drafter would have had accepted so far."""


class _Remembered:
    """The hindsight of the last truth that was asked for: all controllers of a trace share it."""

    def __init__(self) -> None:
        self._last: tuple[Truth, Hindsight] | None = None

    def of(self, truth: Truth) -> Hindsight:
        if self._last is None or self._last[0] is not truth:
            self._last = truth, Hindsight(truth)
        return self._last[1]


def controllers() -> dict[str, Callable[[Truth], Player]]:
    """What makes each baseline, by its name. Those in hindsight look at the truth. Those that cannot choose a drafter
    are given the best single one, and those that choose nothing else the best length of each; beyond that they look at
    nothing but what a controller is told."""
    remembered = _Remembered()

    def in_hindsight(make: Callable[[Hindsight], Player]) -> Callable[[Truth], Player]:
        return lambda truth: make(remembered.of(truth))

    def published(make: Callable[[Single], Player]) -> Callable[[Truth], Player]:
        return lambda truth: make(remembered.of(truth).single)

    def among_drafters(make: Callable[[Mapping[str, int]], Player]) -> Callable[[Truth], Player]:
        return lambda truth: make(remembered.of(truth).lengths)

    return {
        CopyingOracle.name: CopyingOracle,
        **{name: in_hindsight(make) for name, make in _IN_HINDSIGHT.items()},
        **{name: published(make) for name, make in _PUBLISHED.items()},
        **{name: among_drafters(make) for name, make in _AMONG_DRAFTERS.items()},
        "thompson": lambda truth: Thompson(),
    }

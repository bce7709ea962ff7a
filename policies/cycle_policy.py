"""What one cycle reads: kill switches, the window, survivals and costs; see `policies.types` for the words."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Survival:
    """S_j by confidence bucket for one drafter in one context: ``by_confidence[bucket][j - 1]``."""

    by_confidence: tuple[tuple[float, ...], ...]

    def of(self, confidence: int) -> tuple[float, ...]:
        """The curve of a bucket; the last one when the drafter reports a bucket beyond those learned."""
        if not self.by_confidence:
            return ()
        return self.by_confidence[min(confidence, len(self.by_confidence) - 1)]


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of one cycle of the target: ``f(tokens) + sequence_seconds * load + kv_token_seconds * kv_tokens``.

    `f` is linear between the knots and continues with the last slope beyond them.
    """

    token_knots: tuple[int, ...]
    knot_seconds: tuple[float, ...]
    sequence_seconds: float
    kv_token_seconds: float

    def seconds(self, tokens: int, load: int, kv_tokens: int) -> float:
        """Predicted seconds of a cycle with `tokens` rows in the pass, `load` sequences, `kv_tokens` of context."""
        knots, values = self.token_knots, self.knot_seconds
        last = len(knots) - 1
        base = values[0]
        if last > 0 and tokens > knots[0]:
            upper = 1
            while upper < last and knots[upper] < tokens:
                upper += 1
            slope = (values[upper] - values[upper - 1]) / (knots[upper] - knots[upper - 1])
            base = values[upper - 1] + slope * (tokens - knots[upper - 1])
        return base + self.sequence_seconds * load + self.kv_token_seconds * kv_tokens


@dataclass(frozen=True, slots=True)
class Window:
    """A switchback window. `plain` windows measure the baseline; the others what is served."""

    window_id: int
    plain: bool


@dataclass(frozen=True, slots=True)
class CyclePolicy:
    """What one cycle reads, swapped whole. It may only lower a decision's cap."""

    version: int
    kill: bool
    window: Window
    survivals: Mapping[tuple[str, str, str], Survival]
    """Keyed by (drafter, route, language)."""
    default_survivals: Mapping[str, Survival]
    """Keyed by drafter: the pooled curve, for contexts not seen yet."""
    cost: PassCost | None
    """None before the calibration: then nothing but forced decisions speculates."""
    draft_seconds: Mapping[str, float]
    """Seconds of one proposal for one sequence, by drafter."""
    margin: float
    """Predicted gain that speculation must show over plain before it is used, e.g. 0.02."""
    max_neighbour_slowdown: float
    """No running sequence's predicted seconds per token may exceed this multiple of plain."""
    killed_routes: frozenset[str] = frozenset()
    """Routes whose kill switch is on; `kill` is the one for all."""


INITIAL_CYCLE_POLICY = CyclePolicy(
    version=0,
    kill=False,
    window=Window(0, plain=False),
    survivals={},
    default_survivals={},
    cost=None,
    draft_seconds={},
    margin=0.02,
    max_neighbour_slowdown=1.10,
)

"""A replay held against the engine: tokens per second of fixed arms, predicted from a trace and measured.

Predicted: the recorded requests, simulated with one drafter, block length and load, at the costs that the engine's
calibration and other cycles of the same session give. Measured: the engine serving the same requests. Both count decode
cycles alone; what a prompt takes is the same for every arm and in neither.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.stats import CycleStats
from policies.types import PLAIN, Interval
from tuner.paired import T_975
from tuner.replay.played import account
from tuner.replay.session_costs import SessionCosts
from tuner.replay.simulate import play
from tuner.replay.start_up import StartingArm
from tuner.replay.trace import Trace, TracedRequest

BAR_PERCENT = 3.0
"""A prediction may be wrong by so much, or lie within the measurement's 95 % interval."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A fixed arm at one load."""

    drafter: str
    block_length: int
    load: int

    def __str__(self) -> str:
        return self.drafter if self.drafter == PLAIN else f"{self.drafter}:{self.block_length}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of a cell."""

    cell: Cell
    predicted: float
    """Decoded tokens per second."""
    measured: Interval
    """The geometric mean over rounds with Student's interval."""
    predicted_cycles: int
    measured_cycles: int

    @property
    def error_percent(self) -> float:
        return 100.0 * (self.predicted / self.measured.estimate - 1.0)

    @property
    def holds(self) -> bool:
        within = self.measured.low <= self.predicted <= self.measured.high
        return abs(self.error_percent) <= BAR_PERCENT or within


def predict(
    cell: Cell, requests: Sequence[TracedRequest], session: SessionCosts, slots: int, *, reads: bool
) -> tuple[float, int]:
    """Tokens per second and cycles; `reads`: the drafter has layers of its own and reads a new text first."""
    drafters = tuple(session.costs.drafters)
    trace = Trace(drafters, tuple(requests), (cell.load,) * len(requests), session.costs, slots)
    arm = StartingArm(cell.drafter, cell.block_length, reads=reads)
    outcome = account(trace, play(trace, arm, 0))
    seconds = outcome.seconds + arm.read_tokens * session.startup_seconds[cell.drafter]
    return sum(one.output_tokens for one in requests) / seconds, outcome.cycles


def check(cell: Cell, prediction: tuple[float, int], rounds: Sequence[Sequence[CycleStats]]) -> Checked:
    """Hold a prediction against rounds of the same requests."""
    rates = [rate_of(cycles) for cycles in rounds]
    cycles = statistics.median_low(len(one) for one in rounds)
    return Checked(cell, prediction[0], interval_of(rates), prediction[1], cycles)


def rate_of(cycles: Sequence[CycleStats]) -> float:
    """Decoded tokens per second of cycles."""
    emitted = sum(one.emitted for stats in cycles for one in stats.sequences)
    return emitted / sum(stats.cycle_seconds for stats in cycles)


def interval_of(values: Sequence[float]) -> Interval:
    """Geometric mean with Student's 95 % interval on the logarithms; of one value it has no ends."""
    logarithms = [math.log(value) for value in values]
    centre = statistics.fmean(logarithms)
    if len(values) < 2:
        return Interval(math.exp(centre), 0.0, math.inf)
    spread = statistics.stdev(logarithms) / math.sqrt(len(values))
    half = T_975[min(len(values) - 2, len(T_975) - 1)] * spread
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def rows(checked: Sequence[Checked]) -> list[Mapping[str, object]]:
    """As the JSON file has them; JSON knows no infinity, so an end that is not there is null."""
    return [
        {
            "drafter": one.cell.drafter,
            "block_length": one.cell.block_length,
            "load": one.cell.load,
            "predicted_tokens_per_second": one.predicted,
            "measured": {
                "estimate": one.measured.estimate,
                "low": one.measured.low,
                "high": None if math.isinf(one.measured.high) else one.measured.high,
            },
            "error_percent": one.error_percent,
            "predicted_cycles": one.predicted_cycles,
            "measured_cycles": one.measured_cycles,
            "holds": one.holds,
        }
        for one in checked
    ]

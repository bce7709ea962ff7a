"""Seconds of drafting, by drafter: calls timed at start, and what cycles measure."""

from collections.abc import Mapping, Sequence

import numpy as np

from policies.cycle_policy import DraftCost
from policies.stats import CycleStats, DraftTiming
from tuner.cost.nonnegative import solve_nonnegative

_CALIBRATED_CALLS = 20.0
"""Live calls that all calls timed at start weigh as much as, together."""
_FADE = 0.5 ** (1.0 / 1000.0)
_RIDGE = 1e-6
_CLIP = 1.0
"""A call counts with at most this relative error, so that a stall moves little (Huber 1964)."""
_SPEED_CALLS = 50.0
"""Calls over which the speed of a drafter is averaged."""
_STARTUP_CALLS = 10.0
"""Calls over which the seconds of a token that a drafter reads first are averaged."""

_TERMS = 4
"""Call, sequences, steps, rows."""


class DraftFit:
    """`DraftCost` of one drafter: least squares of relative errors with coefficients that are not negative.

    Timed calls never fade: they say what kinds of calls cost that are not served, at the speed of those that are.
    """

    def __init__(self, timings: Sequence[DraftTiming]) -> None:
        self._prior = np.zeros((_TERMS, _TERMS))
        self._prior_vector = np.zeros(_TERMS)
        # Lists: single elements are written with every call.
        self._live = [[0.0] * _TERMS for _ in range(_TERMS)]
        self._live_vector = [0.0] * _TERMS
        self._weight = 1.0
        """Of the newest call, instead of all older ones being multiplied each time."""
        self._speed = 1.0
        self._calls = 0.0
        self._calibrated: DraftCost | None = None
        self.cost: DraftCost | None = None
        """None while there is nothing to fit."""
        for timing in timings:
            terms = np.array([1.0, timing.sequences, timing.steps, timing.rows]) / timing.seconds
            scale = _CALIBRATED_CALLS / len(timings)
            self._prior += scale * np.outer(terms, terms)
            self._prior_vector += scale * terms
        if timings:
            self.cost = self._calibrated = self._solve()

    def fold(self, sequences: int, steps: int, rows: int, seconds: float) -> None:
        """Learn from a call; what it changes shows after the next `refit`."""
        if self.cost is not None:
            predicted = self.cost.seconds(sequences, steps, rows)
            if predicted > 0.0:
                seconds = min(max(seconds, predicted / (1.0 + _CLIP)), predicted * (1.0 + _CLIP))
        if self._calibrated is not None:
            expected = self._calibrated.seconds(sequences, steps, rows)
            if expected > 0.0:
                self._speed += (seconds / expected - self._speed) / min(self._calls + 1.0, _SPEED_CALLS)
        self._calls += 1.0
        self._weight /= _FADE
        terms = (1.0, sequences, steps, rows)
        scale = self._weight / seconds
        vector = self._live_vector
        for place, left in enumerate(terms):
            part = scale * left
            vector[place] += part
            part /= seconds
            row = self._live[place]
            for other in range(place, _TERMS):
                row[other] += part * terms[other]

    def refit(self) -> None:
        """The best fit to everything so far."""
        if self._weight == 1.0:
            return
        factor = 1.0 / self._weight
        self._live = [[value * factor for value in row] for row in self._live]
        self._live_vector = [value * factor for value in self._live_vector]
        self._weight = 1.0
        self.cost = self._solve()

    def _solve(self) -> DraftCost:
        upper = np.array(self._live)
        matrix = self._prior / self._speed**2 + upper + np.triu(upper, 1).T
        vector = self._prior_vector / self._speed + np.array(self._live_vector)
        diagonal = np.diagonal(matrix).copy()
        # A term that is zero throughout has nothing to fit: any positive value leaves its coefficient at 0.
        matrix[np.diag_indices(_TERMS)] = np.where(diagonal > 0.0, diagonal * (1.0 + _RIDGE), 1.0)
        return DraftCost(*solve_nonnegative(matrix.tolist(), vector.tolist()))


class DraftCosts:
    """Of every drafter; not thread-safe."""

    def __init__(self, timings: Sequence[DraftTiming]) -> None:
        self._fits: dict[str, DraftFit] = {}
        self._startup: dict[str, float] = {}
        """Seconds for each token of text that a drafter has to read first."""
        self.start(timings)

    def start(self, timings: Sequence[DraftTiming]) -> None:
        """Forget what was known of the drafters in `timings`, and begin with these."""
        by_drafter: dict[str, list[DraftTiming]] = {}
        for timing in timings:
            if timing.seconds > 0.0:
                by_drafter.setdefault(timing.drafter, []).append(timing)
        for drafter, each in by_drafter.items():
            fit = self._fits[drafter] = DraftFit([timing for timing in each if not timing.catch_up_tokens])
            for timing in each:
                if timing.catch_up_tokens:
                    drafting = _seconds(fit, timing.sequences, timing.steps, timing.rows)
                    self._startup[drafter] = max(timing.seconds - drafting, 0.0) / timing.catch_up_tokens

    def fold(self, stats: CycleStats) -> None:
        """Learn from a cycle's drafting."""
        for drafter, seconds in stats.draft_seconds.items():
            sequences = steps = rows = 0
            for one in stats.sequences:
                if one.drafter == drafter and one.requested > 0:
                    sequences += 1
                    rows += one.proposed
                    if one.proposed > steps:
                        steps = one.proposed
            if sequences and seconds > 0.0:
                fit = self._fits.get(drafter)
                if fit is None:
                    fit = self._fits[drafter] = DraftFit(())
                read = stats.startup_tokens.get(drafter, 0)
                if read:
                    self._fold_startup(drafter, read, seconds - _seconds(fit, sequences, steps, rows))
                else:
                    fit.fold(sequences, steps, rows, seconds)

    def _fold_startup(self, drafter: str, tokens: int, seconds: float) -> None:
        each = max(seconds, 0.0) / tokens
        known = self._startup.setdefault(drafter, each)
        self._startup[drafter] = known + (min(each, (1.0 + _CLIP) * known) - known) / _STARTUP_CALLS

    def refit(self) -> None:
        for fit in self._fits.values():
            fit.refit()

    @property
    def costs(self) -> Mapping[str, DraftCost]:
        """By drafter, as of the last `refit`; nothing for one of which no call was seen."""
        return {name: fit.cost for name, fit in self._fits.items() if fit.cost is not None}

    def startup_seconds(self, drafter: str, prompt_tokens: int) -> float:
        """What a drafter takes to read a prompt before its first draft; 0.0 for one of which no such call was timed."""
        return self._startup.get(drafter, 0.0) * prompt_tokens


def _seconds(fit: DraftFit, sequences: int, steps: int, rows: int) -> float:
    return fit.cost.seconds(sequences, steps, rows) if fit.cost is not None else 0.0

"""What cycles cost: the pass of the target, drafting, keeping drafters loaded; and whether it changed."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from policies.cycle_policy import DraftCost, PassCost
from policies.stats import CycleStats, EngineInfo
from tuner.cost.draft_cost import DraftCosts
from tuner.cost.pass_cost import PassFit, Shape
from tuner.cost.residuals import DRIFT, RANGES, ChangeTest, Errors, range_of

_HALF_LIFE_CYCLES = 2000.0
_NOISE_AT_START = 0.05
"""Relative standard deviation of a cycle about its prediction, until it is known."""
_LEAST_NOISE = 0.01
_CLIP = 2.0
"""A cycle counts with an error of at most this many standard deviations, so that a stall moves little (Huber 1964)."""
_REFIT_CYCLES = 64
"""Cycles after which the fit is renewed whatever the caller does: residuals of an old fit would be alike."""
_HEAVY = 0.01
"""A drafter of which one draft takes less than this share of a plain pass leaves the cache as it was."""
_RANGE_DRIFT = 2.0 * DRIFT
"""As `DRIFT`, of the passes in one range of tokens: those come seldom, and the machine drifts between them."""
_SURE = 0.2
"""The test for change leaves out shapes whose prediction is less sure than this share of the noise of a cycle."""


class CostModel:
    """Predicts cycles; not thread-safe."""

    def __init__(self, info: EngineInfo, half_life_cycles: float = _HALF_LIFE_CYCLES) -> None:
        """
        Args:
            info: its calibration, timed drafting and residency are read. Without a calibration there is no cost of a
                pass, ever: cycles in which nothing is verified cannot tell what verifying costs.
            half_life_cycles: a live cycle counts half after this many later ones.
        """
        shapes = [
            Shape(stats.tokens, stats.load, stats.kv_tokens, _pass_seconds(stats))
            for stats in info.calibration
            if stats.load > 0 and _pass_seconds(stats) > 0.0
        ]
        self._fit = PassFit(shapes, half_life_cycles) if shapes else None
        self._drafts = DraftCosts(info.draft_calibration)
        self._resident_seconds = dict(info.resident_seconds)
        self._errors = Errors()
        self._test = ChangeTest()
        self._tests = {key: ChangeTest(_RANGE_DRIFT) for key in RANGES}
        """A change of some shapes alone is lost among the others."""
        self._changed = False
        self._folded = 0
        self._noise = _NOISE_AT_START
        self._deviations: dict[tuple[int, int, bool], float] = {}
        """Of predictions, by (tokens, load) and whether something heavy drafted, since the last fit."""
        self._heavy: frozenset[str] = frozenset()
        """Drafters that slow the target's pass after them."""
        self._find_heavy()

    @property
    def cost(self) -> PassCost | None:
        """The fit of the last `refit`; None without a calibration."""
        return self._fit.cost if self._fit is not None else None

    @property
    def draft_costs(self) -> Mapping[str, DraftCost]:
        """By drafter, as of the last `refit`; one without an entry was never seen to draft. By how much a drafter slows
        the target's pass is in the cost of its call."""
        costs = self._drafts.costs
        if self._fit is None or not self._heavy:
            return costs
        slower = self._fit.drafted_seconds
        return {
            name: replace(cost, call_seconds=cost.call_seconds + slower) if name in self._heavy else cost
            for name, cost in costs.items()
        }

    @property
    def error(self) -> float | None:
        """Median absolute relative error on live cycles, each taken before the model learned from it."""
        return self._errors.median

    @property
    def errors_by_range(self) -> Mapping[tuple[int, int], float]:
        """The same by the range of tokens in the pass, for those that were served."""
        return self._errors.by_range

    @property
    def speed(self) -> float:
        """Seconds of a pass over those that were calibrated: 1.2 on a machine that became a fifth slower."""
        return self._fit.speed if self._fit is not None else 1.0

    def changed(self) -> bool:
        """Whether cycles were found to cost something else than before, since the last call. See `ChangeTest`."""
        changed, self._changed = self._changed, False
        return changed

    def set_drafters(self, info: EngineInfo, changed: Collection[str]) -> None:
        """The engine has other drafters now; of `changed` ones what was timed at their loading begins anew."""
        self._drafts.start([timing for timing in info.draft_calibration if timing.drafter in changed])
        self._resident_seconds = dict(info.resident_seconds)

    def startup_seconds(self, drafter: str, prompt_tokens: int) -> float:
        """What a drafter takes to read a request's prompt before its first draft."""
        return self._drafts.startup_seconds(drafter, prompt_tokens)

    def resident_seconds(self, drafter: str, load: int) -> float:
        """What keeping a drafter loaded adds to a plain cycle of `load` sequences."""
        return self._resident_seconds.get(drafter, 0.0) * load

    def fold(self, stats: CycleStats) -> None:
        """Learn from a live cycle; what it changes shows after the next `refit`."""
        seconds = _pass_seconds(stats)
        if stats.load == 0 or seconds <= 0.0:
            return
        self._drafts.fold(stats)
        fit = self._fit
        if fit is None:
            return
        tokens, load, kv_tokens = stats.tokens, stats.load, stats.kv_tokens
        # Lookups take no time to speak of: what shadows take beyond that, something heavy took.
        drafted = not self._heavy.isdisjoint(stats.draft_seconds) or stats.shadow_seconds > _HEAVY * seconds
        predicted = fit.seconds(tokens, load, kv_tokens, drafted=drafted)
        relative = seconds / predicted - 1.0
        self._errors.add(tokens, relative)
        noise = self._noise
        key = tokens, load, drafted
        deviation = self._deviations.get(key)
        if deviation is None:
            deviation = self._deviations[key] = fit.deviation(tokens, load, kv_tokens, drafted=drafted) / predicted
        if deviation < _SURE * noise and self._shifts(tokens, relative, math.hypot(noise, deviation)):
            self._changed = True
            fit.start_anew()
            self._renew()
            deviation = fit.deviation(tokens, load, kv_tokens, drafted=drafted) / predicted
        limit = _CLIP * math.hypot(noise, deviation)
        clipped = predicted * (1.0 + min(max(relative, -limit), limit))
        fit.fold(Shape(tokens, load, kv_tokens, clipped, drafted), noise * predicted)
        self._folded += 1
        if self._folded >= _REFIT_CYCLES:
            self._renew()

    def _shifts(self, tokens: int, relative: float, deviation: float) -> bool:
        """Count a relative residual; whether the mean of all, or of those of its range, has shifted."""
        everywhere = self._test.add(relative, deviation)
        return self._tests[range_of(tokens)].add(relative, deviation) or everywhere

    def refit(self) -> PassCost | None:
        """The best fit to everything folded so far."""
        self._drafts.refit()
        if self._fit is not None:
            self._renew()
        return self.cost

    def _renew(self) -> None:
        assert self._fit is not None
        self._fit.refit()
        self._find_heavy()
        self._noise = max(self._errors.noise(_NOISE_AT_START), _LEAST_NOISE)
        self._deviations.clear()
        self._folded = 0

    def _find_heavy(self) -> None:
        if self._fit is not None:
            least = _HEAVY * self._fit.cost.seconds(1, 1, 0)
            self._heavy = frozenset(name for name, cost in self._drafts.costs.items() if cost.seconds(1, 1, 1) > least)


def _pass_seconds(stats: CycleStats) -> float:
    """What of a cycle is not drafting."""
    return stats.cycle_seconds - sum(stats.draft_seconds.values()) - stats.shadow_seconds - stats.copying_seconds

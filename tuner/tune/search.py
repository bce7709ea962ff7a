"""The search: candidates one after the other against production, until it pays no more; then the best once again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.types import Interval
from tuner.paired import paired_ratio
from tuner.tune.knobs import Values
from tuner.tune.stop import noise_of, should_stop, spread_of
from tuner.tune.study import Pair, Study, Trial


class Objective(Protocol):
    """Measures a candidate."""

    async def measure(self, values: Values, rounds: Sequence[int]) -> list[Pair]:
        """One pair for each of `rounds`. A round is the same work, with the same seeds, for whatever is measured."""
        ...


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How long and how closely it is searched."""

    trials: int = 30
    """Candidates, production's own trials included."""
    rounds: int = 3
    """Pairs of a candidate."""
    patience: int = 10
    """See `tuner.tune.stop.should_stop`."""

    @property
    def confirming(self) -> range:
        """Rounds that decide about the best candidate: it was the luckiest in those of the search."""
        return range(self.rounds, self.rounds + max(6, 2 * self.rounds))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a search."""

    best: Trial | None
    """The candidate that was fastest in the search; None where none was faster than production."""
    interval: Interval | None
    """Its speed over production's, in rounds of its own."""
    noise: float
    """Standard error of a trial's ratio."""
    trials: int
    stopped_early: bool

    @property
    def beats_production(self) -> bool:
        """The whole 95 % interval lies above 1."""
        return self.interval is not None and self.interval.low > 1.0


async def search(
    study: Study, objective: Objective, options: SearchOptions, told: Callable[[Trial, float], None]
) -> Verdict:
    """Go on with a study until it has its trials or stops by its rule, and confirm what it found.

    `told` gets each trial as it is done, and the noise as it is known then.
    """
    while True:
        trials = study.trials
        noise = measured_noise(trials, options.rounds)
        ratios = [trial.ratio for trial in trials if not trial.is_production]
        stopped = should_stop(ratios, noise, options.patience)
        if stopped or len(trials) >= options.trials:
            break
        proposed = study.propose()
        pairs = await objective.measure(proposed.values, range(options.rounds))
        ratio = paired_ratio([pair.candidate for pair in pairs], [pair.production for pair in pairs]).estimate
        study.tell(proposed.number, ratio, pairs)
        done = Trial(proposed.number, proposed.values, proposed.is_production, ratio, tuple(pairs))
        told(done, measured_noise((*trials, done), options.rounds))
    best = max((trial for trial in trials if not trial.is_production), key=lambda trial: trial.ratio, default=None)
    if best is None or best.ratio <= 1.0:
        return Verdict(None, None, noise, len(trials), stopped)
    confirmed = study.confirmed
    if confirmed is None or confirmed["number"] != best.number:
        study.confirm(best.number, await objective.measure(best.values, options.confirming))
        confirmed = study.confirmed
    assert confirmed is not None
    above, below = zip(*confirmed["pairs"], strict=True)
    return Verdict(best, paired_ratio(above, below), noise, len(trials), stopped)


def measured_noise(trials: Sequence[Trial], rounds: int) -> float:
    """The larger of what production against itself shows and of what the rounds of the candidates do."""
    against_itself = [pair.ratio for trial in trials if trial.is_production for pair in trial.pairs]
    candidates = [[pair.ratio for pair in trial.pairs] for trial in trials if not trial.is_production]
    return max(noise_of(against_itself, rounds), spread_of(candidates))

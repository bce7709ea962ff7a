"""Means with intervals over seeds, by scenario and controller, and the bars that the tuner is held to."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.types import Interval
from tuner.bench.report import Bar
from tuner.replay.compare import (
    NEIGHBOUR_BOUND,
    WINDOW_BOUND_PERCENT,
    Run,
    arrival_regret,
    mean_interval,
    requests_until_recovered,
    share_interval,
)
from tuner.replay.run import COPYING_ORACLE, GOODPUT, GOODPUT_TABLE, ORACLE, OURS, STATIC_TABLE, UNBOUND, Done
from tuner.replay.scenarios import ScenarioBook

REGRET_BAR = 2.0
STATIONARY_BAR = 1.0
STATIC_BAR = 3.0
GOODPUT_BAR = 5.0
WORSE_BAR = 1.0
SAFE_SHARE_BAR = 0.99
RECOVERY_BAR = 50
ARRIVAL_BAR = 2.0
ARRIVAL_SKIP = {True: 10, False: 100}
"""Requests in which a new context is to be learned, with relatives and without."""
MINUTES_BAR = 15.0
"""For all scenarios and controllers, with so many seeds on so many cores:"""
MINUTES_SEEDS = 20
MINUTES_CORES = 2
ARRIVAL_COUNT = 50
"""Requests of the new context, after those, that are judged."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A controller on a scenario, over seeds; percentages."""

    scenario: str
    controller: str
    regret: Interval
    over_copying: Interval | None
    """Its time over the copying oracle's, paired by seed; None where that did not run."""
    over_ours: Interval | None
    """Its regret less ours, paired by seed; None without ours."""
    worst_window_percent: float
    """The worst of all runs."""
    window_share: float
    """Of runs with a window of 500 requests that is more than 2 % slower than plain."""
    neighbour_share: float
    """Of runs in which a sequence was slowed by its neighbours beyond the bound."""


class Comparison:
    """All runs, by scenario and controller."""

    def __init__(self, done: Sequence[Done]) -> None:
        self._done: dict[str, list[Done]] = {}
        self._runs: dict[tuple[str, str], list[Run]] = {}
        for job in done:
            self._done.setdefault(job.job.scenario, []).append(job)
            for run in job.runs:
                self._runs.setdefault((run.scenario, run.controller), []).append(run)
        self.scenarios = tuple(self._done)
        self.controllers = tuple(dict.fromkeys(controller for _, controller in self._runs))
        self.seeds = tuple(dict.fromkeys(job.job.seed for job in done))

    @property
    def runs(self) -> Iterator[Run]:
        for runs in self._runs.values():
            yield from runs

    def of(self, scenario: str, controller: str) -> list[Run]:
        """Its runs, in the order of seeds; none where it did not run."""
        return self._runs.get((scenario, controller), [])

    def cell(self, scenario: str, controller: str) -> Cell | None:
        runs = self.of(scenario, controller)
        if not runs:
            return None
        ours, copying = self.of(scenario, OURS), self.of(scenario, COPYING_ORACLE)
        return _cell(
            scenario,
            runs,
            [run.regret_percent for run in runs],
            _over(runs, copying) if copying else None,
            _differences(runs, ours) if ours else None,
        )

    def overall(self, controller: str) -> Cell | None:
        """The mean over all scenarios, its interval over seeds; None where it did not run on all of them."""
        by_scenario = [self.of(scenario, controller) for scenario in self.scenarios]
        if not all(by_scenario):
            return None
        ours = [self.of(scenario, OURS) for scenario in self.scenarios]
        copying = [self.of(scenario, COPYING_ORACLE) for scenario in self.scenarios]
        return _cell(
            "mean",
            [run for runs in by_scenario for run in runs],
            _means([[run.regret_percent for run in runs] for runs in by_scenario]),
            _means([_over(a, b) for a, b in zip(by_scenario, copying, strict=True)]) if all(copying) else None,
            _means([_differences(a, b) for a, b in zip(by_scenario, ours, strict=True)]) if all(ours) else None,
        )

    def recoveries(self, scenario: str, controller: str) -> list[tuple[int, int]]:
        """(change, requests until it is within 2 % of the oracle: all those up to the next change if it never is)."""
        done = self._done[scenario]
        runs, oracles = self.of(scenario, controller), self.of(scenario, ORACLE)
        if not runs or not all(len(run.request_seconds) for run in runs):
            return []
        changes = [*done[0].changes, done[0].requests]
        return [
            (
                first,
                requests_until_recovered(
                    [run.request_seconds for run in runs], [run.request_seconds for run in oracles], first, last
                ),
            )
            for first, last in itertools.pairwise(changes)
        ]

    def arrival(self, scenario: str, controller: str, skip: int) -> Interval | None:
        """Regret of a context that came under way, in percent, over the 50 of its requests after the first `skip`."""
        runs, oracles = self.of(scenario, controller), self.of(scenario, ORACLE)
        if not runs or not all(len(run.request_seconds) for run in runs):
            return None
        values = [
            arrival_regret(run.request_seconds, oracle.request_seconds, job.arrived, skip, ARRIVAL_COUNT)
            for run, oracle, job in zip(runs, oracles, self._done[scenario], strict=True)
            if len(job.arrived) >= skip + ARRIVAL_COUNT
        ]
        return mean_interval(values) if values else None


def bars(comparison: Comparison, book: ScenarioBook) -> list[Bar]:
    """What the tuner is held to, of what was run; none of it without ours."""
    if OURS not in comparison.controllers:
        return []
    shipped = [name for name in comparison.scenarios if name in book.scenarios]
    found = [*_regret_bars(comparison, book, shipped), *_margin_bars(comparison, book, shipped)]
    if shipped:
        found += _baseline_bars(comparison, shipped)
    runs = [run for run in comparison.runs if run.controller == OURS]
    windows = sum(run.worst_window_percent <= WINDOW_BOUND_PERCENT for run in runs)
    neighbours = sum(run.worst_neighbour <= NEIGHBOUR_BOUND for run in runs)
    found += [
        Bar(
            "share of runs without a window of 500 requests more than 2 % slower than plain",
            share_interval(windows, len(runs)),
            SAFE_SHARE_BAR,
        ),
        Bar(
            "share of runs in which no sequence was slowed by its neighbours beyond 1.10",
            share_interval(neighbours, len(runs)),
            SAFE_SHARE_BAR,
        ),
    ]
    return found + _learning_bars(comparison, book, shipped)


def minutes_bar(seconds: float) -> Bar:
    """Of all scenarios, controllers and 20 seeds."""
    minutes = seconds / 60.0
    name = f"minutes that all of it took on {MINUTES_CORES} cores"
    return Bar(name, Interval(minutes, minutes, minutes), MINUTES_BAR, at_least=False)


def _regret_bars(comparison: Comparison, book: ScenarioBook, shipped: Sequence[str]) -> Iterator[Bar]:
    for name in shipped:
        cell = comparison.cell(name, OURS)
        if cell is not None:
            bar = STATIONARY_BAR if book.scenarios[name].stationary else REGRET_BAR
            yield Bar(f"{name}: regret in percent", cell.regret, bar, at_least=False)


def _margin_bars(comparison: Comparison, book: ScenarioBook, shipped: Sequence[str]) -> Iterator[Bar]:
    for name in shipped:
        if not book.scenarios[name].compared:
            continue
        for rival, bar in ((STATIC_TABLE, STATIC_BAR), (GOODPUT, GOODPUT_BAR), (GOODPUT_TABLE, GOODPUT_BAR)):
            runs = comparison.of(name, rival)
            if runs:
                faster = mean_interval(_over(runs, comparison.of(name, OURS)))
                yield Bar(f"{name}: percent faster than {rival}", faster, bar)


def _baseline_bars(comparison: Comparison, shipped: Sequence[str]) -> list[Bar]:
    """Against the baseline that comes closest, on the mean where there are several scenarios, and on any of them."""
    rivals = [name for name in comparison.controllers if name not in (OURS, UNBOUND) and not name.startswith(ORACLE)]
    means: Mapping[str, Interval] = {
        rival: cell.over_ours
        for rival in rivals
        if (cell := comparison.overall(rival)) is not None and cell.over_ours is not None
    }
    if not means:
        return []
    found = []
    if len(comparison.scenarios) > 1:
        closest = min(means, key=lambda rival: means[rival].estimate)
        name = f"mean over scenarios: points of regret below the best baseline, {closest}"
        found.append(Bar(name, means[closest], 0.0))
    worst = min(
        (
            (cell.over_ours, rival, scenario)
            for scenario in shipped
            for rival in rivals
            if (cell := comparison.cell(scenario, rival)) is not None and cell.over_ours is not None
        ),
        key=lambda candidate: candidate[0].estimate,
    )
    found.append(
        Bar(
            f"points of regret above a baseline, at the worst: {worst[1]} on {worst[2]}",
            Interval(-worst[0].estimate, -worst[0].high, -worst[0].low),
            WORSE_BAR,
            at_least=False,
        )
    )
    return found


def _learning_bars(comparison: Comparison, book: ScenarioBook, shipped: Sequence[str]) -> list[Bar]:
    found = []
    for name in shipped:
        scenario = book.scenarios[name]
        if scenario.arrival is not None:
            skip = ARRIVAL_SKIP[scenario.arrival.relatives]
            found.append(
                Bar(
                    f"{name}: regret in percent of the new context after {skip} requests",
                    comparison.arrival(name, OURS, skip),
                    ARRIVAL_BAR,
                    at_least=False,
                )
            )
        for first, needed in comparison.recoveries(name, OURS):
            # A single seed says nothing of its spread, so it cannot break a bar; what is told of several is one count.
            known = len(comparison.seeds) > 1
            found.append(
                Bar(
                    f"{name}: requests from {first} on until within 2 % of the oracle",
                    Interval(needed, needed, needed) if known else Interval(needed, -math.inf, math.inf),
                    RECOVERY_BAR,
                    at_least=False,
                )
            )
    return found


def _cell(
    scenario: str,
    runs: Sequence[Run],
    regrets: Sequence[float],
    over_copying: Sequence[float] | None,
    over_ours: Sequence[float] | None,
) -> Cell:
    """Of runs of one controller; means are over what is given, shares over the runs."""
    return Cell(
        scenario,
        runs[0].controller,
        mean_interval(regrets),
        None if over_copying is None else mean_interval(over_copying),
        None if over_ours is None else mean_interval(over_ours),
        max(run.worst_window_percent for run in runs),
        sum(run.worst_window_percent > WINDOW_BOUND_PERCENT for run in runs) / len(runs),
        sum(run.worst_neighbour > NEIGHBOUR_BOUND for run in runs) / len(runs),
    )


def _over(runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """How much longer each took than the other on the same trace, in percent, after the warm-up."""
    return [
        100.0 * (mine.counted_seconds / other.counted_seconds - 1.0) for mine, other in zip(runs, others, strict=True)
    ]


def _differences(runs: Sequence[Run], ours: Sequence[Run]) -> list[float]:
    return [theirs.regret_percent - mine.regret_percent for theirs, mine in zip(runs, ours, strict=True)]


def _means(by_scenario: Sequence[Sequence[float]]) -> list[float]:
    """By seed, the mean over scenarios."""
    return [sum(values) / len(values) for values in zip(*by_scenario, strict=True)]

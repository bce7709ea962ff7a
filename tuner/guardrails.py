"""Guardrails: what a route must keep while it speculates, and plain as soon as it demonstrably does not.

Each check of a route counts the requests that were bad in its own sense, among those that were to speculate, over the
last minutes. A share above the bar by chance trips nothing: the test is exact, and strict, since it is made again and
again. Where plain requests of the route are known, they must be better as well, or speculation is not the cause: an
objective that plain breaks too keeps nobody from speculating.

A check that failed holds the route plain, requests that run already included, for a cool-down. Then a share of the
requests tries again beside plain ones; they decide whether it ends or begins again, twice as long.

Nothing here touches a request: what cannot be judged trips nothing, and is said to be so.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from policies.ladder import ANY
from policies.stats import FinishReason, RequestStats
from policies.types import PLAIN, Interval, Reason
from tuner.proportions import chance_above_bar, chance_above_other, interval

TRIED_SHARE = 0.1
"""Of the requests of a route after the cool-down."""
BEYOND_PERCENTILE = 0.05
"""Share of requests that may be slower than a 95th percentile."""
_LATELY_SECONDS = 300.0
_LATELY_REQUESTS = 200
_PLAIN_SECONDS = 3600.0
"""Plain requests come seldom, and are remembered longer."""
_FAILED_CHANCE = 0.001
_WORSE_CHANCE = 0.025
_LEAST_REQUESTS = 20
_LONGEST_COOLDOWN = 8
"""In multiples of the first."""
_STRICTER = 1.7
"""A gain is looked at every second, so an interval of 95 % would rule the bar out by chance: this makes it 99.9 %."""
_MEMORY_READINGS = 3
_ROUTES = 256


class Check(StrEnum):
    """What is watched."""

    LATENCY = "latency"
    """Seconds per output token, against the route's objective, unless plain at equal load would have missed it too."""
    GAIN = "gain"
    """Seconds per output token, against measured plain at equal load: of a route, which its neighbours may slow within
    their bound, and of everything."""
    TTFT = "ttft"
    """Seconds to the first token, against the route's objective."""
    ERRORS = "errors"
    """Requests that failed."""
    VALIDITY = "validity"
    """Structured outputs that came to their end and do not follow their grammar or schema."""
    MEMORY = "memory"
    """Memory that the system still gives; everywhere, not on one route."""


REASONS: Mapping[Check, Reason] = {
    Check.LATENCY: Reason.GUARDRAIL_LATENCY,
    Check.GAIN: Reason.GUARDRAIL_LATENCY,
    Check.TTFT: Reason.GUARDRAIL_TTFT,
    Check.ERRORS: Reason.GUARDRAIL_ERRORS,
    Check.VALIDITY: Reason.GUARDRAIL_VALIDITY,
    Check.MEMORY: Reason.GUARDRAIL_MEMORY,
}


class Verdict(StrEnum):
    """What a check found."""

    SUCCESS = "success"
    """The bar is kept: the interval lies within it."""
    FAILED = "failed"
    """The bar is broken, and plain does not break it as much: chance is ruled out."""
    INCONCLUSIVE = "inconclusive"
    """The interval holds the bar: more requests are needed."""
    ERROR = "error"
    """It could not be measured. Nothing is done."""
    NO_TRAFFIC = "no traffic"
    """No request that could be judged came lately: nothing is known, and nothing has failed."""


class Standing(StrEnum):
    """What a check does now."""

    WATCHING = "watching"
    TRIPPED = "tripped"
    """Plain serves."""
    TRYING = "trying"
    """A share of the requests speculates again; the others are plain."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a route's requests are to keep in 95 of 100 cases; None asks for nothing."""

    ttft_p95_seconds: float | None = None
    tpot_p95_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GuardrailOptions:
    """The bars."""

    enabled: bool = True
    objectives: Mapping[str, Objective] = field(default_factory=dict)
    """By route."""
    least_gain: float = 0.98
    """What the measured gain over everything may be."""
    least_route_gain: float = 0.87
    """What the measured gain of a route may be: neighbours that speculate slow it."""
    max_error_share: float = 0.02
    max_invalid_share: float = 0.02
    least_free_memory: float = 0.03
    """Share of the memory."""
    cooldown_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class GuardrailState:
    """One check of one route, for people and metrics."""

    route: str
    """``*`` for all."""
    check: Check
    verdict: Verdict
    standing: Standing = Standing.WATCHING
    bar: float = 0.0
    requests: int = 0
    """Judged lately."""
    share: Interval | None = None
    """Of the bad ones among them; for `Check.GAIN` the gain, for `Check.MEMORY` the free share."""
    until: float | None = None
    """Unix seconds at which some requests try again."""
    trips: int = 0
    """Since the start."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What decisions of a route read while a check holds it."""

    reason: Reason
    tried_share: float
    """Share of requests that speculate nevertheless."""


Gains = Callable[[str, int | None], Interval | None]
"""As `tuner.baseline.Baseline.route_gain`."""


class _Outcomes:
    """Whether the latest requests were bad."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, bool]] = deque(maxlen=_LATELY_REQUESTS)

    def add(self, now: float, bad: bool) -> None:
        self._seen.append((now, bad))

    def clear(self) -> None:
        self._seen.clear()

    def count(self, now: float) -> tuple[int, int]:
        """(bad, all)."""
        while self._seen and self._seen[0][0] < now - self._seconds:
            self._seen.popleft()
        return sum(bad for _, bad in self._seen), len(self._seen)


class _Watch:
    """One check of one route."""

    def __init__(self, route: str, check: Check, bar: float, cooldown: float) -> None:
        self.state = GuardrailState(route, check, Verdict.NO_TRAFFIC, bar=bar)
        self.speculating = _Outcomes(_LATELY_SECONDS)
        self.plain = _Outcomes(_PLAIN_SECONDS)
        self._first_cooldown = self._cooldown = cooldown
        self.since = 0.0
        """When its standing last changed, on the monotonic clock."""
        self.since_stretch = 0
        """The first whole stretch of time after that."""

    def add(self, stats: RequestStats, bad: bool, now: float) -> None:
        """Count a request that has ended."""
        decision = stats.decision
        if decision.drafter == PLAIN:
            self.plain.add(now, bad)
        elif self.state.standing is Standing.WATCHING:
            self.speculating.add(now, bad)
        elif self.state.standing is Standing.TRYING and now - _age(stats) >= self.since:
            # Those that are older were held plain in between.
            self.speculating.add(now, bad)

    def shares(self, now: float) -> Verdict:
        """The verdict over requests."""
        bad, count = self.speculating.count(now)
        share = interval(bad, count) if count else None
        verdict = self._verdict(bad, count, now)
        self.state = replace(self.state, verdict=verdict, requests=count, share=share)
        return verdict

    def _verdict(self, bad: int, count: int, now: float) -> Verdict:
        bar = self.state.bar
        if not count:
            return Verdict.NO_TRAFFIC
        if chance_above_bar(bad, count, bar) < _FAILED_CHANCE:
            plain_bad, plain_count = self.plain.count(now)
            if plain_count < _LEAST_REQUESTS or chance_above_other(bad, count, plain_bad, plain_count) < _WORSE_CHANCE:
                return Verdict.FAILED
            return Verdict.INCONCLUSIVE
        return Verdict.SUCCESS if interval(bad, count).high <= bar else Verdict.INCONCLUSIVE

    def move(self, verdict: Verdict, now: float, unix: float) -> bool:
        """Whether the standing changed."""
        standing, waited = self.state.standing, now - self.since
        if standing is Standing.TRIPPED:
            if waited < self._cooldown:
                return False
            self._stand(Standing.TRYING, now, None)
        elif verdict is Verdict.FAILED:
            if standing is Standing.TRYING:
                self._cooldown = min(2 * self._cooldown, _LONGEST_COOLDOWN * self._first_cooldown)
            self.state = replace(self.state, trips=self.state.trips + 1)
            self._stand(Standing.TRIPPED, now, unix + self._cooldown)
        elif standing is Standing.TRYING and self._passed(verdict, waited):
            self._cooldown = self._first_cooldown
            self._stand(Standing.WATCHING, now, None)
        else:
            return False
        return True

    def _passed(self, verdict: Verdict, waited: float) -> bool:
        if verdict is Verdict.INCONCLUSIVE:
            return self.state.requests >= _LEAST_REQUESTS and waited >= self._first_cooldown
        return verdict is Verdict.SUCCESS

    def _stand(self, standing: Standing, now: float, until: float | None) -> None:
        self.state = replace(self.state, standing=standing, until=until)
        self.since = now
        self.speculating.clear()


class Guardrails:
    """Not thread-safe."""

    def __init__(self, options: GuardrailOptions) -> None:
        self._options = options
        self._watches: dict[str, dict[Check, _Watch]] = {}
        self._memory = _Watch(ANY, Check.MEMORY, options.least_free_memory, options.cooldown_seconds)
        self._everything = _Watch(ANY, Check.GAIN, options.least_gain, options.cooldown_seconds)
        self._low = 0
        """Readings of the memory in a row that were too low."""
        self.guards: Mapping[str, Guard] = {}
        """What holds a route, by route; ``*`` holds all. Replaced, never edited."""

    @property
    def states(self) -> tuple[GuardrailState, ...]:
        """Every check, by route."""
        if not self._options.enabled:
            return ()
        routes = (watch.state for _, watches in sorted(self._watches.items()) for watch in watches.values())
        return (*routes, self._everything.state, self._memory.state)

    @property
    def shut(self) -> frozenset[str]:
        """Routes on which running requests have to stop speculating; ``*`` for all."""
        return frozenset(route for route, guard in self.guards.items() if guard.tried_share == 0.0)

    def fold_request(self, stats: RequestStats, speedup: float | None, now: float) -> None:
        """Count a request that has ended at `now`, on the monotonic clock.

        `speedup` is what plain would have taken for its tokens at the loads that it met, over what they took; None
        where that is not known. What an operator pinned, or a client cancelled, is not judged.
        """
        if stats.decision.reason is Reason.PINNED or stats.finish is FinishReason.CANCELLED:
            return
        watches = self._of(stats.decision.context.route)
        if watches is None:
            return
        watches[Check.ERRORS].add(stats, stats.finish is FinishReason.ERROR, now)
        if stats.finish is FinishReason.ERROR:
            return
        objective = self._options.objectives.get(stats.decision.context.route, Objective())
        tpot = stats.tpot_seconds
        if tpot is not None:
            watches[Check.GAIN].add(stats, bad=False, now=now)
            self._everything.add(stats, bad=False, now=now)
            if objective.tpot_p95_seconds is not None:
                plain_too = speedup is not None and tpot * speedup > objective.tpot_p95_seconds
                watches[Check.LATENCY].add(stats, tpot > objective.tpot_p95_seconds and not plain_too, now)
        if objective.ttft_p95_seconds is not None and stats.output_tokens:
            watches[Check.TTFT].add(stats, stats.ttft_seconds > objective.ttft_p95_seconds, now)
        if stats.valid is not None:
            watches[Check.VALIDITY].add(stats, not stats.valid, now)

    def fold_memory(self, free_share: float | None) -> None:
        """A reading of the memory that is left, as a share; None where it could not be read."""
        bar = self._options.least_free_memory
        self._low = self._low + 1 if free_share is not None and free_share < bar else 0
        verdict = Verdict.SUCCESS
        if free_share is None:
            verdict = Verdict.ERROR
        elif self._low:
            verdict = Verdict.FAILED if self._low >= _MEMORY_READINGS else Verdict.INCONCLUSIVE
        share = None if free_share is None else Interval(free_share, free_share, free_share)
        self._memory.state = replace(self._memory.state, verdict=verdict, share=share)

    def judge(self, gain: Gains, stretch: int, now: float, unix: float) -> list[GuardrailState]:
        """The checks whose standing changed.

        Args:
            gain: the measured gain of a route since a stretch of time, or of late; None while it is unknown.
            stretch: the stretch of time that goes on now.
            now: the monotonic clock.
            unix: Unix seconds, for people.
        """
        if not self._options.enabled:
            return []
        moved = []
        for watch in (*(watch for watches in self._watches.values() for watch in watches.values()), *self._of_all):
            match watch.state.check:
                case Check.MEMORY:
                    verdict = watch.state.verdict
                case Check.GAIN:
                    verdict = self._gain(watch, gain, now)
                case _:
                    verdict = watch.shares(now)
            if watch.move(verdict, now, unix):
                watch.since_stretch = stretch + 1
                moved.append(watch.state)
        if moved:
            self.guards = self._held()
        return moved

    @property
    def _of_all(self) -> tuple[_Watch, ...]:
        return self._everything, self._memory

    def _gain(self, watch: _Watch, gain: Gains, now: float) -> Verdict:
        requests = watch.speculating.count(now)[1]
        route = watch.state.route
        measured = (
            gain(route, watch.since_stretch if watch.state.standing is Standing.TRYING else None) if requests else None
        )
        bar = watch.state.bar
        if not requests:
            verdict = Verdict.NO_TRAFFIC
        elif measured is None:
            verdict = Verdict.INCONCLUSIVE
        elif measured.estimate * (measured.high / measured.estimate) ** _STRICTER < bar:
            verdict = Verdict.FAILED
        else:
            verdict = Verdict.SUCCESS if measured.low >= bar else Verdict.INCONCLUSIVE
        watch.state = replace(watch.state, verdict=verdict, requests=requests, share=measured)
        return verdict

    def _held(self) -> dict[str, Guard]:
        found: dict[str, Guard] = {}
        routes = ((route, tuple(watches.values())) for route, watches in self._watches.items())
        for route, watches in ((ANY, self._of_all), *routes):
            held = [watch.state for watch in watches if watch.state.standing is not Standing.WATCHING]
            if held:
                tripped = [state for state in held if state.standing is Standing.TRIPPED]
                found[route] = Guard(REASONS[(tripped or held)[0].check], 0.0 if tripped else TRIED_SHARE)
        return found

    def _of(self, route: str) -> dict[Check, _Watch] | None:
        if not self._options.enabled or (route not in self._watches and len(self._watches) >= _ROUTES):
            return None
        if route not in self._watches:
            options = self._options
            bars = {
                Check.LATENCY: BEYOND_PERCENTILE,
                Check.GAIN: options.least_route_gain,
                Check.TTFT: BEYOND_PERCENTILE,
                Check.ERRORS: options.max_error_share,
                Check.VALIDITY: options.max_invalid_share,
            }
            self._watches[route] = {
                check: _Watch(route, check, bar, options.cooldown_seconds) for check, bar in bars.items()
            }
        return self._watches[route]


def guard_of(guards: Mapping[str, Guard], route: str) -> Guard | None:
    """What holds `route`; what holds everything comes first."""
    return guards.get(ANY) or guards.get(route)


def _age(stats: RequestStats) -> float:
    """Seconds since the request came, when it ends."""
    return stats.ttft_seconds + stats.decode_seconds

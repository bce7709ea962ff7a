"""What plain decoding costs, measured, and what each context gained over it.

In a cycle of a plain window every sequence emits one token, whatever its context, so plain cycle seconds are pooled
over contexts by load, with a slope for the context tokens (KV). The gain of a context is then, over its own
sequence-cycles in served windows,

    speedup = sum of emitted * plain_seconds(load, kv_tokens)  /  sum of cycle_seconds

the TPOT that plain would have had over the TPOT as served: a ratio of sums, never a mean of ratios. It is at equal
load, not at equal arrivals: a faster engine also has fewer sequences running.

Requests share cycles, and cycles next to each other are slow or fast together, so neither are independent. The
clusters of every interval here are stretches of time: a plain window with the served cycles after it, or served cycles
alone where windows are rare. What makes the machine slow makes it slow for both parts of a stretch, and what one
request does is counted in one, so stretches are nearly independent where cycles, requests and single windows are not.
Older stretches are joined, two and two, which keeps memory bounded and the joined ones still more independent (batch
means, Schmeiser 1982); the oldest are forgotten.

Requests that loop are counted and left out of every gain and total: a loop flatters n-gram drafting.
"""

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from policies.ladder import ANY
from policies.stats import CycleStats, RequestStats
from policies.types import Decision, Interval, Reason
from tuner.jackknife import freedom, ratio_interval, variance, welch
from tuner.plain_seconds import ROUNDING, PlainSeconds, PlainSums, ServedSums, plain_seconds
from tuner.snapshot import Throughput

Era = tuple[str, str, str, bool]
"""(route, language, drafter, forced): what operators chose is not mixed with `LEARNED`, which stands for whatever was
learned or tried: that may be another drafter with the load and the request."""

LEARNED = "*"
_LEARNED_REASONS = (Reason.LEARNED, Reason.EXPLORE, Reason.CANARY, Reason.SHORT_OUTPUT)

_STRETCH_CYCLES = 500
"""A stretch of time ends after so many cycles, or where a plain window begins."""
_ALIKE = 8
"""Clusters of the same length that are kept; when there is one more, the oldest two are joined."""
_LONGEST = 64
"""Stretches in a cluster; of these the oldest are forgotten."""
_ERAS = 512
"""In one cluster; those that come when it is full have no measured gain there."""
_IN_FLIGHT = 4096
_GAIN_REQUESTS = 4
_RECENT = 12
"""Clusters with plain windows that make up the latest time."""
_UNMEASURED_ERROR = 0.2
_LATELY_REQUESTS = 200
"""A finished request's seconds count half, as to which loads are served, after this many later ones."""
_COVERED_SHARE = 0.5
"""At least this share of the served seconds must be at loads at which plain was measured."""


@dataclass(slots=True)
class _Part:
    """What a request did within a stretch of time."""

    served: dict[int, ServedSums] = field(default_factory=dict)
    """By load."""
    served_tokens: int = 0
    served_seconds: float = 0.0
    """A cycle's seconds are divided among its sequences, here and in `plain_seconds`."""
    plain_tokens: int = 0
    plain_seconds: float = 0.0


@dataclass(slots=True)
class _Cluster:
    """A stretch of time, or several that followed each other."""

    first: int
    """Number of its first stretch."""
    stretches: int = 1
    plain: dict[int, PlainSums] = field(default_factory=dict)
    """By load."""
    eras: dict[Era, dict[int, ServedSums]] = field(default_factory=dict)
    everything: dict[int, ServedSums] = field(default_factory=dict)
    """Of all eras together."""

    def join(self, later: "_Cluster") -> None:
        self.stretches += later.stretches
        for load, sums in later.plain.items():
            self.plain.setdefault(load, PlainSums()).add(sums)
        for era, served in later.eras.items():
            self._add_era(era, served)
        _add(self.everything, later.everything)

    def add(self, era: Era, served: Mapping[int, ServedSums]) -> None:
        self._add_era(era, served)
        _add(self.everything, served)

    def _add_era(self, era: Era, served: Mapping[int, ServedSums]) -> None:
        if era in self.eras or len(self.eras) < _ERAS:
            _add(self.eras.setdefault(era, {}), served)


@dataclass(frozen=True, slots=True)
class Gain:
    """The measured gain of one context with one arm."""

    speedup: Interval | None
    """None while too little was measured."""
    requests: int
    looped: int


class Baseline:
    """Folds cycles and finished requests; not thread-safe."""

    def __init__(self) -> None:
        self._clusters: list[_Cluster] = []
        """In order of time."""
        self._joined = 0
        self._plain = plain_seconds({}, 0)
        self._lately = (0, 0, 0), self._plain
        """Plain from a stretch on until another, for routes whose gain is asked for the same time."""
        self._stretch = 0
        self._stretch_cycles = 0
        self._window_id = 0
        self._in_flight: dict[int, dict[int, _Part]] = {}
        """By request and stretch of time."""
        self._requests: dict[Era, int] = {}
        self._looped: dict[Era, int] = {}
        self._served_seconds: dict[int, float] = {}
        self._throughput = Throughput()
        self._busy_seconds = 0.0
        self._shadow_seconds = 0.0
        self.looped = 0
        """Finished requests that looped."""

    @property
    def throughput(self) -> Throughput:
        """Tokens and seconds of the requests that have finished. A cycle's seconds are divided among its sequences."""
        return self._throughput

    @property
    def shadow_share(self) -> float | None:
        """Share of the busy seconds that shadows took, copied proposals that were not taken included; None before the
        first cycle."""
        return self._shadow_seconds / self._busy_seconds if self._busy_seconds else None

    def fold_cycle(self, stats: CycleStats) -> None:
        """Count a cycle. The first after a switch, and killed ones, belong to neither side."""
        self._busy_seconds += stats.cycle_seconds
        self._shadow_seconds += stats.shadow_seconds + stats.copying_seconds
        if stats.load == 0 or stats.killed or stats.first_after_switch or stats.cycle_seconds <= 0.0:
            return
        load, seconds, kv_tokens, plain = stats.load, stats.cycle_seconds, stats.kv_tokens, stats.window.plain
        opens = plain and stats.window.window_id != self._window_id
        self._window_id = stats.window.window_id
        if opens or self._stretch_cycles >= _STRETCH_CYCLES:
            self._stretch += 1
            self._stretch_cycles = 0
        self._stretch_cycles += 1
        if plain:
            if stats.tokens != load:
                return
            cluster = self._cluster(self._stretch)
            if cluster is not None:
                cluster.plain.setdefault(load, PlainSums()).count(kv_tokens, seconds)
        share = seconds / load
        for sequence in stats.sequences:
            parts = self._in_flight.get(sequence.request_key)
            if parts is None:
                parts = self._in_flight[sequence.request_key] = {}
                if len(self._in_flight) > _IN_FLIGHT:
                    # Their ends were lost with dropped telemetry.
                    del self._in_flight[next(iter(self._in_flight))]
            part = parts.get(self._stretch)
            if part is None:
                part = parts[self._stretch] = _Part()
            emitted = sequence.emitted
            if plain:
                part.plain_tokens += emitted
                part.plain_seconds += share
            else:
                part.served_tokens += emitted
                part.served_seconds += share
                sums = part.served.get(load)
                if sums is None:
                    sums = part.served[load] = ServedSums()
                sums.tokens += emitted
                sums.weighted_kv += emitted * kv_tokens
                sums.seconds += seconds

    def fold_request(self, stats: RequestStats) -> float | None:
        """Move a finished request to its context, unless it looped.

        Returns what plain would have taken for its tokens, at the loads and contexts that it met, over what they took;
        None where that is not known.
        """
        parts = self._in_flight.pop(stats.request_key, None)
        era = _era(stats.decision)
        if stats.looped:
            self.looped += 1
            _count(self._looped, era)
            return None
        _count(self._requests, era)
        if parts is None:
            return None
        for load in self._served_seconds:
            self._served_seconds[load] *= 0.5 ** (1.0 / _LATELY_REQUESTS)
        # A request is counted whole where it mostly was: one that reached into several clusters would make them alike.
        cluster = self._cluster(max(parts, key=lambda stretch: parts[stretch].served_seconds))
        for part in parts.values():
            self._count_tokens(part)
            for load, sums in part.served.items():
                self._served_seconds[load] = self._served_seconds.get(load, 0.0) + sums.seconds
            if cluster is not None and part.served:
                cluster.add(era, part.served)
        return self._speedup_of(parts.values())

    def plain_seconds(self) -> PlainSeconds:
        """Plain cycle seconds by load, over the windows that are kept; only loads measured often enough."""
        self._plain = plain_seconds({cluster.first: cluster.plain for cluster in self._clusters}, self._joined)
        return self._plain

    def relative_error(self, plain: PlainSeconds) -> float | None:
        """Relative standard error of the baseline over the loads served of late; None before any was measured.

        A load that is served and not measured counts as if it were known to within `_UNMEASURED_ERROR`.
        """
        served = sum(self._served_seconds.values())
        if not plain.cells or served <= 0.0:
            return None
        variance = 0.0
        unmeasured = 0.0
        for load, seconds in self._served_seconds.items():
            if load in plain.cells:
                variance += (seconds / served * plain.cells[load].relative_error) ** 2
            else:
                unmeasured += seconds / served
        return math.sqrt(variance + (unmeasured * _UNMEASURED_ERROR) ** 2)

    def gain(self, era: Era, plain: PlainSeconds) -> Gain:
        """The measured gain of a context with an arm, at equal load."""
        requests = self._requests.get(era, 0)
        speedup = None
        if requests >= _GAIN_REQUESTS:
            own = {cluster.first: cluster.eras[era] for cluster in self._clusters if era in cluster.eras}
            speedup = _speedup(own, self._of_these_clusters(plain))
        return Gain(speedup, requests, self._looped.get(era, 0))

    def forget(self, route: str, language: str) -> None:
        """A context is not what it was: its gain so far says nothing of what it gains from now on."""
        for cluster in self._clusters:
            for era in [era for era in cluster.eras if era[:2] == (route, language)]:
                del cluster.eras[era]

    def engine_gain(self, plain: PlainSeconds) -> Interval | None:
        """The measured gain of all that is served, at equal load; None while too little was measured."""
        own = {cluster.first: cluster.everything for cluster in self._clusters}
        return _speedup(own, self._of_these_clusters(plain))

    @property
    def stretch(self) -> int:
        """The number of the stretch of time that goes on now."""
        return self._stretch

    def route_gain(self, route: str, since: int | None = None) -> Interval | None:
        """The measured gain of what was learned for a route (``*``: for all), since a stretch of time, or of late.

        Of late is since so long that plain was measured in enough stretches. Plain is measured in the same ones, for a
        machine may have changed.
        """
        newest: list[_Cluster] = []
        plain = 0
        for cluster in reversed(self._clusters):
            if cluster.first < (since or 0) or (since is None and plain >= _RECENT):
                break
            plain += bool(cluster.plain)
            newest.append(cluster)
        own: dict[int, dict[int, ServedSums]] = {}
        for cluster in newest:
            for (name, _, drafter, _), served in cluster.eras.items():
                if route in (name, ANY) and drafter == LEARNED:
                    _add(own.setdefault(cluster.first, {}), served)
        if not own:
            return None
        period = newest[-1].first, self._stretch, self._joined
        if period != self._lately[0]:
            measured = plain_seconds({cluster.first: cluster.plain for cluster in newest}, self._joined)
            self._lately = period, measured
        return _speedup(own, self._lately[1])

    def _speedup_of(self, parts: Iterable[_Part]) -> float | None:
        line = self._plain.line
        above = below = 0.0
        for part in parts:
            for load, sums in part.served.items():
                if load not in line.at_no_kv:
                    return None
                above += line.total(load, sums)
                below += sums.seconds
        return above / below if below > 0.0 else None

    def _of_these_clusters(self, plain: PlainSeconds) -> PlainSeconds:
        """`plain`, or what is measured now if clusters were joined since it was made."""
        if plain.joined == self._joined:
            return plain
        return self._plain if self._plain.joined == self._joined else self.plain_seconds()

    def _count_tokens(self, part: _Part) -> None:
        total = self._throughput
        self._throughput = Throughput(
            total.tuned_tokens + part.served_tokens,
            total.tuned_seconds + part.served_seconds,
            total.plain_tokens + part.plain_tokens,
            total.plain_seconds + part.plain_seconds,
        )

    def _cluster(self, stretch: int) -> _Cluster | None:
        """The cluster of a stretch of time; None if it was forgotten."""
        if not self._clusters or stretch >= self._clusters[-1].first + self._clusters[-1].stretches:
            self._clusters.append(_Cluster(stretch))
            self._join()
        place = bisect.bisect_right(self._clusters, stretch, key=lambda cluster: cluster.first) - 1
        return self._clusters[place] if place >= 0 else None

    def _join(self) -> None:
        """Clusters get longer towards the past, like the digits of a number that counts the stretches."""
        length = 1
        while True:
            alike = [place for place, cluster in enumerate(self._clusters) if cluster.stretches == length]
            if len(alike) <= _ALIKE:
                return
            self._joined += 1
            if length == _LONGEST:
                del self._clusters[alike[0]]
                return
            later = self._clusters.pop(alike[1])
            self._clusters[alike[0]].join(later)
            length *= 2


def _speedup(own: Mapping[int, Mapping[int, ServedSums]], plain: PlainSeconds) -> Interval | None:
    """The gain over what is served in `own`, by cluster and load."""
    total: dict[int, ServedSums] = {}
    for served in own.values():
        _add(total, served)
    covered = {load: sums for load, sums in total.items() if load in plain.cells}
    seconds = sum(sums.seconds for sums in covered.values())
    if seconds <= _COVERED_SHARE * sum(sums.seconds for sums in total.values()):
        return None
    by_load = {load: plain.line.total(load, sums) for load, sums in covered.items()}
    numerator = sum(by_load.values())
    estimate = numerator / seconds
    both, served_only, plain_only, weights = [], [], [], []
    for key in own.keys() | plain.without.keys():
        line = plain.without.get(key, plain.line)
        mine = own.get(key, {})
        rest = {load: sums.less(mine[load]) if load in mine else sums for load, sums in covered.items()}
        left = sum(sums.seconds for sums in rest.values())
        above = sum(line.total(load, sums) for load, sums in rest.items())
        above_served = sum(plain.line.total(load, sums) for load, sums in rest.items())
        above_plain = sum(line.total(load, sums) for load, sums in covered.items())
        if left <= ROUNDING * seconds or min(numerator, above, above_served, above_plain) <= 0.0:
            # One stretch is all there is, or a slope from few windows says that plain takes no time.
            return None
        both.append(above / left)
        served_only.append(above_served / left)
        plain_only.append(above_plain / seconds)
        weights.append(seconds - left)
    of_both = welch(
        (variance(estimate, served_only), variance(estimate, plain_only)),
        (freedom(weights), plain.freedom({load: value / numerator for load, value in by_load.items()})),
    )
    return ratio_interval(estimate, both, of_both)


def _add(to: dict[int, ServedSums], more: Mapping[int, ServedSums]) -> None:
    for load, sums in more.items():
        known = to.get(load)
        if known is None:
            known = to[load] = ServedSums()
        known.add(sums)


def _era(decision: Decision) -> Era:
    context = decision.context
    if decision.reason in _LEARNED_REASONS:
        return context.route, context.language, LEARNED, False
    return context.route, context.language, decision.drafter, decision.forced


def _count(counts: dict[Era, int], era: Era) -> None:
    """One more, unless there is no room for another era."""
    if era in counts or len(counts) < _ERAS:
        counts[era] = counts.get(era, 0) + 1

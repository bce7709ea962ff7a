"""What plain decoding costs, measured, and what each context gained over it.

In a cycle of a plain window every sequence emits one token, whatever its context, so plain cycle seconds are pooled
over contexts by load, with a slope for the context tokens (KV). The gain of a context is then, over its own
sequence-cycles in served windows,

    speedup = sum of emitted * plain_seconds(load, kv_tokens)  /  sum of cycle_seconds

the TPOT that plain would have had over the TPOT as served: a ratio of sums, never a mean of ratios. It is at equal
load, not at equal arrivals: a faster engine also has fewer sequences running.

Requests share cycles, and cycles next to each other are slow or fast together, so neither are independent. The
clusters of every interval here are stretches of time: a plain window with the served window after it, or a few such
pairs. What makes the machine slow makes it slow for both halves of a pair, and what one request does stays within a
pair or two; so the pairs are nearly independent where cycles, requests and single windows are not. There are never
more than `_CLUSTERS`, since joined pairs depend still less on their neighbours (batch means, Schmeiser 1982), and a
gain is of the last `_CLUSTERS << _LONGEST` plain windows at most.

Requests that loop are counted and left out of every gain and total: a loop flatters n-gram drafting.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.stats import CycleStats, RequestStats
from policies.types import Interval
from tuner.jackknife import freedom, ratio_interval, variance, welch
from tuner.plain_seconds import ROUNDING, PlainSeconds, PlainSums, ServedSums, plain_seconds
from tuner.snapshot import Throughput

Era = tuple[str, str, str, bool]
"""(route, language, drafter, forced): gains of different arms are not mixed."""

_CLUSTERS = 32
_LONGEST = 2
"""A cluster has at most ``1 << _LONGEST`` pairs of windows."""
_ERAS = 512
"""In one cluster; those that come when it is full have no measured gain there."""
_IN_FLIGHT = 4096
_GAIN_REQUESTS = 4
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
    """A stretch of time."""

    plain: dict[int, PlainSums] = field(default_factory=dict)
    """By load."""
    eras: dict[Era, dict[int, ServedSums]] = field(default_factory=dict)
    everything: dict[int, ServedSums] = field(default_factory=dict)
    """Of all eras together."""

    def join(self, later: "_Cluster") -> None:
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
        self._clusters: dict[int, _Cluster] = {}
        """By the number of its first pair of windows, divided by the pairs in a cluster."""
        self._length = 0
        self._in_flight: dict[int, dict[int, _Part]] = {}
        """By request and pair of windows."""
        self._requests: dict[Era, int] = {}
        self._looped: dict[Era, int] = {}
        self._served_seconds: dict[int, float] = {}
        self._throughput = Throughput()
        self.looped = 0
        """Finished requests that looped."""

    @property
    def throughput(self) -> Throughput:
        """Tokens and seconds of the requests that have finished. A cycle's seconds are divided among its sequences."""
        return self._throughput

    def fold_cycle(self, stats: CycleStats) -> None:
        """Count a cycle. The first after a switch, and killed ones, belong to neither side."""
        if stats.load == 0 or stats.killed or stats.first_after_switch or stats.cycle_seconds <= 0.0:
            return
        load, seconds, kv_tokens, plain = stats.load, stats.cycle_seconds, stats.kv_tokens, stats.window.plain
        # A plain window has an even number, since the first window of all is served and has number 1.
        pair = stats.window.window_id >> 1
        if plain:
            if stats.tokens != load:
                return
            cluster = self._cluster(pair)
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
            part = parts.get(pair)
            if part is None:
                part = parts[pair] = _Part()
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

    def fold_request(self, stats: RequestStats) -> None:
        """Move a finished request to its context, unless it looped."""
        parts = self._in_flight.pop(stats.request_key, None)
        context = stats.decision.context
        era = (context.route, context.language, stats.decision.drafter, stats.decision.forced)
        if stats.looped:
            self.looped += 1
            _count(self._looped, era)
            return
        _count(self._requests, era)
        if parts is None:
            return
        for load in self._served_seconds:
            self._served_seconds[load] *= 0.5 ** (1.0 / _LATELY_REQUESTS)
        # A request is counted whole where it mostly was: one that reached into several clusters would make them alike.
        cluster = self._cluster(max(parts, key=lambda pair: parts[pair].served_seconds))
        for part in parts.values():
            self._count_tokens(part)
            for load, sums in part.served.items():
                self._served_seconds[load] = self._served_seconds.get(load, 0.0) + sums.seconds
            if cluster is not None and part.served:
                cluster.add(era, part.served)

    def plain_seconds(self) -> PlainSeconds:
        """Plain cycle seconds by load, over the windows that are kept; only loads measured often enough."""
        by_cluster = {key: cluster.plain for key, cluster in self._clusters.items()}
        return plain_seconds(by_cluster, self._length)

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
        if plain.length != self._length:
            plain = self.plain_seconds()
        requests = self._requests.get(era, 0)
        speedup = None
        if requests >= _GAIN_REQUESTS:
            own = {key: cluster.eras[era] for key, cluster in self._clusters.items() if era in cluster.eras}
            speedup = _speedup(own, plain)
        return Gain(speedup, requests, self._looped.get(era, 0))

    def engine_gain(self, plain: PlainSeconds) -> Interval | None:
        """The measured gain of all that is served, at equal load; None while too little was measured."""
        if plain.length != self._length:
            plain = self.plain_seconds()
        return _speedup({key: cluster.everything for key, cluster in self._clusters.items()}, plain)

    def _count_tokens(self, part: _Part) -> None:
        total = self._throughput
        self._throughput = Throughput(
            total.tuned_tokens + part.served_tokens,
            total.tuned_seconds + part.served_seconds,
            total.plain_tokens + part.plain_tokens,
            total.plain_seconds + part.plain_seconds,
        )

    def _cluster(self, pair: int) -> _Cluster | None:
        """The cluster of a pair of windows; None if it is so old that it was dropped."""
        key = pair >> self._length
        cluster = self._clusters.get(key)
        if cluster is None:
            if self._clusters and len(self._clusters) >= _CLUSTERS:
                if key < min(self._clusters):
                    return None
                if self._length < _LONGEST:
                    self._join_pairs()
                    return self._cluster(pair)
                del self._clusters[min(self._clusters)]
            cluster = self._clusters[key] = _Cluster()
        return cluster

    def _join_pairs(self) -> None:
        self._length += 1
        joined: dict[int, _Cluster] = {}
        for key in sorted(self._clusters):
            joined.setdefault(key >> 1, _Cluster()).join(self._clusters[key])
        self._clusters = joined


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
        to.setdefault(load, ServedSums()).add(sums)


def _count(counts: dict[Era, int], era: Era) -> None:
    """One more, unless there is no room for another era."""
    if era in counts or len(counts) < _ERAS:
        counts[era] = counts.get(era, 0) + 1

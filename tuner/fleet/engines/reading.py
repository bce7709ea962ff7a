"""What an engine's page of metrics tells, in one form for all engines, and what lies between two such readings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.fleet.engines.counters import Counter, began_again, increase, increases_by, read_counter
from tuner.fleet.engines.exposition import Exposition, Labels, read_exposition
from tuner.fleet.engines.metric_names import NAMES, PROCESS_START, MetricNames, engine_of_page, wanted
from tuner.fleet.types import EngineKind

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels of SGLang's gauges for the processes that one engine is split over; ``dp_rank`` is an engine of its own."""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One page of metrics. None and empty: the page tells nothing of it, which is not zero."""

    engine: EngineKind
    taken_at: float
    """Unix seconds."""
    process: str = ""
    """Equal in two readings of one process; empty where nobody tells."""
    models: tuple[str, ...] = ()
    """The label ``model_name``."""
    running: float | None = None
    """Requests, summed over the engines behind the page; so is `waiting`."""
    waiting: float | None = None
    kv_share: float | None = None
    """0..1, of the fullest engine."""
    accept_length: float | None = None
    """SGLang alone: tokens a cycle with the bonus token, over its last log interval."""
    drafts_per_cycle: float | None = None
    """SGLang alone: the tokens that a cycle proposes by its setting."""
    diffusion: bool = False
    """The model denoises: what vLLM counts as drafts for it is something else, and is not read."""
    cycles: Counter = field(default_factory=dict)
    drafted: Counter = field(default_factory=dict)
    accepted: Counter = field(default_factory=dict)
    by_position: Counter = field(default_factory=dict)
    output_tokens: Counter = field(default_factory=dict)
    ttft: "Histogram | None" = None
    tpot: "Histogram | None" = None
    malformed: int = 0
    """Lines that should tell something of the above and cannot be read."""

    @property
    def counters(self) -> tuple[Counter, ...]:
        return (self.cycles, self.drafted, self.accepted, self.output_tokens)

    @property
    def speculates(self) -> bool | None:
        """Whether the engine was launched with a drafter; None where its page does not tell.

        vLLM has the counters only then; llama.cpp has them always, and they say something once they have moved.
        """
        if self.diffusion:
            return False
        if self.engine is EngineKind.VLLM:
            return bool(self.cycles) if self.output_tokens else None
        return True if any(one.value > 0 for one in self.cycles.values()) else None

    @property
    def block_length(self) -> int | None:
        """The longest block that the engine was launched with; None where its page does not tell."""
        if self.engine is EngineKind.VLLM and self.by_position:
            return len({dict(labels).get("position") for labels in self.by_position})
        return None


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram as its page has it."""

    buckets: Counter
    seconds: Counter
    count: Counter


@dataclass(frozen=True, slots=True)
class Spread:
    """Durations between two readings."""

    at_most: Mapping[float, float]
    """How many were at most so many seconds, by the bounds of the histogram; not one by one but cumulated."""
    seconds: float
    """Their sum."""
    count: float

    @property
    def mean(self) -> float | None:
        return self.seconds / self.count if self.count > 0 else None


def read_page(text: str, taken_at: float, *, process: str = "") -> EngineReading:
    """The page `text`, whose engine is known by the names on it.

    Args:
        taken_at: Unix seconds.
        process: what else tells one process from the next, where the page does not: llama.cpp answers with a header
            ``Process-Start-Time-Unix``.
    """
    engine = engine_of_page(text)
    names = NAMES.get(engine)
    if names is None:
        return EngineReading(engine, taken_at, process)
    page = read_exposition(text, wanted(names))
    started = page.of(PROCESS_START).get(())
    diffusion = names.diffusion is not None and bool(page.of(names.diffusion))
    drafts = None if diffusion else names
    return EngineReading(
        engine,
        taken_at,
        process if started is None else repr(started),
        _models(page),
        _sum(page, names.running),
        _sum(page, names.waiting),
        max(_engines(page, names.kv_share), default=None) if names.kv_share else None,
        _mean(page, names.accept_length),
        _drafts_per_cycle(page, names),
        diffusion,
        _counter(page, drafts.cycles if drafts else None),
        _counter(page, drafts.drafted if drafts else None),
        _counter(page, drafts.accepted if drafts else None),
        _counter(page, drafts.by_position if drafts else None),
        read_counter(page, names.output_tokens),
        _histogram(page, names.ttft),
        _histogram(page, names.tpot),
        page.malformed,
    )


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """What an engine did between two readings. None: nobody tells, which is not zero."""

    seconds: float
    restarted: bool
    """Something began again in between; what was counted before that is lost."""
    cycles: float | None
    drafted: float | None
    accepted: float | None
    """Without bonus tokens, never above `drafted`: where an engine's counts contradict each other both are None."""
    by_position: tuple[float, ...]
    """How often the draft at each position was accepted. A position's drafts are not told, so that with block lengths
    that change their share of the cycles is lower than the survival."""
    output_tokens: float | None
    ttft: Spread | None
    tpot: Spread | None

    @property
    def drafting(self) -> bool | None:
        """False: tokens came and none of them by drafts, as with a block length of 0. None: nothing was to be seen."""
        if self.cycles is None:
            return None
        if self.cycles > 0:
            return True
        return False if self.output_tokens else None

    @property
    def acceptance(self) -> float | None:
        """Accepted of drafted, 0..1; None where nothing was drafted: off is not an acceptance of 0."""
        if self.accepted is None or not self.drafted:
            return None
        return self.accepted / self.drafted

    @property
    def emitted_per_cycle(self) -> float | None:
        """Tokens of a cycle with the target's own one, before ends cut any; None where there were no cycles."""
        if self.accepted is None or not self.cycles:
            return None
        return 1.0 + self.accepted / self.cycles


def difference(before: EngineReading, after: EngineReading, *, full_blocks: bool = False) -> EngineDelta | None:
    """What happened between two readings of one upstream; None if another engine answers there now, or an unknown one.

    Args:
        full_blocks: every cycle proposes `EngineReading.drafts_per_cycle` tokens. Only who knows the launch settings
            can say so: with it SGLang's drafted tokens can be told, which it does not count.
    """
    names = NAMES.get(after.engine)
    if names is None or before.engine is not after.engine:
        return None
    moved = bool(before.process and after.process) and before.process != after.process
    restarted = moved or began_again(before.counters, after.counters)
    cycles = increase(before.cycles, after.cycles, restarted=moved)
    if names.accept_length is None:
        drafted = increase(before.drafted, after.drafted, restarted=moved)
        accepted = increase(before.accepted, after.accepted, restarted=moved)
    else:
        drafted, accepted = _weighed(before, after, cycles, full_blocks=full_blocks)
    if drafted is not None and accepted is not None and accepted > drafted:
        drafted = accepted = None
    positions = increases_by("position", before.by_position, after.by_position, restarted=moved)
    return EngineDelta(
        after.taken_at - before.taken_at,
        restarted,
        cycles,
        drafted,
        accepted,
        tuple(positions[one] for one in sorted((key for key in positions if key.isdecimal()), key=int)),
        increase(before.output_tokens, after.output_tokens, restarted=moved),
        _spread(before.ttft, after.ttft, restarted=moved),
        _spread(before.tpot, after.tpot, restarted=moved),
    )


def is_another_server(before: EngineReading, after: EngineReading) -> bool:
    """Whether `after` is of a server that began before the one of `before`: then both answer at one URL in turn.

    A restart begins later. What can be told only by lower values passes for one.
    """
    return any(
        was.created is not None and (now := new[labels].created) is not None and now < was.created
        for old, new in zip(before.counters, after.counters, strict=True)
        for labels, was in old.items()
        if labels in new
    )


def _weighed(
    before: EngineReading, after: EngineReading, cycles: float | None, *, full_blocks: bool
) -> tuple[float | None, float | None]:
    """Drafted and accepted tokens of an engine that tells a mean of its last interval: weighed by the cycles since.

    Over many readings each mean gets the weight of the cycles that it stands next to; differencing two means would
    tell nothing.
    """
    if cycles is None:
        return None, None
    length, block = after.accept_length, after.drafts_per_cycle
    accepted = 0.0 if cycles == 0 else None
    if cycles > 0 and length is not None and length >= 1.0:
        accepted = cycles * (length - 1.0)
    drafted = cycles * block if full_blocks and block is not None and before.drafts_per_cycle == block else None
    return drafted, accepted


def _counter(page: Exposition, name: str | None) -> Counter:
    return {} if name is None else read_counter(page, name)


def _histogram(page: Exposition, name: str | None) -> Histogram | None:
    if name is None or not page.of(f"{name}_count"):
        return None
    buckets, seconds, count = (read_counter(page, f"{name}_{part}") for part in ("bucket", "sum", "count"))
    return Histogram(buckets, seconds, count)


def _spread(before: Histogram | None, after: Histogram | None, *, restarted: bool) -> Spread | None:
    if after is None:
        return None
    was = before or Histogram({}, {}, {})
    bounds = increases_by("le", was.buckets, after.buckets, restarted=restarted)
    return Spread(
        dict(sorted((bound, bounds[text]) for text in bounds if (bound := _bound(text)) is not None)),
        increase(was.seconds, after.seconds, restarted=restarted) or 0.0,
        increase(was.count, after.count, restarted=restarted) or 0.0,
    )


def _bound(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _models(page: Exposition) -> tuple[str, ...]:
    return tuple(
        sorted(
            {
                value
                for series in page.samples.values()
                for labels in series
                for name, value in labels
                if name == "model_name"
            }
        )
    )


def _sum(page: Exposition, name: str) -> float | None:
    """Over the engines behind the page."""
    found = _engines(page, name)
    return sum(found) if found else None


def _mean(page: Exposition, name: str | None) -> float | None:
    found = _engines(page, name) if name else []
    return sum(found) / len(found) if found else None


def _engines(page: Exposition, name: str) -> list[float]:
    """A gauge of each engine. The ranks of one engine tell the same of it each by itself, and drafters are none."""
    found: dict[Labels, float] = {}
    for labels, value in page.of(name).items():
        if ("engine_type", "draft") not in labels:
            engine = tuple(one for one in labels if one[0] not in _RANKS)
            found[engine] = max(value, found.get(engine, value))
    return list(found.values())


def _drafts_per_cycle(page: Exposition, names: MetricNames) -> float | None:
    found = _mean(page, names.drafts_per_cycle)
    return None if found is None or found < 1.0 else found - 1.0

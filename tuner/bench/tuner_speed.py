"""What the tuner itself takes: decisions, the plan and the allocation of a cycle, folding telemetry, and memory.

Nothing is served: cycles are made up, with three drafters, of which one is learned, and costs that grow with tokens.
"""

import itertools
import math
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table

from policies.allocate import Candidate, allocate
from policies.cycle_policy import CyclePolicy, DraftCost, Outlook, PassCost, Window
from policies.plan import NO_PRICES, Prospect, plan
from policies.stats import BlockEnd, CycleStats, DraftTiming, EngineInfo, SequenceStats
from policies.types import PLAIN, Context, Interval, RequestFeatures, SamplingClass
from tuner.bench.options import BenchOptions
from tuner.bench.report import Bar, Report, interval_row, interval_text
from tuner.cli.output import print_table
from tuner.controller import Controller, ControllerOptions
from tuner.paired import percentile
from tuner.settings import Settings

CONTEXTS = 200
LANGUAGES = ("code", "en", "de", "fr", "da")
LOADS = (1, 2, 4, 8, 16, 32)
ROUTE_NAMES = 10_000
SEQUENCES = 8
"""Of each cycle that is folded."""
MEDIAN_BAR = 20.0
P99_BAR = 100.0
POLICY_BAR = 50.0
FOLD_BAR = 5000.0
MEMORY_BAR = 64.0
"""MiB that a controller may hold after all names of routes."""
_SOME_NAMES = 2000
_CAP = 12

COST = PassCost(
    (1, 4, 9, 16, 24, 48, 72, 144, 272),
    (0.0088, 0.0092, 0.00985, 0.0128, 0.0160, 0.0255, 0.0345, 0.0600, 0.1050),
    0.00015,
    7e-7,
)
"""Of two cores, as `tuner/replay/scenarios.yaml` has them."""
DRAFTING = {
    "ngram": DraftCost(1e-5, 2e-5, 0.0, 1e-6),
    "suffix": DraftCost(1e-5, 4e-5, 0.0, 4e-6),
    "learned": DraftCost(1e-4, 5e-5, 4.5e-4, 3e-5),
}
_FEATURES = RequestFeatures(SamplingClass.GREEDY, structured=False, prompt_tokens=200, max_tokens=256)


async def run_tuner_speed(settings: Settings, options: BenchOptions, console: Console) -> tuple[None, Report]:
    """Measure in this process; the engine is not started and `settings` are not read."""
    chance = random.Random(0)
    rounds = 40 * options.repeats
    bars: list[Bar] = []
    controller = _Served(chance)
    contexts = [Context("bench", f"route-{index}", language) for index, language in _keys()]
    console.log(f"teaching {len(contexts)} contexts")
    controller.serve(contexts, cycles=4 * CONTEXTS)
    decide = controller.controller.decide
    decisions = [_seconds(partial(decide, context, _FEATURES)) for _ in range(rounds) for context in contexts]
    bars += [
        Bar("a decision, median microseconds", _micro(quantile(decisions, 0.5)), MEDIAN_BAR, at_least=False),
        Bar("a decision, p99 microseconds", _micro(quantile(decisions, 0.99)), P99_BAR, at_least=False),
    ]
    console.log("folding cycles")
    folded = controller.fold_seconds(contexts, cycles=1000 * options.repeats)
    rates = Interval(*(1.0 / value for value in _ordered(quantile(folded, 0.5))))
    mean = len(folded) / sum(folded)
    bars.append(Bar(f"cycles of {SEQUENCES} sequences folded in a second", rates, FOLD_BAR))

    table = Table(title="microseconds of the decisions of a cycle, medians")
    for heading in ("sequences", "plan", "allocate", "plan p99", "allocate p99"):
        table.add_column(heading, justify="right")
    rows = []
    for load in LOADS:
        plans, allocations = _policy_seconds(chance, load, rounds)
        found = [quantile(values, share) for share in (0.5, 0.99) for values in (plans, allocations)]
        table.add_row(str(load), *(f"{1e6 * value.estimate:.0f}" for value in found))
        rows.append(
            {"sequences": load}
            | {
                name: interval_row(value)
                for name, value in zip(("plan", "allocate", "plan_p99", "allocate_p99"), found, strict=True)
            }
        )
        if load == LOADS[-1]:
            for name, value in zip(("plan", "allocation"), found, strict=False):
                what = f"{name} of {load} sequences, median microseconds"
                bars.append(Bar(what, _micro(value), POLICY_BAR, at_least=False))
    print_table(console, table)

    console.log(f"{ROUTE_NAMES} names of routes")
    some, all_names = _memory(chance)
    held = all_names / 2**20
    name = f"MiB held after {ROUTE_NAMES} names of routes"
    bars.append(Bar(name, Interval(held, held, held), MEMORY_BAR, at_least=False))
    console.print(
        f"a decision {1e6 * percentile(decisions, 0.5):.1f} us, p99 {1e6 * percentile(decisions, 0.99):.1f} us; "
        f"{mean:.0f} cycles a second folded on average, {interval_text(rates)} at the median; "
        f"{some / 2**20:.1f} MiB held after {_SOME_NAMES} names of routes, {held:.1f} after {ROUTE_NAMES}",
        highlight=False,
    )
    body = {
        "contexts": len(contexts),
        "decision_seconds": {
            "median": percentile(decisions, 0.5),
            "p99": percentile(decisions, 0.99),
        },
        "folded_per_second": {"mean": mean, "at_median": interval_row(rates)},
        "policies": rows,
        "bytes": {"route_names": ROUTE_NAMES, "some": some, "all": all_names},
    }
    return None, Report(body, bars)


def quantile(values: Sequence[float], share: float) -> Interval:
    """A quantile with its 95 % interval from order statistics (normal approximation of the binomial)."""
    ordered = sorted(values)
    last = len(ordered) - 1
    wide = 1.96 * math.sqrt(len(ordered) * share * (1.0 - share))
    middle = share * last
    low, high = ordered[max(0, math.floor(middle - wide))], ordered[min(last, math.ceil(middle + wide))]
    return Interval(percentile(ordered, share), low, high)


class _Served:
    """A controller with made-up traffic, on a clock that the cycles move."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._now = 0.0
        self._cycle = 0
        self.policy: CyclePolicy | None = None
        options = ControllerOptions(max_block_length=_CAP)
        self.controller = Controller(_engine(), options, self._take, lambda: self._now, lambda: self._now)

    def _take(self, policy: CyclePolicy) -> None:
        self.policy = policy

    def serve(self, contexts: Sequence[Context], cycles: int) -> None:
        """Decide for all `contexts`, fold cycles of them in turn, and tick once."""
        for context in contexts:
            self.controller.decide(context, _FEATURES)
        for stats in self._cycles(contexts, cycles):
            self.controller.fold_cycle(stats)
        self._now += 10.0
        self.controller.tick()

    def fold_seconds(self, contexts: Sequence[Context], cycles: int) -> list[float]:
        """Seconds of each cycle's folding."""
        fold = self.controller.fold_cycle
        return [_seconds(partial(fold, stats)) for stats in self._cycles(contexts, cycles)]

    def _cycles(self, contexts: Sequence[Context], count: int) -> list[CycleStats]:
        served = itertools.cycle(contexts)
        return [self._made(list(itertools.islice(served, SEQUENCES))) for _ in range(count)]

    def _made(self, contexts: Sequence[Context]) -> CycleStats:
        chance = self._chance
        self._cycle += 1
        sequences = []
        for place, context in enumerate(contexts):
            drafter = chance.choice(list(DRAFTING))
            proposed = chance.choice((0, 4, 8, _CAP))
            accepted = 0
            while accepted < proposed and chance.random() < 0.8:
                accepted += 1
            end = BlockEnd.PLAIN if not proposed else BlockEnd.FULL if accepted == proposed else BlockEnd.REJECTED
            key = SEQUENCES * (self._cycle // 20) + place
            confidence = chance.randint(1, 4) if proposed else 0
            sequences.append(
                SequenceStats(key, context, drafter, _CAP, proposed, proposed, accepted, accepted + 1, confidence, end)
            )
        load = len(sequences)
        tokens = load + sum(one.verified for one in sequences)
        drafting = {name: DRAFTING[name].seconds(2, _CAP, 2 * _CAP) for name in DRAFTING}
        seconds = COST.seconds(tokens, load, 300 * load) * chance.lognormvariate(0.0, 0.03) + sum(drafting.values())
        return _stats(self._cycle, load, tokens, 300 * load, seconds, drafting, tuple(sequences))


def _everybody(spare: float, asked: Sequence[int]) -> float:
    """Whoever is asked may wait the same."""
    return spare


def _policy_seconds(chance: random.Random, load: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of the plan and of the allocation of cycles of `load` sequences, from two contexts of each drafter."""
    hazards = {(name, index): chance.uniform(0.5, 0.95) for name in DRAFTING for index in range(2)}
    outlooks = {
        key: Outlook(tuple(0.7 * hazard**j for j in range(1, _CAP + 1)), tuple(0.8 * 0.97**j for j in range(_CAP)))
        for key, hazard in hazards.items()
    }
    curves = {
        (*key, confidence): tuple((hazard ** (2.0 / confidence)) ** j for j in range(1, _CAP + 1))
        for key, hazard in hazards.items()
        for confidence in (1, 2, 4)
    }
    plans, allocations = [], []
    near = NO_PRICES
    for _ in range(rounds):
        chosen = [chance.choice(list(outlooks)) for _ in range(load)]
        spare = chance.uniform(0.0, 0.02)
        prospects = [Prospect(key[0], outlooks[key], _CAP, False) for key in chosen]
        kv_tokens = 300 * load
        spare_of = partial(_everybody, spare)
        plans.append(_seconds(partial(plan, prospects, COST, DRAFTING, kv_tokens, 0.02, spare_of, near)))
        planned = plan(prospects, COST, DRAFTING, kv_tokens, 0.02, spare_of, near)
        near = planned.prices
        candidates = [
            Candidate(chance.choice((0, 2, 4, 8, _CAP)), curves[(*key, chance.choice((1, 2, 4)))], False)
            for key in chosen
        ]
        allocations.append(_seconds(partial(allocate, candidates, COST, kv_tokens, 0.02, spare, planned.rate)))
    return plans, allocations


def _memory(chance: random.Random) -> tuple[int, int]:
    """Bytes that a controller holds after some names of routes, and after all."""
    tracemalloc.start()
    try:
        served = _Served(chance)
        sizes = []
        for names in (range(_SOME_NAMES), range(_SOME_NAMES, ROUTE_NAMES)):
            contexts = [Context("bench", f"name-{index}", "en") for index in names]
            served.serve(contexts, cycles=len(contexts) // SEQUENCES)
            del contexts
            sizes.append(tracemalloc.get_traced_memory()[0])
        return sizes[0], sizes[1]
    finally:
        tracemalloc.stop()


def _keys() -> list[tuple[int, str]]:
    return [(index, language) for index in range(CONTEXTS // len(LANGUAGES)) for language in LANGUAGES]


def _micro(found: Interval) -> Interval:
    return Interval(1e6 * found.estimate, 1e6 * found.low, 1e6 * found.high)


def _ordered(found: Interval) -> tuple[float, float, float]:
    """For a rate: what is longest is slowest."""
    return found.estimate, found.high, found.low


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _engine() -> EngineInfo:
    shapes = [(load, each, context) for load in LOADS for each in (1, 2, 3, 5, 9, 13) for context in (96, 480)]
    calibration = [
        _stats(0, load, load * each, load * context, COST.seconds(load * each, load, load * context), {}, ())
        for load, each, context in shapes
    ]
    timings = [
        DraftTiming(name, load, steps, load * steps, cost.seconds(load, steps, load * steps))
        for name, cost in DRAFTING.items()
        for load in (1, 4, 16)
        for steps in (1, 4, 8)
    ]
    return EngineInfo(
        model="bench",
        drafters=(PLAIN, *DRAFTING),
        dtype="float32",
        device="none",
        threads=1,
        slots=LOADS[-1],
        blocks=1 << 16,
        context_limit=1 << 16,
        vocabulary=1 << 16,
        linear_seconds=COST.seconds(1, 1, 0),
        calibration=tuple(calibration),
        draft_calibration=tuple(timings),
    )


def _stats(
    cycle: int,
    load: int,
    tokens: int,
    kv_tokens: int,
    seconds: float,
    drafting: dict[str, float],
    sequences: tuple[SequenceStats, ...],
) -> CycleStats:
    return CycleStats(
        cycle=cycle,
        policy_version=1,
        window=Window(1, plain=False),
        first_after_switch=False,
        killed=False,
        load=load,
        tokens=tokens,
        kv_tokens=kv_tokens,
        draft_seconds=drafting,
        verify_seconds=seconds - sum(drafting.values()),
        cycle_seconds=seconds,
        prefill_tokens=0,
        prefill_seconds=0.0,
        waiting=0,
        sequences=sequences,
        shadows=(),
        ended_at=float(cycle),
    )

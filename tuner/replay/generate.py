"""Makes a `Trace` of a scenario and a seed: the same one every time, and quick, since a comparison needs hundreds."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policies.cycle_policy import DraftCost, PassCost
from policies.types import MAX_BLOCK_LENGTH
from tuner.replay.generated_drafts import (
    LEARNED_EDGES,
    NGRAM_EDGES,
    SUFFIX_EDGES,
    cut,
    draw_copies,
    draw_copying,
    draw_learned,
    draw_stretches,
)
from tuner.replay.scenarios import Change, Dearer, Load, Machine, Mix, Scenario, ScenarioBook
from tuner.replay.trace import Costs, DraftTrace, Trace, TracedRequest

CODE = "code"
"""The language of routes of code."""


@dataclass(frozen=True, slots=True)
class _Phase:
    """What holds for the requests from `first` on, until the next phase."""

    first: int
    mix: str
    right: Mapping[str, Mapping[str, float]]
    swap: tuple[str, ...]
    copies_factor: float
    prompt_factor: float
    dearer: Dearer | None
    slower: float

    def changed(self, change: Change) -> "_Phase":
        right = {drafter: dict(shares) for drafter, shares in self.right.items()}
        for drafter, shares in (change.right or {}).items():
            right[drafter].update(shares)
        return _Phase(
            change.request,
            self.mix if change.mix is None else change.mix,
            right,
            self.swap if change.swap is None else change.swap,
            self.copies_factor if change.copies_factor is None else change.copies_factor,
            self.prompt_factor if change.prompt_factor is None else change.prompt_factor,
            self.dearer if change.dearer is None else change.dearer,
            self.slower if change.slower is None else change.slower,
        )

    def right_by(self, drafter: str, language: str) -> float:
        """The mean share of tokens that a learned drafter gets right."""
        if drafter in self.swap:
            drafter = self.swap[(self.swap.index(drafter) + 1) % len(self.swap)]
        return self.right[drafter][language]


def generate(book: ScenarioBook, name: str, seed: int) -> Trace:
    """The trace of scenario `name` and `seed`. Raises KeyError for a name that is not in the book."""
    scenario = book.scenarios[name]
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    phases = _phases(book, scenario)
    phase_of = np.searchsorted([phase.first for phase in phases], np.arange(scenario.requests), side="right") - 1
    contexts = _contexts(book, scenario, phases, phase_of, generator)
    outputs = _outputs(book, scenario.requests, generator)
    bounds = np.array([book.routes[route].prompt_tokens for route, _ in contexts])
    factors = np.array([phases[phase].prompt_factor for phase in phase_of])
    prompts = (generator.integers(bounds[:, 0], bounds[:, 1] + 1) * factors).astype(int)
    drafts = _drafts(book, scenario, phases, phase_of, contexts, outputs, generator)
    loads = _loads(scenario.load, scenario.requests, book.machines[scenario.machine].slots, generator)
    machine = book.machines[scenario.machine]
    costs = [_costs(machine, phase) for phase in phases]
    arrivals = (scenario.arrival.request,) if scenario.arrival is not None else ()
    return Trace(
        drafters=book.drafters,
        requests=tuple(
            TracedRequest(route, language, int(prompts[i]), int(outputs[i]), drafts[i])
            for i, (route, language) in enumerate(contexts)
        ),
        loads=loads,
        costs=costs[0],
        slots=machine.slots,
        restarts=scenario.restarts,
        keeps_memory=scenario.keeps_memory,
        changes=tuple(sorted({*(phase.first for phase in phases[1:]), *arrivals})),
        later_costs=tuple(
            (phase.first, after)
            for phase, before, after in zip(phases[1:], costs, costs[1:], strict=False)
            if after != before
        ),
        arrival=(scenario.arrival.route, scenario.arrival.language) if scenario.arrival is not None else None,
        calibrated=_calibrated(costs[0], book.noise.calibration_sd, generator),
        seconds_sd=book.noise.seconds_sd,
        stall_share=book.noise.stall_share,
        stall_factor=book.noise.stall_factor,
        confidence_buckets={
            "ngram": len(NGRAM_EDGES) + 1,
            "suffix": len(SUFFIX_EDGES) + 1,
            **{drafter: len(LEARNED_EDGES) + 1 for drafter in book.learned},
        },
    )


def _phases(book: ScenarioBook, scenario: Scenario) -> list[_Phase]:
    first = _Phase(
        0, scenario.mix, {name: learned.right for name, learned in book.learned.items()}, (), 1.0, 1.0, None, 1.0
    )
    phases = [first]
    for change in scenario.changes:
        phases.append(phases[-1].changed(change))
    return phases


def _contexts(
    book: ScenarioBook,
    scenario: Scenario,
    phases: list[_Phase],
    phase_of: NDArray[np.int64],
    generator: np.random.Generator,
) -> list[tuple[str, str]]:
    draws = generator.random(scenario.requests)
    contexts: list[tuple[str, str]] = []
    tables = [_pairs(book.mixes[phase.mix], book.code_routes) for phase in phases]
    for draw, phase in zip(draws, phase_of, strict=True):
        pairs, ends = tables[phase]
        contexts.append(pairs[int(np.searchsorted(ends, draw, side="right"))])
    if scenario.arrival is not None:
        arrival = scenario.arrival
        taken = generator.random(scenario.requests) < arrival.share
        taken[arrival.request] = True
        for index in range(arrival.request, scenario.requests):
            if taken[index]:
                contexts[index] = (arrival.route, arrival.language)
    return contexts


def _pairs(mix: Mix, code_routes: tuple[str, ...]) -> tuple[list[tuple[str, str]], NDArray[np.float64]]:
    """(route, language) pairs, and up to where of 0 to 1 each reaches."""
    shares: dict[tuple[str, str], float] = {}
    for route, share in mix.routes.items():
        languages = {CODE: 1.0} if route in code_routes else mix.languages
        for language, part in languages.items():
            if (route, language) not in mix.without:
                shares[route, language] = share * part
    ends = np.cumsum(list(shares.values()))
    ends /= ends[-1]
    ends[-1] = 1.0
    return list(shares), ends


def _outputs(book: ScenarioBook, requests: int, generator: np.random.Generator) -> NDArray[np.int64]:
    settings = book.output_tokens
    tail = generator.geometric(1.0 / (settings.mean - settings.least + 1.0), requests) - 1
    return np.minimum(settings.least + tail, settings.most)


def _drafts(
    book: ScenarioBook,
    scenario: Scenario,
    phases: list[_Phase],
    phase_of: NDArray[np.int64],
    contexts: list[tuple[str, str]],
    outputs: NDArray[np.int64],
    generator: np.random.Generator,
) -> list[dict[str, DraftTrace]]:
    count = len(contexts)
    positions = int(outputs.max()) + MAX_BLOCK_LENGTH
    difficulty = generator.standard_normal(count, dtype=np.float32) * np.float32(book.latent.request_sd)
    start, length = np.empty(count, dtype=np.float32), np.empty(count, dtype=np.float32)
    for index, ((route, language), phase) in enumerate(zip(contexts, phase_of, strict=True)):
        copies, loops = book.routes[route].copies, book.loops[language]
        start[index] = (copies.start + loops.start) * phases[phase].copies_factor
        length[index] = (copies.start * copies.length + loops.start * loops.length) / (copies.start + loops.start)
    where = draw_copies(generator, positions, np.minimum(start * np.exp(difficulty), np.float32(0.5)), length)
    copying = book.copying
    drawn = {
        "ngram": draw_copying(generator, where, copying.ngram, copying, outputs, by_length=True),
        "suffix": draw_copying(generator, where, copying.suffix, copying, outputs, by_length=False),
    }
    stretches = draw_stretches(generator, positions, count, book.latent, scenario.bursts)
    shifts = np.array([book.routes[route].shift for route, _ in contexts])
    for name, learned in book.learned.items():
        shares = np.array(
            [phases[phase].right_by(name, language) for (_, language), phase in zip(contexts, phase_of, strict=True)]
        )
        right = (1.0 / (1.0 + (1.0 - shares) / shares * np.exp(-shifts))).astype(np.float32)
        drawn[name] = draw_learned(generator, right, difficulty, stretches, book.latent, learned.stop, outputs)
    lengths = outputs.tolist()
    parts = {name: cut(drafts, lengths) for name, drafts in drawn.items()}
    return [{name: DraftTrace(*parts[name][index]) for name in drawn} for index in range(count)]


def _loads(load: Load, requests: int, slots: int, generator: np.random.Generator) -> tuple[int, ...]:
    if load.kind == "levels":
        drawn = generator.choice(load.levels, -(-requests // load.hold))
        loads = np.repeat(drawn, load.hold)[:requests]
    elif load.kind == "sine":
        phase = 2.0 * np.pi * np.arange(requests) / load.period
        loads = np.rint(load.low + (load.high - load.low) * (0.5 - 0.5 * np.cos(phase))).astype(int)
    else:
        loads = np.full(requests, load.base)
        for first in load.at:
            loads[first : first + load.length] = load.peak
    return tuple(np.minimum(loads, slots).tolist())


def _costs(machine: Machine, phase: _Phase) -> Costs:
    def factor(tokens: int) -> float:
        dearer = phase.dearer
        inside = dearer is not None and dearer.tokens[0] <= tokens <= dearer.tokens[1]
        return phase.slower * (dearer.factor if dearer is not None and inside else 1.0)

    target = PassCost(
        machine.token_knots,
        tuple(
            seconds * factor(tokens) for tokens, seconds in zip(machine.token_knots, machine.knot_seconds, strict=True)
        ),
        machine.sequence_seconds * phase.slower,
        machine.kv_token_seconds * phase.slower,
    )
    drafters = {
        name: DraftCost(cost.call_seconds, cost.sequence_seconds, cost.step_seconds, cost.row_seconds)
        for name, cost in machine.drafting.items()
    }
    return Costs(target, drafters)


def _calibrated(costs: Costs, spread: float, generator: np.random.Generator) -> Costs:
    """The costs with an error of their own at each knot and in each term, never so large that one turns negative."""

    def wrong(seconds: float) -> float:
        return seconds * float(np.clip(1.0 + spread * generator.standard_normal(), 0.5, 1.5))

    target = costs.target
    return Costs(
        replace(
            target,
            knot_seconds=tuple(wrong(seconds) for seconds in target.knot_seconds),
            sequence_seconds=wrong(target.sequence_seconds),
            kv_token_seconds=wrong(target.kv_token_seconds),
        ),
        {
            name: DraftCost(*(wrong(getattr(cost, field)) for field in DraftCost.__slots__))
            for name, cost in costs.drafters.items()
        },
    )

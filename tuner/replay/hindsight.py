"""The best settings that nobody changes under way, chosen in hindsight over the whole trace with its true costs.

Four of them: one drafter and block length for everything; one for each load, which is the best table that an engine
like vLLM could have been given; one for each context; one for each context and load.

A setting is judged by the seconds that the trace then takes. What a context's requests emit with a drafter and a length
is known exactly (`tuner.replay.reblock`), and a cycle's cost follows from what share of blocks proposes how much: the
sequences that run together are taken as drawn from all blocks at that load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from policies.types import MAX_BLOCK_LENGTH, PLAIN
from tuner.replay.fixed_play import Arm, FixedRuns
from tuner.replay.oracle import Truth
from tuner.replay.played import account
from tuner.replay.player import Running, World
from tuner.replay.reblock import LENGTHS, BlockTables, Floats, Ints
from tuner.replay.trace import Costs, TracedRequest

PASSES = 2
"""The most times that each group's choice is looked at."""

REPLAYED = 6
"""Of the fixed arms that take the least by this account, how many are run to find the best."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks by option, which is a drafter and a length. O options, D drafters."""

    blocks: Floats
    """(O,)"""
    proposing: Floats
    """(O, 17): those that propose 0..16 drafts."""
    uses: Floats
    """(O, D): those that ask a drafter."""
    drafts: Floats
    """(O, D): what it proposes in all of them."""
    longer: Floats
    """(O, D, 16): those in which it proposes more than 0..15."""

    def at(self, option: int) -> "_Blocks":
        """Of one option."""
        return _Blocks(*(part[option : option + 1] for part in self._parts()))

    def plus(self, other: "_Blocks", sign: float = 1.0) -> "_Blocks":
        """The sum, or the difference."""
        pairs = zip(self._parts(), other._parts(), strict=True)
        return _Blocks(*(one + sign * another for one, another in pairs))

    def _parts(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        return self.blocks, self.proposing, self.uses, self.drafts, self.longer


class _Row:
    """All requests that were admitted at one load under the same costs."""

    def __init__(
        self, load: int, costs: Costs, drafters: Sequence[str], kv_tokens: float, groups: list[_Blocks]
    ) -> None:
        self.load = load
        self.groups = groups
        priced = [costs.drafters[drafter] for drafter in drafters]
        self._call = np.array([cost.call_seconds for cost in priced])
        self._sequence = load * np.array([cost.sequence_seconds for cost in priced])
        self._step = np.array([cost.step_seconds for cost in priced])
        self._row = load * np.array([cost.row_seconds for cost in priced])
        self._fixed = load * (costs.target.sequence_seconds + kv_tokens * costs.target.kv_token_seconds)
        self._size = load * MAX_BLOCK_LENGTH + 1
        passes = np.array([costs.target.seconds(load + drafts, 0, 0) for drafts in range(self._size)])
        # The mean of the pass over a sum of draws, by the transforms of both: no sum is ever written out.
        weight = np.fft.rfft(passes).conj() / self._size
        weight[1:] *= 2.0
        self._weight = weight

    def seconds(self, tried: _Blocks) -> Floats:
        """(O,): what the row takes if what runs is drawn from `tried`."""
        blocks = tried.blocks[:, None]
        spectrum = np.fft.rfft(tried.proposing / blocks, self._size, axis=1)
        together, power = np.ones_like(spectrum), self.load
        while power:
            if power & 1:
                together = together * spectrum
            spectrum, power = spectrum * spectrum, power >> 1
        passes = (together @ self._weight).real
        shares = 1.0 - (1.0 - tried.uses / blocks) ** self.load
        steppers = self._step > 0.0
        longest = (1.0 - (1.0 - tried.longer[:, steppers] / blocks[:, :, None]) ** self.load).sum(axis=2)
        draft = (
            shares @ self._call
            + (tried.uses / blocks) @ self._sequence
            + (tried.drafts / blocks) @ self._row
            + longest @ self._step[steppers]
        )
        found: Floats = tried.blocks / self.load * (passes + self._fixed + draft)
        return found


@dataclass(frozen=True, slots=True)
class Single:
    """The best arm for everything that is not plain: what a controller that cannot choose a drafter is given."""

    drafter: str
    block_length: int
    survival: tuple[float, ...]
    """S_1..S_16 over the whole trace, by re-blocking."""
    proposed: tuple[float, ...]
    """Drafts that a block of length 0..16 proposes in the mean."""
    kv_tokens: float
    """Of a sequence, in the mean."""


class Hindsight:
    """The best fixed settings of one trace."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._trace = truth.trace
        requests = self._trace.requests
        self._contexts = sorted({_context(one) for one in requests})
        places = {context: place for place, context in enumerate(self._contexts)}
        everything = np.zeros(len(requests), dtype=np.int64)
        by_context = np.array([places[_context(one)] for one in requests], dtype=np.int64)
        self._whole = self._rows(everything, 1)
        self._split = self._rows(by_context, len(self._contexts))

    def fixed_seconds(self) -> dict[Arm, float]:
        """What every fixed arm takes, by this module's account."""
        total = np.sum([row.seconds(row.groups[0]) for row in self._whole], axis=0)
        return {self._arm(option): float(seconds) for option, seconds in enumerate(total)}

    @cached_property
    def single(self) -> Single:
        """The best arm for everything that is not plain, and what its drafter does on the whole."""
        runs = FixedRuns(self._truth.blocks)
        likely = sorted((arm for arm in self.fixed_seconds().items() if arm[0][1]), key=itemgetter(1))[:REPLAYED]
        drafter, length = min((arm for arm, _ in likely), key=lambda arm: account(self._trace, runs.play(*arm)).seconds)
        place = self._trace.drafters.index(drafter)
        everything = np.zeros(len(self._trace.requests), dtype=np.int64)
        tables = self._tables(everything, 1)
        emitted = tables.emitted[0, place]
        return Single(
            drafter,
            length,
            tuple(np.clip(np.minimum.accumulate(np.diff(emitted)), 0.0, 1.0).tolist()),
            tuple((tables.chances[0, place] @ np.arange(LENGTHS)).tolist()),
            float(np.mean([one.prompt_tokens + 1 + one.output_tokens / 2 for one in self._trace.requests])),
        )

    @cached_property
    def lengths(self) -> dict[str, int]:
        """The best block length of each drafter for everything, at least 1: for those that choose nothing but it."""
        seconds = self.fixed_seconds()
        return {
            drafter: min(range(1, LENGTHS), key=lambda length: seconds[drafter, length])
            for drafter in self._trace.drafters
        }

    @property
    def speculates(self) -> bool:
        """Whether the best arm for everything is not plain."""
        seconds = self.fixed_seconds()
        return min(seconds, key=seconds.__getitem__) != (PLAIN, 0)

    def by_load(self) -> dict[int, Arm]:
        """The best arm for each load at which requests are admitted."""
        return {load: arms[0] for load, arms in self._by_load(self._whole).items()}

    def by_context(self) -> dict[tuple[str, str], Arm]:
        """The best arm for each (route, language)."""
        arms = self._best(self._split, len(self._contexts))
        return dict(zip(self._contexts, arms, strict=True))

    def by_context_and_load(self) -> dict[int, dict[tuple[str, str], Arm]]:
        """The best arm for each load and (route, language)."""
        found = self._by_load(self._split)
        return {load: dict(zip(self._contexts, arms, strict=True)) for load, arms in found.items()}

    def _by_load(self, rows: list[_Row]) -> dict[int, list[Arm]]:
        loads = sorted({row.load for row in rows})
        return {load: self._best([row for row in rows if row.load == load], len(rows[0].groups)) for load in loads}

    def _best(self, rows: list[_Row], groups: int) -> list[Arm]:
        """An arm for each group, so that the rows take the least; each in turn, from the best that all can share."""
        shared = [row.groups[0] for row in rows]
        for group in range(1, groups):
            shared = [total.plus(row.groups[group]) for total, row in zip(shared, rows, strict=True)]
        first = int(np.sum([row.seconds(total) for row, total in zip(rows, shared, strict=True)], axis=0).argmin())
        chosen = [first] * groups
        totals = [total.at(first) for total in shared]
        for _ in range(PASSES if groups > 1 else 0):
            before = list(chosen)
            for group in range(groups):
                own = [row.groups[group] for row in rows]
                rests = [total.plus(part.at(chosen[group]), -1.0) for total, part in zip(totals, own, strict=True)]
                tried = [rest.plus(part) for rest, part in zip(rests, own, strict=True)]
                used = [(row, blocks) for row, blocks, part in zip(rows, tried, own, strict=True) if part.blocks[0]]
                if used:
                    chosen[group] = int(np.sum([row.seconds(blocks) for row, blocks in used], axis=0).argmin())
                totals = [blocks.at(chosen[group]) for blocks in tried]
            if chosen == before:
                break
        return [self._arm(option) for option in chosen]

    def _arm(self, option: int) -> Arm:
        place, length = divmod(option, LENGTHS)
        return (self._trace.drafters[place], length) if length else (PLAIN, 0)

    def _tables(self, group_of: Ints, groups: int) -> BlockTables:
        """Of groups of requests that are no finer than the truth's cells."""
        group_of_cell = np.zeros(self._truth.cells, dtype=np.int64)
        group_of_cell[self._truth.cell_of] = group_of
        return self._truth.tables.merged(group_of_cell, groups)

    def _rows(self, group_of: Ints, groups: int) -> list[_Row]:
        trace, truth = self._trace, self._truth
        keys = [(load, truth.epoch(index)) for index, load in enumerate(trace.loads)]
        order = {key: place for place, key in enumerate(sorted(set(keys)))}
        row_of = np.array([order[key] for key in keys], dtype=np.int64)
        # A group's blocks are those of all its requests, in the share that it has at the load: with those at the load
        # alone, the few of a context would be known one by one.
        tables = self._tables(group_of, groups)
        tokens = np.zeros((len(order), groups))
        np.add.at(tokens, (row_of, group_of), [one.output_tokens for one in trace.requests])
        shares = tokens / tables.tokens
        drafters = len(trace.drafters)
        option_drafter = np.arange(drafters * LENGTHS) // LENGTHS
        asks = (option_drafter[:, None] == np.arange(drafters)) & (np.arange(drafters * LENGTHS) % LENGTHS > 0)[:, None]
        kv_tokens = np.array([one.prompt_tokens + 1 + one.output_tokens / 2 for one in trace.requests])
        rows = []
        for (load, epoch), place in order.items():
            parts = []
            for group in range(groups):
                blocks = shares[place, group] * tables.blocks[group].ravel()
                proposing = shares[place, group] * tables.proposed[group].reshape(-1, LENGTHS)
                longer = proposing[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
                parts.append(
                    _Blocks(
                        blocks,
                        proposing,
                        asks * blocks[:, None],
                        asks * (proposing @ np.arange(LENGTHS))[:, None],
                        asks[:, :, None] * longer[:, None, :],
                    )
                )
            mean_kv = float(kv_tokens[row_of == place].mean())
            rows.append(_Row(load, truth.costs(epoch), trace.drafters, mean_kv, parts))
        return rows


class StaticPlayer:
    """Settings that nobody changes under way: an arm by what runs and what a request is."""

    def __init__(self, name: str, arms: Callable[[int, TracedRequest], Arm], *, by_load: bool = True) -> None:
        """`by_load`: whether an arm depends on the load."""
        self.name = name
        self.by_load = by_load
        self._arms = arms
        self._load = 0
        self._changed = True

    def arm(self, request: TracedRequest) -> Arm:
        """The arm of a request for all its life, where it does not depend on the load."""
        return self._arms(0, request)

    def start(self, world: World, memory: Any) -> None:
        """A restart changes nothing."""
        self._changed = True

    def save(self) -> Any:
        """There is nothing to keep."""
        return None

    def admit(self, one: Running, load: int) -> None:
        """It gets its arm with the next plan."""
        self._changed = True

    def plan(self, running: list[Running]) -> None:
        """Each sequence's arm at the load that runs."""
        if self._changed:
            self._changed = False
            load = len(running)
            for one in running:
                one.drafter, one.cap = self._arms(load, one.request)
        for one in running:
            one.requested = one.cap

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        """There is nothing to learn."""

    def finish(self, one: Running) -> None:
        """The load changes."""
        self._changed = True


def best_fixed(hindsight: Hindsight) -> StaticPlayer:
    """One drafter and block length for everything."""
    single = hindsight.single
    arm = (single.drafter, single.block_length) if hindsight.speculates else (PLAIN, 0)
    return StaticPlayer("best-fixed", lambda load, request: arm, by_load=False)


def best_per_load(hindsight: Hindsight) -> StaticPlayer:
    """One drafter and block length for each load, as in vLLM's ``num_speculative_tokens_per_batch_size`` (its docs,
    ``features/speculative_decoding/dynamic_speculative_decoding.md``), which chooses no drafter: this one may."""
    arms = hindsight.by_load()
    nearest = _Nearest(list(arms))
    return StaticPlayer("best-per-load", lambda load, request: arms[nearest.of(load)])


def best_per_context(hindsight: Hindsight) -> StaticPlayer:
    """One drafter and block length for each route and language."""
    arms = hindsight.by_context()
    return StaticPlayer("best-per-context", lambda load, request: arms[_context(request)], by_load=False)


def best_per_context_and_load(hindsight: Hindsight) -> StaticPlayer:
    """One drafter and block length for each route, language and load."""
    arms = hindsight.by_context_and_load()
    nearest = _Nearest(list(arms))
    return StaticPlayer("best-per-context-load", lambda load, request: arms[nearest.of(load)][_context(request)])


class _Nearest:
    """Loads between those at which requests were admitted are as the nearest of them, the smaller of two."""

    def __init__(self, loads: list[int]) -> None:
        self._loads = loads

    def of(self, load: int) -> int:
        return min(self._loads, key=lambda known: (abs(known - load), known))


def _context(request: TracedRequest) -> tuple[str, str]:
    return request.route, request.language

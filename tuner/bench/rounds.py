"""A running service under measured rounds: the same prompts, one arm after the other."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from policies import Arm, CycleStats, DecisionSource, FixedPolicy, RequestStats
from policies.types import PLAIN_ARM
from tuner.load import LoadError, Outcome, run_closed_loop
from tuner.root import Service, running_service
from tuner.settings import Settings, SettingsError
from tuner.workload import Prompt

SCREENING_CONCURRENCY = 8


class Collected:
    """A telemetry consumer that keeps what one round of one arm did."""

    def __init__(self) -> None:
        self.cycles: list[CycleStats] = []
        self.requests: list[RequestStats] = []

    def fold_cycle(self, stats: CycleStats) -> None:
        if stats.load:
            self.cycles.append(stats)

    def fold_request(self, stats: RequestStats) -> None:
        self.requests.append(stats)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one arm."""

    tokens: int
    seconds: float
    collected: Collected
    outcomes: tuple[Outcome, ...]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def decode_tokens_per_second(self) -> float:
        """Emitted tokens over the seconds of the cycles alone, without prompts and HTTP."""
        emitted = sum(sequence.emitted for cycle in self.collected.cycles for sequence in cycle.sequences)
        seconds = sum(cycle.cycle_seconds for cycle in self.collected.cycles)
        return emitted / seconds if seconds else 0.0

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(outcome.text for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Session:
    """The service and a client that speaks to it as clients do."""

    service: Service
    http: httpx.AsyncClient

    @property
    def model(self) -> str:
        return self.service.client.info.model

    def source(self, arm: Arm | None) -> DecisionSource:
        """What decides under an arm; None is the tuner."""
        return self.service.controller if arm is None else FixedPolicy(arm)

    async def round(self, source: DecisionSource, prompts: Sequence[Prompt], load: int, max_tokens: int) -> Round:
        """Every prompt once, `load` at a time. Raises LoadError when a request failed."""
        collected = Collected()
        self.service.decisions.source = source
        with self.service.listening(collected):
            outcomes, seconds = await run_closed_loop(self.http, self.model, prompts, load, max_tokens)
            await self.service.fold_telemetry()
        raise_for_errors(outcomes)
        tokens = sum(outcome.completion_tokens for outcome in outcomes)
        return Round(tokens, seconds, collected, tuple(outcomes))

    async def screen(
        self, candidates: Sequence[Prompt], wanted: int, max_tokens: int, *, plain: bool = False
    ) -> tuple[list[Prompt], int]:
        """The first `wanted` prompts whose output does not loop, fewer if there are no more, and how many looped.

        A small greedy model loops, and loops flatter n-gram drafting. Unless `plain`, the tuner learns on the way.
        """
        source = self.source(PLAIN_ARM if plain else None)
        usable: list[Prompt] = []
        looped = 0
        for start in range(0, len(candidates), SCREENING_CONCURRENCY):
            batch = candidates[start : start + SCREENING_CONCURRENCY]
            done = await self.round(source, batch, SCREENING_CONCURRENCY, max_tokens)
            looped += sum(outcome.looped for outcome in done.outcomes)
            usable.extend(outcome.prompt for outcome in done.outcomes if not outcome.looped)
            if len(usable) >= wanted:
                break
        if not usable:
            raise SettingsError("Every prompt of the route looped on this model; there is nothing to measure.")
        return usable[:wanted], looped


@contextlib.asynccontextmanager
async def open_session(settings: Settings, console: Console) -> AsyncIterator[Session]:
    """A service without plain windows, and a client; raises what `running_service` does."""
    async with running_service(settings, console, switchback=False) as service:
        timeout = httpx.Timeout(None, connect=5.0)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=service.data_url, timeout=timeout, limits=limits) as http:
            yield Session(service, http)


def progress_bar(console: Console) -> Progress:
    """What a scenario shows while it runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def raise_for_errors(outcomes: Sequence[Outcome]) -> None:
    """Raises LoadError, one sentence, when a request failed."""
    failed = [outcome for outcome in outcomes if outcome.status != 200]
    if failed:
        first = failed[0]
        raise LoadError(f"{len(failed)} requests failed; the first, {first.prompt.id}: {first.status} {first.error}")


def greedy(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The same prompts, without chance and without penalties."""
    return [replace(prompt, sampling={"temperature": 0.0}) for prompt in prompts]


def turns(names: Sequence[str], repeat: int) -> list[str]:
    """The order of a round: every other one reversed, so that a drift of the machine cancels."""
    return list(names) if repeat % 2 == 0 else list(reversed(names))

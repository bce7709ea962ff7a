"""Ours against transformers' `generate`, and against vLLM's CPU build where there is one, in the same run.

Every engine gets the same prompts, greedy, makes the same number of tokens, in the same dtype with the same number of
threads, in turn and in reversed order; only one of them computes at a time. Nothing is kept from one request to the
next: our prefix reuse is off, as transformers has none. Texts may differ by rounding; how many agree is said.
"""

import contextlib
import os
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from policies import Arm
from policies.stats import EngineInfo
from policies.types import PLAIN_ARM, Interval
from tuner.bench.arms import PLAIN_ARM_NAME, TUNED, parse_arms
from tuner.bench.options import BenchOptions
from tuner.bench.report import Bar, Report, interval_row, interval_text
from tuner.bench.rounds import Session, greedy, open_session, progress_bar, turns
from tuner.bench.worker import Worker, WorkerError, running_worker
from tuner.cli.output import print_table
from tuner.load import LoadError
from tuner.paired import paired_ratio
from tuner.root import model_folder
from tuner.settings import Settings
from tuner.workload import Prompt, load_workload

VLLM_VARIABLE = "PACELINE_VLLM_PYTHON"
VLLM_LOADS = (1, 8)
ASSISTED = ("prompt-lookup", "assistant-heuristic", "assistant-dynamic")
WARM_UP_ROUNDS = 2
"""Rounds in which the tuner sees the workload before anything counts."""
PLAIN_BAR = 1.5
ASSISTED_BAR = 1.5
VLLM_BAR = 1.0

Measure = Callable[[], Awaitable[tuple[float, tuple[str, ...]]]]
"""Serves the prompts once: (tokens per second, texts)."""


@dataclass(slots=True)
class _Engine:
    """One engine under one arm at one load."""

    measure: Measure
    load: int = 1
    rates: list[float] = field(default_factory=list)
    texts: tuple[str, ...] = ()


async def run_transformers(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo, Report]:
    """The comparison. Raises LoadError when transformers does not run; vLLM is optional."""
    arms = parse_arms([PLAIN_ARM_NAME, *options.arms], settings.engine.drafter_names, settings.engine.max_block_length)
    fair = settings.model_copy(update={"engine": settings.engine.model_copy(update={"prefix_reuse": False})})
    engines: dict[str, _Engine] = {}
    notes: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        # Before the service, whose start makes this process and its children give way to the engine's.
        transformers = await _start(stack, "transformers", sys.executable)
        vllm = await _start(stack, "vLLM", os.environ.get(VLLM_VARIABLE, ""))
        session = await stack.enter_async_context(open_session(fair, console))
        info = session.service.client.info
        prompts, counts = await _prompts(session, options)
        if TUNED in arms:
            for _ in range(WARM_UP_ROUNDS):
                await session.round(session.source(None), prompts, 1, options.tokens)
        for name, arm in arms.items():
            engines[f"paceline {name}"] = _Engine(_ours(session, arm, prompts, 1, options.tokens))
        setup = {"model": str(model_folder(settings)), "dtype": info.dtype, "threads": info.threads}
        if isinstance(transformers, str):
            raise LoadError(transformers)
        try:
            await transformers.set_up(setup | {"assistant": options.assistant})
        except WorkerError as error:
            raise LoadError(str(error)) from error
        if not options.assistant:
            notes.append("transformers with an assistant model was not measured: --assistant names none.")
        for name in (PLAIN_ARM_NAME, *(ASSISTED if options.assistant else ASSISTED[:1])):
            engines[f"transformers {name}"] = _Engine(_theirs(transformers, name, prompts, counts, 1))
        notes.append(f"transformers {transformers.version}")
        notes.append(await _set_up_vllm(vllm, setup))
        if isinstance(vllm, Worker) and vllm.version:
            for load in VLLM_LOADS:
                engines[f"vllm plain x{load}"] = _Engine(_theirs(vllm, PLAIN_ARM_NAME, prompts, counts, load), load)
            load = VLLM_LOADS[-1]
            engines[f"paceline plain x{load}"] = _Engine(_ours(session, PLAIN_ARM, prompts, load, options.tokens), load)
        with progress_bar(console) as progress:
            task = progress.add_task("bench", total=options.repeats * len(engines))
            for repeat in range(options.repeats):
                for name in turns(list(engines), repeat):
                    progress.update(task, description=name)
                    engine = engines[name]
                    rate, engine.texts = await engine.measure()
                    engine.rates.append(rate)
                    progress.advance(task)
    return info, _report(console, engines, notes, len(prompts))


async def _prompts(session: Session, options: BenchOptions) -> tuple[list[Prompt], list[int]]:
    """The routes' prompts that do not loop, mixed, and how many tokens each one's answer has."""
    chosen: list[Prompt] = []
    for route in options.routes:
        usable, _ = await session.screen(greedy(load_workload([route])), options.prompts, options.tokens)
        chosen.extend(usable)
    mixed = [prompt for start in range(options.prompts) for prompt in chosen[start :: options.prompts]]
    done = await session.round(session.source(PLAIN_ARM), mixed, 1, options.tokens)
    counts = [outcome.completion_tokens for outcome in done.outcomes]
    return [replace(prompt, max_tokens=count) for prompt, count in zip(mixed, counts, strict=True)], counts


def _ours(session: Session, arm: Arm | None, prompts: Sequence[Prompt], load: int, tokens: int) -> Measure:
    async def measure() -> tuple[float, tuple[str, ...]]:
        done = await session.round(session.source(arm), prompts, load, tokens)
        return done.tokens_per_second, done.texts

    return measure


def _theirs(worker: Worker, arm: str, prompts: Sequence[Prompt], counts: Sequence[int], load: int) -> Measure:
    async def measure() -> tuple[float, tuple[str, ...]]:
        try:
            served = await worker.serve(arm, [prompt.messages for prompt in prompts], counts, load)
        except WorkerError as error:
            raise LoadError(str(error)) from error
        return served.tokens_per_second, served.texts

    return measure


async def _start(stack: contextlib.AsyncExitStack, name: str, python: str) -> Worker | str:
    """The worker, or a sentence that says why there is none."""
    if not python:
        return f"{name} was not measured: {VLLM_VARIABLE} names no Python."
    script = Path(__file__).with_name(f"{name.lower()}_worker.py")
    try:
        return await stack.enter_async_context(running_worker(name, python, script))
    except WorkerError as error:
        return f"{name} was not measured: {error}"


async def _set_up_vllm(vllm: Worker | str, setup: Mapping[str, object]) -> str:
    """What it is, or why it is not measured."""
    if isinstance(vllm, str):
        return vllm
    try:
        await vllm.set_up(setup)
    except WorkerError as error:
        return f"vLLM was not measured: {error}"
    return f"vLLM {vllm.version}"


def _report(console: Console, engines: Mapping[str, _Engine], notes: Sequence[str], prompts: int) -> Report:
    plain = engines[f"paceline {PLAIN_ARM_NAME}"]
    table = Table(title="tokens per second, medians over rounds; texts that are those of our plain decoding")
    for heading in ("engine", "load", "tokens/s", "our plain over it", "texts that agree"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    rows = []
    for name, engine in engines.items():
        agree = sum(mine == theirs for mine, theirs in zip(plain.texts, engine.texts, strict=True))
        ratio = paired_ratio(plain.rates, engine.rates) if engine.load == 1 and engine is not plain else None
        rate = statistics.median(engine.rates)
        rows.append(
            {
                "engine": name,
                "load": engine.load,
                "tokens_per_second": rate,
                "our_plain_over_it": None if ratio is None else interval_row(ratio),
                "texts_that_agree": agree,
            }
        )
        shown = "" if ratio is None else interval_text(ratio)
        table.add_row(name, str(engine.load), f"{rate:.1f}", shown, f"{agree} of {prompts}")
    print_table(console, table)
    for note in notes:
        console.print(note, highlight=False)
    ours = _best(engines, "paceline ")
    theirs = _best(engines, "transformers ", without="transformers plain")
    bars = [
        Bar(
            "plain decoding at load 1 over transformers' generate",
            paired_ratio(plain.rates, engines["transformers plain"].rates),
            PLAIN_BAR,
        ),
        Bar(
            f"{ours} over {theirs}, the best assisted generation, on the mixed workload",
            paired_ratio(engines[ours].rates, engines[theirs].rates),
            ASSISTED_BAR,
        ),
        *_vllm_bars(engines),
    ]
    return Report({"engines": rows, "prompts": prompts, "notes": list(notes)}, bars)


def _best(engines: Mapping[str, _Engine], prefix: str, without: str = "") -> str:
    names = [
        name for name, engine in engines.items() if name.startswith(prefix) and name != without and engine.load == 1
    ]
    return max(names, key=lambda name: statistics.median(engines[name].rates))


def _vllm_bars(engines: Mapping[str, _Engine]) -> list[Bar]:
    bars = []
    for load in VLLM_LOADS:
        ours = engines.get("paceline plain" if load == 1 else f"paceline plain x{load}")
        theirs = engines.get(f"vllm plain x{load}")
        measured: Interval | None = None
        if ours is not None and theirs is not None:
            measured = paired_ratio(ours.rates, theirs.rates)
        bars.append(Bar(f"plain decoding over vLLM's at load {load}", measured, VLLM_BAR))
    return bars

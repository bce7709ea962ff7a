"""Many requests at once: half of them cancelled, or with a KV cache that is too small for all.

Every text that comes through is held against the text that the same request gives alone, and afterwards every slot and
every block has to be back.
"""

import asyncio
import random
import time
from collections.abc import Sequence

from rich.console import Console

from policies.stats import EngineInfo, EngineStatus
from policies.types import PLAIN_ARM
from tuner.bench.arms import parse_arms
from tuner.bench.options import BenchOptions
from tuner.bench.report import Report
from tuner.bench.rounds import Round, Session, open_session
from tuner.load import Outcome, send
from tuner.paired import percentile
from tuner.settings import Settings
from tuner.workload import Prompt, load_workload

BLOCK_TOKENS = 16


async def run_cancel(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo, Report]:
    """``options.requests`` together, half of them cancelled at random times; one crowd for each arm."""
    arms = parse_arms(options.arms, settings.engine.drafter_names, settings.engine.max_block_length)
    prompts = _mixed(options)
    order = random.Random(settings.tuner.seed)
    cancelled = set(order.sample(range(len(prompts)), len(prompts) // 2))
    rows, faults = [], []
    async with open_session(settings, console) as session:
        info = session.service.client.info
        kept = [prompt for index, prompt in enumerate(prompts) if index not in cancelled]
        alone = await session.round(session.source(PLAIN_ARM), kept, 1, options.tokens)
        for name, arm in arms.items():
            session.service.decisions.source = session.source(arm)
            started = time.perf_counter()
            outcomes = await _cancelling(session, prompts, cancelled, alone.seconds / len(kept), options.tokens, order)
            seconds = time.perf_counter() - started
            await session.service.fold_telemetry()
            different = _different(alone, [outcomes[i] for i in range(len(prompts)) if i not in cancelled])
            early = sum(outcomes[index] is None for index in cancelled)
            status = await session.service.client.status()
            rows.append(
                {
                    "arm": name,
                    "seconds": seconds,
                    "cancelled": len(cancelled),
                    "cancelled_before_their_end": early,
                    "kept": len(kept),
                    "texts_that_differ_from_those_alone": different,
                }
                | _status_row(status)
            )
            faults += _faults(name, different, info, status)
            console.print(
                f"{name}: {len(prompts)} requests, {early} of {len(cancelled)} cancelled before their end, "
                f"{len(kept) - different} of {len(kept)} others with the text that they give alone; "
                f"{_back(info, status)}",
                highlight=False,
            )
    return info, Report({"crowds": rows}, faults=faults)


async def _cancelling(
    session: Session,
    prompts: Sequence[Prompt],
    cancelled: set[int],
    seconds_alone: float,
    max_tokens: int,
    order: random.Random,
) -> list[Outcome | None]:
    """Outcomes; None where the request was cancelled before its end."""
    tasks = [asyncio.create_task(send(session.http, session.model, prompt, max_tokens)) for prompt in prompts]
    loop = asyncio.get_running_loop()
    span = seconds_alone * len(prompts) / 4  # requests run together, so few take as long as one after the other
    for index in sorted(cancelled):
        loop.call_later(order.uniform(0.0, span), tasks[index].cancel)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    outcomes: list[Outcome | None] = []
    for found in done:
        if isinstance(found, BaseException) and not isinstance(found, asyncio.CancelledError):
            raise found
        outcomes.append(found if isinstance(found, Outcome) else None)
    return outcomes


async def run_preempt(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo, Report]:
    """The same crowd over a whole KV cache and over a quarter of the blocks that it needs at once."""
    arms = parse_arms(options.arms, settings.engine.drafter_names, settings.engine.max_block_length)
    prompts = _mixed(options)[: options.requests]
    rows, faults = [], []
    async with open_session(settings, console) as session:
        alone = await session.round(session.source(PLAIN_ARM), prompts, 1, options.tokens)
        whole = {
            name: await session.round(session.source(arm), prompts, len(prompts), options.tokens)
            for name, arm in arms.items()
        }
        info = session.service.client.info
    sizes = [_blocks(outcome) for outcome in alone.outcomes]
    together = sum(sorted(sizes)[-info.slots :])
    quarter = max(max(sizes) + 2, together // 4)
    cramped = settings.model_copy(update={"engine": settings.engine.model_copy(update={"kv_blocks": quarter})})
    async with open_session(cramped, console) as session:
        info = session.service.client.info
        for name, arm in arms.items():
            before = await session.service.client.status()
            done = await session.round(session.source(arm), prompts, len(prompts), options.tokens)
            status = await session.service.client.status()
            different = _different(alone, list(done.outcomes))
            preemptions = status.preemptions - before.preemptions
            rows.append(
                {
                    "arm": name,
                    "blocks": info.blocks,
                    "blocks_wanted": together,
                    "preemptions": preemptions,
                    "tokens_per_second": done.tokens_per_second,
                    "tokens_per_second_with_all_blocks": whole[name].tokens_per_second,
                    "texts_that_differ_from_those_alone": different,
                }
                | _status_row(status)
            )
            faults += _faults(name, different, info, status)
            console.print(
                f"{name}: {info.blocks} blocks where {together} are wanted, {preemptions} preemptions, "
                f"{done.tokens_per_second:.1f} tokens/s ({whole[name].tokens_per_second:.1f} with all blocks), "
                f"{len(prompts) - different} of {len(prompts)} texts as alone; {_back(info, status)}",
                highlight=False,
            )
    return info, Report({"crowds": rows}, faults=faults)


async def run_fragment(settings: Settings, options: BenchOptions, console: Console) -> tuple[EngineInfo, Report]:
    """Rounds of mixed lengths: the blocks come back each time, and admission takes no longer at the end."""
    arms = parse_arms(options.arms, settings.engine.drafter_names, settings.engine.max_block_length)
    arm = next(reversed(arms.values()))
    order = random.Random(settings.tuner.seed)
    prompts = _mixed(options)
    rounds = 4 * options.repeats
    waits: list[list[float]] = []
    rows, faults = [], []
    async with open_session(settings, console) as session:
        info = session.service.client.info
        for number in range(rounds):
            order.shuffle(prompts)
            lengths = [order.choice((4, 16, options.tokens)) for _ in prompts]
            chosen = [_shortened(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
            done = await session.round(session.source(arm), chosen, info.slots, options.tokens)
            status = await session.service.client.status()
            waits.append([request.queue_seconds for request in done.collected.requests])
            rows.append(
                {"round": number + 1, "queue_p50_seconds": percentile(waits[-1], 0.5)}
                | {"tokens_per_second": done.tokens_per_second}
                | _status_row(status)
            )
            faults += _faults(f"round {number + 1}", 0, info, status)
    quarter = max(1, rounds // 4)
    first = percentile([wait for one in waits[:quarter] for wait in one], 0.5)
    last = percentile([wait for one in waits[-quarter:] for wait in one], 0.5)
    console.print(
        f"{rounds} rounds of {len(prompts)} requests of mixed lengths: a request waits {1e3 * first:.1f} ms for "
        f"admission in the first quarter and {1e3 * last:.1f} ms in the last; {_back(info, status)}",
        highlight=False,
    )
    body = {"rounds": rows, "queue_seconds_first_quarter": first, "queue_seconds_last_quarter": last}
    return info, Report(body, faults=faults)


def _mixed(options: BenchOptions) -> list[Prompt]:
    """``options.requests`` prompts, the routes in turn; from the start again when there are no more."""
    by_route = [load_workload([route]) for route in options.routes]
    rows = max(len(prompts) for prompts in by_route)
    mixed = [prompts[row % len(prompts)] for row in range(rows) for prompts in by_route]
    return [mixed[index % len(mixed)] for index in range(options.requests)]


def _shortened(prompt: Prompt, max_tokens: int) -> Prompt:
    return Prompt(prompt.id, prompt.route, prompt.language, prompt.messages, prompt.sampling, max_tokens)


def _blocks(outcome: Outcome) -> int:
    return -(-(outcome.prompt_tokens + outcome.completion_tokens) // BLOCK_TOKENS)


def _different(alone: Round, outcomes: Sequence[Outcome | None]) -> int:
    texts = [None if outcome is None else outcome.text for outcome in outcomes]
    return sum(text != expected for text, expected in zip(texts, alone.texts, strict=True))


def _faults(name: str, different: int, info: EngineInfo, status: EngineStatus) -> list[str]:
    faults = []
    if different:
        faults.append(f"{name}: {different} texts differ from those that the same requests give alone.")
    if status.free_slots != info.slots or status.free_blocks != info.blocks:
        faults.append(
            f"{name}: {info.slots - status.free_slots} slots and {info.blocks - status.free_blocks} blocks are lost."
        )
    return faults


def _back(info: EngineInfo, status: EngineStatus) -> str:
    return (
        f"{status.free_slots} of {info.slots} slots and {status.free_blocks} of {info.blocks} blocks free, "
        f"{status.kept_blocks} of them kept for reuse"
    )


def _status_row(status: EngineStatus) -> dict[str, int]:
    return {
        "free_slots": status.free_slots,
        "free_blocks": status.free_blocks,
        "kept_blocks": status.kept_blocks,
    }

"""Measures what a cycle of a vLLM server costs, by bursts of small requests while nobody else is served.

Each burst runs so many requests at once with one forced block length. Their texts repeat themselves, so that an n-gram
drafter always has something to propose. What a drafter that reads the target's states, or a model, takes for itself is
measured by bursts in which it drafts and nothing is verified.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import httpx

from policies.stats import CycleStats, DraftTiming
from policies.types import PLAIN, UNDETERMINED, Context, Decision, Reason
from tuner.fleet.vllm.plugin.messages import WORD_ARGUMENT, Hello, word_argument
from tuner.fleet.vllm.replica import Replica

ROUTE = "calibration-of-paceline"
"""Of the requests that are sent; nothing of this route is learned from or reported."""
LOADS = (1, 16, 4, 8, 2)
"""The ends first: between them the cost can be guessed."""
CYCLES = 10
"""Of each burst, about."""
LEAST_CYCLES = 3
"""A shape that was seen less often is left out."""
SECONDS = 20.0
_KEYS = 1 << 61
_LOOKUPS = frozenset(("ngram", "ngram_gpu", "suffix"))
"""Drafters of which a call takes next to nothing: it is left in the cost of the pass."""
_WORDS = ("one two three four five six seven eight " * 64).split()
_SHORT, _LONG = 40, 400
"""Words of a prompt."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured."""

    cycles: tuple[CycleStats, ...] = ()
    drafts: tuple[DraftTiming, ...] = ()
    sentence: str = "nothing was calibrated"
    """For people."""


@dataclass(frozen=True, slots=True)
class Burst:
    """So many equal requests at once."""

    load: int
    block_length: int
    verified: bool = True
    words: int = _SHORT


@dataclass(slots=True)
class _Seen:
    """Seconds of the cycles of one shape."""

    cycle: CycleStats
    seconds: list[float] = field(default_factory=list)


class Busy(Exception):
    """Somebody else is served."""


async def calibrate(
    url: str, replica: Replica, headers: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> Calibration:
    """Calibrate the server at `url`, of which `replica` is the plug-in. It ends by itself after `seconds`, or when
    somebody else is served: what was measured until then is of use.

    Args:
        url: without ``/v1``.
        headers: such as an authorisation.

    Raises nothing that the server does: then the sentence says what went wrong.
    """
    hello = replica.hello
    ends = time.monotonic() + seconds
    seen: dict[Burst, dict[tuple[int, int], _Seen]] = {}
    trouble = ""
    keys = itertools.count(_KEYS)
    async with httpx.AsyncClient(base_url=url, headers=dict(headers or {}), timeout=seconds) as client:
        try:
            for burst in bursts(hello):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(0.1, ends - time.monotonic())):
                    seen[burst] = await _run(client, replica, burst, keys)
        except TimeoutError:
            trouble = f"{seconds:.0f} s were not enough"
        except Busy:
            trouble = "others were served meanwhile"
        except httpx.HTTPError as error:
            trouble = f"the server did not answer: {type(error).__name__}"
        finally:
            replica.collect = None
    return _result(hello, seen, trouble)


def bursts(hello: Hello) -> list[Burst]:
    """What is run, what matters most first."""
    loads = list(dict.fromkeys(min(load, hello.slots) for load in LOADS))
    longest = hello.block_length
    lengths = [length for length in hello.block_lengths if length in (0, 1, longest // 2, longest)]
    found = [Burst(1, 0)]  # a warm-up, which the same burst later replaces
    found += [Burst(load, length) for load in loads for length in (0, longest)]
    found += [Burst(load, length, verified=False) for load in loads for length in lengths if length and _heavy(hello)]
    found += [Burst(load, length) for load in loads for length in lengths if length not in (0, longest)]
    if hello.context_limit > 2 * _LONG:
        found += [Burst(load, 0, words=_LONG) for load in (1, min(8, hello.slots))]
    return [found[0], *dict.fromkeys(found[1:])]


async def _run(
    client: httpx.AsyncClient, replica: Replica, burst: Burst, keys: Iterator[int]
) -> dict[tuple[int, int], _Seen]:
    """Cycles by (load, rows)."""
    seen: dict[tuple[int, int], _Seen] = {}
    busy = False

    def collect(cycle: CycleStats) -> None:
        nonlocal busy
        if any(one.context.route != ROUTE for one in cycle.sequences):
            busy = True
        elif cycle.load and cycle.cycle_seconds > 0.0:
            shape = cycle.load, cycle.tokens
            seen.setdefault(shape, _Seen(cycle)).seconds.append(cycle.cycle_seconds)

    replica.collect = collect
    words = " ".join(_WORDS[: burst.words])
    tokens = 2 + CYCLES * (1 + (burst.block_length if burst.verified else 0))
    answers = await asyncio.gather(
        *(
            client.post(
                "/v1/completions",
                json={
                    "model": replica.hello.model,
                    "prompt": words,
                    "max_tokens": tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                    "vllm_xargs": {WORD_ARGUMENT: word_argument(next(keys), _decision(replica.hello, burst))},
                },
            )
            for _ in range(burst.load)
        )
    )
    for answer in answers:
        answer.raise_for_status()
    if busy:
        raise Busy
    return seen


def _decision(hello: Hello, burst: Burst) -> Decision:
    verified = burst.verified and burst.block_length > 0
    return Decision(
        decision_id="calibration",
        context=Context(hello.model, ROUTE, UNDETERMINED),
        drafter=hello.drafter if verified else PLAIN,
        cap=burst.block_length,
        forced=True,
        reason=Reason.ENGINE_DEFAULT,
        policy_version=0,
        shadows=() if burst.verified else (hello.drafter,),
    )


def _heavy(hello: Hello) -> bool:
    return hello.drafter not in _LOOKUPS and hello.drafter != PLAIN


def _result(hello: Hello, seen: Mapping[Burst, Mapping[tuple[int, int], _Seen]], trouble: str) -> Calibration:
    plain: dict[int, float] = {}
    for burst, shapes in seen.items():
        known = shapes.get((burst.load, burst.load))
        if burst.block_length == 0 and burst.words == _SHORT and known is not None:
            plain[burst.load] = statistics.median(known.seconds)
    drafts = []
    drafting: dict[tuple[int, int], float] = {}
    for burst, shapes in seen.items():
        known = shapes.get((burst.load, burst.load))
        if not burst.verified and known is not None and len(known.seconds) >= LEAST_CYCLES and burst.load in plain:
            took = max(0.0, statistics.median(known.seconds) - plain[burst.load])
            drafting[burst.load, burst.block_length] = took
            rows = burst.load * burst.block_length
            drafts.append(DraftTiming(hello.drafter, burst.load, burst.block_length, rows, took))
    cycles: list[CycleStats] = []
    for burst, shapes in seen.items():
        if not burst.verified:
            continue
        for (load, _), one in shapes.items():
            if len(one.seconds) < LEAST_CYCLES:
                continue
            took = drafting.get((load, burst.block_length), 0.0) if burst.block_length else 0.0
            seconds = statistics.median(one.seconds)
            cycles += [
                replace(
                    one.cycle,
                    cycle=0,
                    cycle_seconds=seconds,
                    verify_seconds=max(0.0, seconds - took),
                    draft_seconds={hello.drafter: took} if took else {},
                    sequences=(),
                    shadows=(),
                    ended_at=0.0,
                )
            ] * LEAST_CYCLES
    shapes_seen = len({(one.load, one.tokens) for one in cycles})
    sentence = f"{shapes_seen} shapes of a cycle were calibrated at loads up to {max(plain, default=0)}"
    return Calibration(tuple(cycles), tuple(drafts), f"{sentence}; {trouble}" if trouble else sentence)

"""Calls of each drafter timed on synthetic sequences, to seed the cost of drafting. No request has any part in it."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from engine.blocks import blocks_for
from engine.drafter import Drafter, Proposal
from engine.messages import Submit
from engine.request import RunningSequence
from kernels.sampling import Sampling
from policies.cycle_policy import Knobs
from policies.stats import DraftTiming
from policies.types import Context, Decision, Reason

SEQUENCES = (1, 4, 16)
STEPS = (1, 4, 8)
TEXT_TOKENS = 96
UNREAD_TOKENS = 240
"""Text of a sequence of which a drafter has never been asked."""
CYCLE_TOKENS = 2
"""What each sequence grows by between two calls, as about a cycle would have it."""
PERIOD = 12
"""Of the text for drafters that find nothing in random text."""
REPEATS = 3
OBSERVATIONS = 50

_PLAIN = Decision("calibration", Context("", "", ""), "none", 0, False, Reason.ENGINE_DEFAULT, 0)


class _Texts:
    """Makes synthetic sequences over the first blocks of the cache."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._vocabulary = vocabulary
        self._keys = 0

    def start(self, count: int, length: int, room: int, *, periodic: bool) -> list[RunningSequence]:
        """`count` sequences of `length` tokens, with blocks for `room` more."""
        table = blocks_for(length + room)
        return [self._one(length, range(place * table, (place + 1) * table), periodic) for place in range(count)]

    def grow(self, sequence: RunningSequence, periodic: bool) -> None:
        """Append what a cycle may have emitted."""
        for _ in range(CYCLE_TOKENS):
            sequence.tokens.append(sequence.tokens[-PERIOD] if periodic else self._token())

    def _one(self, length: int, blocks: Sequence[int], periodic: bool) -> RunningSequence:
        self._keys -= 1  # requests have keys above 0
        text = [self._token() for _ in range(PERIOD if periodic else length)]
        text = (text * (length // len(text) + 1))[:length]
        submit = Submit(self._keys, tuple(text), Sampling(temperature=0.0), 1 << 30, (), (), _PLAIN, 0.0)
        sequence = RunningSequence(submit, 1 << 30)
        sequence.blocks = list(blocks)
        sequence.knobs = Knobs(draft_stop=0.0)  # every step that is asked for is to be timed
        return sequence

    def _token(self) -> int:
        return self._random.randrange(self._vocabulary)


def time_drafters(
    drafters: Mapping[str, Drafter],
    *,
    slots: int,
    context_limit: int,
    blocks: int,
    vocabulary: int,
    seed: int,
    progress: Callable[[str], None],
) -> tuple[DraftTiming, ...]:
    """Medians of calls of each drafter for up to `slots` sequences, and of one that had to read its text first.

    A learned drafter writes into its own cache, at the first blocks: none of its sequences may run. Nothing is timed
    that does not fit the context or the cache.
    """
    timings: list[DraftTiming] = []
    for name, drafter in drafters.items():
        progress(f"timing the drafter {name}")
        longest = min(context_limit, drafter.context_limit or context_limit)
        timings += _time_one(name, drafter, _Texts(vocabulary, seed), slots, longest, blocks)
    return tuple(timings)


def observe_seconds(drafter: Drafter, vocabulary: int, seed: int) -> float:
    """Median seconds that a drafter takes to be told of one token of one sequence, drafting or not."""
    texts = _Texts(vocabulary, seed)
    (sequence,) = texts.start(1, TEXT_TOKENS, OBSERVATIONS * CYCLE_TOKENS, periodic=False)
    measured = []
    for _ in range(OBSERVATIONS):
        texts.grow(sequence, periodic=False)
        started = time.perf_counter()
        drafter.observe(sequence, sequence.tokens[-CYCLE_TOKENS:])
        measured.append(time.perf_counter() - started)
    drafter.release(sequence.key)
    return statistics.median(measured)


def _time_one(
    name: str, drafter: Drafter, texts: _Texts, slots: int, context_limit: int, blocks: int
) -> list[DraftTiming]:
    growth = CYCLE_TOKENS * len(STEPS) * (REPEATS + 1) + max(STEPS)
    periodic = False
    timings = []
    if UNREAD_TOKENS + max(STEPS) <= context_limit and blocks_for(UNREAD_TOKENS + max(STEPS)) <= blocks:
        calls = []
        for repeat in range(REPEATS + 1):
            (sequence,) = texts.start(1, UNREAD_TOKENS, max(STEPS), periodic=periodic)
            calls.append(_call(drafter, [sequence], 1))
            if repeat == 0:
                periodic = not calls[0][1][0].tokens
            drafter.release(sequence.key)
        timings.append(_timing(name, calls[1:], UNREAD_TOKENS - CYCLE_TOKENS))
    for count in SEQUENCES:
        if count > slots or TEXT_TOKENS + growth > context_limit or count * blocks_for(TEXT_TOKENS + growth) > blocks:
            break
        sequences = texts.start(count, TEXT_TOKENS, growth, periodic=periodic)
        if not _has_read(drafter, sequences):
            break
        measured: dict[int, list[tuple[float, list[Proposal]]]] = {steps: [] for steps in STEPS}
        for repeat in range(REPEATS + 1):
            for steps in STEPS:
                for sequence in sequences:
                    texts.grow(sequence, periodic)
                call = _call(drafter, sequences, steps)
                if repeat > 0:
                    measured[steps].append(call)
        timings += [_timing(name, calls) for calls in measured.values()]
        for sequence in sequences:
            drafter.release(sequence.key)
    return timings


def _has_read(drafter: Drafter, sequences: list[RunningSequence]) -> bool:
    """Let a drafter catch up with all texts, some tokens a call. False for one that cannot draft at all."""
    for _ in range(len(sequences) + 1):
        if all(proposal.ready for proposal in drafter.propose(sequences, [1] * len(sequences))):
            return True
    return False


def _call(drafter: Drafter, sequences: list[RunningSequence], steps: int) -> tuple[float, list[Proposal]]:
    started = time.perf_counter()
    proposals = drafter.propose(sequences, [steps] * len(sequences))
    return time.perf_counter() - started, proposals


def _timing(name: str, calls: list[tuple[float, list[Proposal]]], catch_up_tokens: int = 0) -> DraftTiming:
    """The call with the median time."""
    seconds, proposals = sorted(calls, key=lambda call: call[0])[len(calls) // 2]
    offered = [len(proposal.tokens) for proposal in proposals]
    return DraftTiming(name, len(offered), max(offered), sum(offered), seconds, catch_up_tokens)

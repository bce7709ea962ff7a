"""Drafters timed at start, on sequences that are nobody's, with drafters that take the time that the test says."""

import time
from collections.abc import Sequence

import pytest

from engine.blocks import BLOCK_TOKENS
from engine.draft_calibration import REPEATS, SEQUENCES, STEPS, UNREAD_TOKENS, observe_seconds, time_drafters
from engine.drafter import NOT_READY, Drafter, Proposal
from engine.drafter_plan import CATCH_UP_TOKENS
from engine.ngram import NgramDrafter
from engine.request import RunningSequence
from engine.suffix import SuffixDrafter
from policies.stats import DraftTiming
from policies.testing import FakeClock

CALL, SEQUENCE, STEP, READ = 1.0, 0.1, 0.01, 0.0001


class Timed:
    """Reads each text once, a limited number of tokens a call, and takes seconds for it."""

    name = "timed"
    memory_bytes = 0

    def __init__(self, clock: FakeClock, context_limit: int | None = None, stalls: tuple[float, ...] = ()) -> None:
        self.context_limit = context_limit
        self._clock = clock
        self._read: dict[int, int] = {}
        self._stalls = list(stalls)
        self.released: set[int] = set()
        self.keys: set[int] = set()

    def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
        used = [block for one in sequences for block in one.blocks]
        assert len(used) == len(set(used)), "each sequence has blocks of its own"
        budget, proposals, unread = CATCH_UP_TOKENS, [], 0
        for one, length in zip(sequences, lengths, strict=True):
            assert len(one.tokens) + length <= len(one.blocks) * BLOCK_TOKENS
            assert one.knobs.draft_stop == 0.0
            self.keys.add(one.key)
            missing = min(budget, len(one.tokens) - self._read.get(one.key, 0))
            budget -= missing
            unread += missing
            self._read[one.key] = self._read.get(one.key, 0) + missing
            proposals.append(Proposal((0,) * length, 1) if self._read[one.key] == len(one.tokens) else NOT_READY)
        steps = max(len(proposal.tokens) for proposal in proposals)
        stall = self._stalls.pop(0) if self._stalls else 0.0
        self._clock.advance(CALL + SEQUENCE * len(sequences) + STEP * steps + READ * unread + stall)
        return proposals

    def observe(self, sequence: RunningSequence, emitted: Sequence[int]) -> None:
        self._clock.advance(0.5)

    def release(self, request_key: int) -> None:
        self.released.add(request_key)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(time, "perf_counter", fake)
    return fake


def timed(drafter: Drafter, *, slots: int = 16, context_limit: int = 512, blocks: int = 1000) -> list[DraftTiming]:
    return list(
        time_drafters(
            {drafter.name: drafter},
            slots=slots,
            context_limit=context_limit,
            blocks=blocks,
            vocabulary=5000,
            seed=1,
            progress=lambda text: None,
        )
    )


def test_calls_are_timed_by_sequences_and_steps_and_once_with_a_text_to_read(clock: FakeClock) -> None:
    drafter = Timed(clock, stalls=(50.0, 0.0, 50.0))
    timings = timed(drafter)
    assert [(one.sequences, one.steps, one.rows, one.catch_up_tokens) for one in timings] == [
        (1, 1, 1, UNREAD_TOKENS - 2),
        *((count, steps, count * steps, 0) for count in SEQUENCES for steps in STEPS),
    ]
    for one in timings:
        read = READ * (UNREAD_TOKENS if one.catch_up_tokens else 2 * one.sequences)
        assert one.seconds == pytest.approx(CALL + SEQUENCE * one.sequences + STEP * one.steps + read)
    assert drafter.released == drafter.keys, "nothing of it is kept"
    assert all(key < 0 for key in drafter.keys), "no request has such a key"
    assert REPEATS % 2 == 1


@pytest.mark.parametrize(
    ("limits", "counts"),
    [
        ({"slots": 3}, {1}),
        ({"slots": 4}, {1, 4}),
        ({"blocks": 4 * 8}, {1, 4}),
        ({"context_limit": 130}, {1, 4, 16}),
        ({"context_limit": 100}, set()),
        ({"blocks": 7}, set()),
    ],
)
def test_drafters_are_timed_within_the_slots_the_blocks_and_the_context(
    clock: FakeClock, limits: dict[str, int], counts: set[int]
) -> None:
    assert {one.sequences for one in timed(Timed(clock), **limits) if not one.catch_up_tokens} == counts


def test_a_drafter_with_a_short_context_of_its_own_is_timed_within_it(clock: FakeClock) -> None:
    assert timed(Timed(clock, context_limit=64)) == []


def test_a_drafter_that_never_gets_ready_is_not_timed_for_ever() -> None:
    class Never(Timed):
        def propose(self, sequences: Sequence[RunningSequence], lengths: Sequence[int]) -> list[Proposal]:
            return [NOT_READY] * len(sequences)

    assert {one.rows for one in timed(Never(FakeClock()))} <= {0}


@pytest.mark.parametrize("drafter", [NgramDrafter(2, 16), SuffixDrafter()])
def test_drafters_that_look_up_are_timed_on_text_in_which_they_find_something(drafter: Drafter) -> None:
    timings = timed(drafter)
    assert [(one.sequences, one.rows) for one in timings if not one.catch_up_tokens] == [
        (count, count * steps) for count in SEQUENCES for steps in STEPS
    ]


def test_being_told_of_tokens_is_timed_without_drafting(clock: FakeClock) -> None:
    drafter = Timed(clock)
    assert observe_seconds(drafter, 5000, seed=1) == pytest.approx(0.5)
    assert len(drafter.released) == 1

"""What is measured at start, on a target whose passes take the time that the test says."""

import time
from dataclasses import dataclass, field

import pytest

from engine.blocks import BLOCK_TOKENS
from engine.calibration import CONTEXTS, LOADS, REPEATS, TOKEN_LIMIT, calibrate, choose_threads
from engine.rows import Rows
from engine.target import DecoderTarget
from kernels.sampling import Block, Chosen
from policies.testing import FakeClock

EXTRA_SECONDS = (100.0, 0.0, 0.25, 0.5)
"""By visit to a point: the warm-up, then three of which the second is the median."""


@dataclass
class Shape:
    vocab_size: int = 100


@dataclass
class StubThreads:
    count: int = 1

    def resize(self, count: int) -> None:
        self.count = count


@dataclass
class StubDecoder:
    capacity: int
    blocks: int
    config: Shape = field(default_factory=Shape)
    native: StubThreads = field(default_factory=StubThreads)


class TimedTarget(DecoderTarget):
    """Takes seconds by threads, rows and round, on a clock of its own."""

    def __init__(
        self,
        clock: FakeClock,
        capacity: int = 1000,
        thread_seconds: tuple[float, ...] = (1.0,),
        blocks: int = 16 * 63,
    ) -> None:
        self.decoder = StubDecoder(capacity, blocks)  # type: ignore[assignment]
        self._clock = clock
        self._thread_seconds = thread_seconds
        self.passes: list[list[Rows]] = []
        self.seen: dict[tuple[int, int, int], int] = {}

    def verify(self, parts: list[Rows], blocks: list[Block]) -> list[Chosen]:
        tokens = sum(len(part.token_ids) for part in parts)
        used = [block for part in parts for block in part.blocks]
        assert len(used) == len(set(used))
        assert max(used) < self.decoder.blocks
        first_row = 0
        for part, block in zip(parts, blocks, strict=True):
            count = len(part.token_ids)
            assert (block.first_row, part.logit_count, block.drafts) == (first_row, count, tuple(part.token_ids[1:]))
            assert all(0 <= token < self.decoder.config.vocab_size for token in part.token_ids)
            assert part.start + count <= min(self.decoder.capacity, len(part.blocks) * BLOCK_TOKENS)
            first_row += count
        self.passes.append(parts)
        point = (len(blocks), tokens, parts[0].start)
        visit = self.seen.get(point, 0)
        self.seen[point] = visit + 1
        extra = EXTRA_SECONDS[visit] if visit < len(EXTRA_SECONDS) else 0.0
        self._clock.advance(self._thread_seconds[self.decoder.native.count - 1] + tokens / 1000.0 + extra)
        return [Chosen((0,)) for _ in blocks]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(time, "perf_counter", fake)
    return fake


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [((1.0, 0.94), 2), ((1.0, 0.97), 1), ((1.0, 1.4), 1), ((1.0, 1.2, 0.5), 3), ((1.0, 0.9, 0.88), 2)],
)
def test_one_more_thread_must_gain_five_percent(clock: FakeClock, seconds: tuple[float, ...], chosen: int) -> None:
    target = TimedTarget(clock, thread_seconds=seconds)
    assert choose_threads(target, len(seconds)) == chosen
    assert target.decoder.native.count == chosen


def test_threads_are_chosen_within_a_short_context(clock: FakeClock) -> None:
    assert choose_threads(TimedTarget(clock, capacity=16), 1) == 1


@pytest.mark.parametrize("blocks", [1, 4, 6, 7])
def test_a_cache_of_few_blocks_is_calibrated_within_them(clock: FakeClock, blocks: int) -> None:
    assert choose_threads(TimedTarget(clock, blocks=blocks), 1) == 1
    stats = calibrate(TimedTarget(clock, blocks=blocks), slots=16, seed=3, progress=lambda _: None)
    assert bool(stats) == (blocks >= 7)


def test_every_point_of_the_grid_is_measured_without_its_warm_up(clock: FakeClock) -> None:
    target = TimedTarget(clock)
    rounds: list[str] = []
    stats = calibrate(target, slots=16, seed=3, progress=rounds.append)
    assert set(target.seen.values()) == {REPEATS + 1}
    assert len(stats) == REPEATS * len(target.seen)
    assert len(rounds) == REPEATS + 1
    for cycle in stats:
        assert cycle.cycle_seconds == pytest.approx(1.25 + cycle.tokens / 1000.0)
        assert (cycle.load, cycle.sequences, cycle.first_after_switch) == (cycle.load, (), False)
        assert cycle.tokens <= TOKEN_LIMIT
    assert {cycle.load for cycle in stats} == set(LOADS)
    assert {cycle.kv_tokens // cycle.load for cycle in stats} == set(CONTEXTS)


def test_the_grid_keeps_to_the_slots_and_the_context_that_there_are(clock: FakeClock) -> None:
    target = TimedTarget(clock, capacity=100)
    stats = calibrate(target, slots=3, seed=3, progress=lambda _: None)
    assert {cycle.load for cycle in stats} == {1, 2}
    small = TimedTarget(clock, blocks=3 * 7)
    calibrate(small, slots=16, seed=3, progress=lambda _: None)
    assert {load for load, _, _ in small.seen} == {1, 2}
    assert calibrate(TimedTarget(clock, capacity=50), slots=3, seed=3, progress=lambda _: None) == ()


def test_the_order_is_shuffled_by_the_seed_alone(clock: FakeClock) -> None:
    orders = []
    for seed in (1, 1, 2):
        target = TimedTarget(clock)
        calibrate(target, slots=4, seed=seed, progress=lambda _: None)
        orders.append([(len(parts), len(parts[0].token_ids), parts[0].start) for parts in target.passes])
    assert orders[0] == orders[1] != orders[2]

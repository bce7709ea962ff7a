"""What is measured at start, on a target whose passes take the time that the test says."""

import time
from dataclasses import dataclass, field

import pytest
import torch

from engine.calibration import CONTEXTS, LOADS, REPEATS, TOKEN_LIMIT, calibrate, choose_threads
from engine.decoder import Pass
from engine.target import DecoderTarget
from kernels.sampling import Block
from policies.testing import FakeClock

EXTRA_SECONDS = (100.0, 0.0, 0.25, 0.5)
"""By visit to a point: the warm-up, then three of which the second is the median."""


@dataclass
class Shape:
    vocab_size: int = 100


@dataclass
class StubDecoder:
    capacity: int
    config: Shape = field(default_factory=Shape)


class TimedTarget(DecoderTarget):
    """Takes seconds by threads, rows and round, on a clock of its own."""

    def __init__(self, clock: FakeClock, capacity: int = 1000, thread_seconds: tuple[float, ...] = (1.0,)) -> None:
        self.decoder = StubDecoder(capacity)  # type: ignore[assignment]
        self._clock = clock
        self._thread_seconds = thread_seconds
        self.passes: list[Pass] = []
        self.seen: dict[tuple[int, int, int], int] = {}

    def verify(
        self, token_ids: list[int], slots: list[int], positions: list[int], blocks: list[Block]
    ) -> list[list[int]]:
        assert len(token_ids) == len(slots) == len(positions) == sum(len(block.drafts) + 1 for block in blocks)
        assert all(0 <= token < self.decoder.config.vocab_size for token in token_ids)
        assert max(positions) < self.decoder.capacity
        for block in blocks:
            rows = slice(block.first_row, block.first_row + len(block.drafts) + 1)
            assert len(set(slots[rows])) == 1
            assert block.drafts == tuple(token_ids[rows][1:])
        self.passes.append(Pass(token_ids, slots, positions, None))
        point = (len(blocks), len(token_ids), positions[0])
        visit = self.seen.get(point, 0)
        self.seen[point] = visit + 1
        extra = EXTRA_SECONDS[visit] if visit < len(EXTRA_SECONDS) else 0.0
        self._clock.advance(self._thread_seconds[torch.get_num_threads() - 1] + len(token_ids) / 1000.0 + extra)
        return [[0] for _ in blocks]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(time, "perf_counter", fake)
    return fake


@pytest.fixture(autouse=True)
def same_threads_after() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [((1.0, 0.94), 2), ((1.0, 0.97), 1), ((1.0, 1.4), 1), ((1.0, 1.2, 0.5), 3), ((1.0, 0.9, 0.88), 2)],
)
def test_one_more_thread_must_gain_five_percent(clock: FakeClock, seconds: tuple[float, ...], chosen: int) -> None:
    target = TimedTarget(clock, thread_seconds=seconds)
    assert choose_threads(target, len(seconds)) == chosen
    assert torch.get_num_threads() == chosen


def test_threads_are_chosen_within_a_short_context(clock: FakeClock) -> None:
    assert choose_threads(TimedTarget(clock, capacity=16), 1) == 1


def test_every_point_of_the_grid_is_measured_without_its_warm_up(clock: FakeClock) -> None:
    torch.set_num_threads(1)
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
    torch.set_num_threads(1)
    target = TimedTarget(clock, capacity=100)
    stats = calibrate(target, slots=3, seed=3, progress=lambda _: None)
    assert {cycle.load for cycle in stats} == {1, 2}
    assert max(max(batch.positions) for batch in target.passes) < 100
    assert calibrate(TimedTarget(clock, capacity=50), slots=3, seed=3, progress=lambda _: None) == ()


def test_the_order_is_shuffled_by_the_seed_alone(clock: FakeClock) -> None:
    torch.set_num_threads(1)
    orders = []
    for seed in (1, 1, 2):
        target = TimedTarget(clock)
        calibrate(target, slots=4, seed=seed, progress=lambda _: None)
        orders.append([(len(batch.token_ids), batch.positions[0]) for batch in target.passes])
    assert orders[0] == orders[1] != orders[2]

"""The scheduler as a state machine: any order of arrivals, admissions, first tokens and ends."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.blocks import Blocks, blocks_for
from engine.request import RunningSequence
from engine.scheduler import Scheduler
from tests.engine.scripted import submit

SLOTS, BLOCKS, CONTEXT_LIMIT = 3, 8, 96


class SchedulerMachine(RuleBasedStateMachine):
    """A model of who waits and who runs, beside the scheduler itself."""

    alive = Bundle("alive")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(Blocks(SLOTS, BLOCKS))
        self.keys = 0
        self.waiting: deque[RunningSequence] = deque()
        self.running: dict[int, RunningSequence] = {}
        self.now = 0.0

    @rule(target=alive, prompt=st.integers(1, 60), max_tokens=st.integers(1, 60))
    def arrive(self, prompt: int, max_tokens: int) -> RunningSequence:
        self.keys += 1
        sequence = RunningSequence(submit(self.keys, (1,) * prompt, max_tokens=max_tokens), (), CONTEXT_LIMIT)
        self.scheduler.add(sequence)
        self.waiting.append(sequence)
        return sequence

    @rule()
    def admit(self) -> None:
        self.now += 1.0
        held = sum(blocks_for(sequence.context_tokens) for sequence in self.running.values())
        expected = []
        taken = {sequence.slot for sequence in self.running.values()}
        while self.waiting and len(self.running) < SLOTS:
            needed = blocks_for(self.waiting[0].context_tokens)
            if held + needed > BLOCKS:
                break
            held += needed
            sequence = self.waiting.popleft()
            slot = min(set(range(SLOTS)) - taken)
            taken.add(slot)
            expected.append((sequence, slot))
            self.running[sequence.key] = sequence
        admitted = self.scheduler.admit(self.now)
        assert [(sequence, sequence.slot) for sequence in admitted] == expected, "first come, lowest slot"
        assert all(sequence.admitted_at == self.now for sequence in admitted)

    @rule()
    def first_token(self) -> None:
        if self.scheduler.prefilling:
            self.scheduler.start_decoding(self.scheduler.prefilling[0])

    @rule(sequence=consumes(alive))
    def end(self, sequence: RunningSequence) -> None:
        assert self.scheduler.find(sequence.key) is sequence
        self.scheduler.remove(sequence)
        assert self.scheduler.find(sequence.key) is None
        if self.running.pop(sequence.key, None) is None:
            self.waiting.remove(sequence)

    @invariant()
    def nothing_is_lost_or_shared(self) -> None:
        scheduler = self.scheduler
        scheduler.blocks.check()
        assert list(scheduler.waiting) == list(self.waiting)
        assert {sequence.key for sequence in (*scheduler.prefilling, *scheduler.decoding)} == set(self.running)
        slots = [sequence.slot for sequence in scheduler.decoding]
        assert slots == sorted(set(slots)), "decoding sequences are in rising order of slot"
        assert scheduler.blocks.free_slots == SLOTS - len(self.running)
        held = sum(blocks_for(sequence.context_tokens) for sequence in self.running.values())
        assert scheduler.blocks.free_blocks == BLOCKS - held
        assert scheduler.idle == (not self.waiting and not self.running)

    def teardown(self) -> None:
        for sequence in (*self.waiting, *self.running.values()):
            self.scheduler.remove(sequence)
        assert self.scheduler.idle
        assert (self.scheduler.blocks.free_slots, self.scheduler.blocks.free_blocks) == (SLOTS, BLOCKS)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_large_head_of_the_queue_is_not_overtaken() -> None:
    scheduler = Scheduler(Blocks(slots=4, blocks=4))
    large = RunningSequence(submit(1, (1,) * 40, max_tokens=24), (), CONTEXT_LIMIT)
    blocked = RunningSequence(submit(2, (1,) * 40, max_tokens=24), (), CONTEXT_LIMIT)
    small = RunningSequence(submit(3, (1,), max_tokens=1), (), CONTEXT_LIMIT)
    for sequence in (large, blocked, small):
        scheduler.add(sequence)
    assert scheduler.admit(1.0) == [large]
    assert scheduler.admit(2.0) == []
    scheduler.remove(large)
    assert scheduler.admit(3.0) == [blocked]

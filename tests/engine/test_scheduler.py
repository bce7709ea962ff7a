"""The scheduler as a state machine: any order of arrivals, admissions, cycles and ends."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from engine.blocks import BLOCK_TOKENS, Blocks, blocks_for
from engine.request import RunningSequence
from engine.scheduler import Scheduler
from tests.engine.scripted import decision, submit

SLOTS, BLOCKS, CONTEXT_LIMIT = 3, 8, 96


def sequence_of(key: int, prompt: int, max_tokens: int, cap: int = 0) -> RunningSequence:
    """Its text is its own: nothing is shared."""
    chosen = decision("ngram" if cap else "none", cap)
    return RunningSequence(submit(key, (key,) * prompt, max_tokens=max_tokens, chosen=chosen), CONTEXT_LIMIT)


class SchedulerMachine(RuleBasedStateMachine):
    """The loop around the scheduler, with what must hold after each of its steps."""

    alive = Bundle("alive")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(Blocks(SLOTS, BLOCKS))
        self.there: dict[int, RunningSequence] = {}
        self.admissions: dict[int, float] = {}
        self.keys = 0
        self.now = 0.0

    @property
    def running(self) -> list[RunningSequence]:
        return [*self.scheduler.prefilling, *self.scheduler.decoding]

    @property
    def free(self) -> int:
        return BLOCKS - sum(len(sequence.blocks) for sequence in self.running)

    @rule(target=alive, prompt=st.integers(1, 60), max_tokens=st.integers(1, 60), cap=st.integers(0, 17))
    def arrive(self, prompt: int, max_tokens: int, cap: int) -> RunningSequence:
        self.keys += 1
        sequence = sequence_of(self.keys, prompt, max_tokens, cap)
        self.scheduler.add(sequence)
        self.there[sequence.key] = sequence
        return sequence

    @rule()
    def admit(self) -> None:
        self.now += 1.0
        waiting, free, running = list(self.scheduler.waiting), self.free, list(self.running)
        expected: list[tuple[int, int]] = []
        for sequence in waiting:
            needed = blocks_for(min(len(sequence.tokens) + min(sequence.block_length, 16) + 1, sequence.context_tokens))
            growing = sum(len(other.blocks) < blocks_for(other.context_tokens) for other in running)
            growing += sum(needed_then < whole for needed_then, whole in expected)
            if len(running) + len(expected) == SLOTS or needed + growing > free:
                break
            free -= needed
            expected.append((needed, blocks_for(sequence.context_tokens)))
        admitted = self.scheduler.admit(self.now)
        assert admitted == waiting[: len(expected)], "first come, first served, as far as there is room"
        assert [len(sequence.blocks) for sequence in admitted] == [needed for needed, _ in expected]
        for sequence in admitted:
            assert sequence.admitted_at == self.admissions.setdefault(sequence.key, self.now)

    @rule()
    def prefill(self) -> None:
        if self.scheduler.prefilling:
            sequence = self.scheduler.prefilling[0]
            if not sequence.output_length:
                sequence.append([0], [])
            self.scheduler.start_decoding(sequence)
            if sequence.remaining == 0:
                self.end(sequence)

    @precondition(lambda self: self.scheduler.decoding)
    @rule(lengths=st.lists(st.integers(0, 16), min_size=SLOTS, max_size=SLOTS), kept=st.integers(0, 16))
    def cycle(self, lengths: list[int], kept: int) -> None:
        before, decoding = list(self.running), list(self.scheduler.decoding)
        wished = [
            max(0, min(length, sequence.remaining - 1)) for length, sequence in zip(lengths, decoding, strict=False)
        ]
        enough = self.free >= sum(
            max(0, blocks_for(len(sequence.tokens) + length) - len(sequence.blocks))
            for sequence, length in zip(decoding, wished, strict=True)
        )
        granted, preempted = self.scheduler.make_room(wished)
        assert len(granted) == len(self.scheduler.decoding)
        if enough:
            assert (granted, preempted) == (wished, [])
        by_arrival = sorted(before, key=lambda sequence: -sequence.key)
        assert preempted == by_arrival[: len(preempted)], "the latest go, the very latest first"
        assert len(preempted) < len(before), "somebody always gets on"
        if preempted:
            survivors = [sequence for sequence in before if sequence not in preempted[:-1]]
            assert (
                sum(
                    blocks_for(len(sequence.tokens)) if sequence in decoding else blocks_for_prefilling(sequence)
                    for sequence in survivors
                )
                > BLOCKS
            ), "with no drafts at all there was no room for one fewer"
            assert list(self.scheduler.waiting)[: len(preempted)] == preempted[::-1]
        wishes = dict(zip(map(id, decoding), wished, strict=True))
        for sequence, length in zip(tuple(self.scheduler.decoding), granted, strict=True):
            assert 0 <= length <= wishes[id(sequence)]
            assert len(sequence.tokens) + length <= len(sequence.blocks) * BLOCK_TOKENS
            if length < wishes[id(sequence)]:
                assert len(sequence.tokens) + length == len(sequence.blocks) * BLOCK_TOKENS, "no shorter than it must"
            _, finish = sequence.append([0] * (min(length, kept) + 1), [])
            if finish is not None:
                self.end(sequence)
            else:
                self.scheduler.blocks.fill(sequence.key, sequence.tokens, len(sequence.tokens) - 1)

    @rule(sequence=consumes(alive))
    def leave(self, sequence: RunningSequence) -> None:
        if sequence.key in self.there:
            self.end(sequence)

    def end(self, sequence: RunningSequence) -> None:
        assert self.scheduler.find(sequence.key) is sequence
        self.scheduler.remove(sequence)
        assert self.scheduler.find(sequence.key) is None
        del self.there[sequence.key]

    @invariant()
    def nothing_is_lost_and_the_order_is_that_of_arrival(self) -> None:
        scheduler = self.scheduler
        scheduler.check()
        everyone = [*self.running, *scheduler.waiting]
        assert {sequence.key: sequence for sequence in everyone} == self.there
        assert len(everyone) == len(self.there)
        in_order = [sequence.key for sequence in (*scheduler.decoding, *scheduler.prefilling, *scheduler.waiting)]
        assert in_order == sorted(in_order)
        assert scheduler.blocks.free_slots == SLOTS - len(self.running)
        assert scheduler.blocks.free_blocks == self.free
        assert scheduler.idle == (not self.there)

    def teardown(self) -> None:
        """Whatever has happened: everybody gets to its end."""
        for _ in range(60 * (len(self.there) + 1) * 4):
            self.admit()
            self.prefill()
            if self.scheduler.decoding:
                self.cycle([16] * SLOTS, 0)
            self.nothing_is_lost_and_the_order_is_that_of_arrival()
            if self.scheduler.idle:
                break
        assert self.scheduler.idle
        assert (self.scheduler.blocks.free_slots, self.scheduler.blocks.free_blocks) == (SLOTS, BLOCKS)


def blocks_for_prefilling(sequence: RunningSequence) -> int:
    """What it was given at admission, and holds until it decodes."""
    return blocks_for(min(len(sequence.tokens) + sequence.block_length + 1, sequence.context_tokens))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_large_head_of_the_queue_is_not_overtaken() -> None:
    scheduler = Scheduler(Blocks(slots=4, blocks=4))
    large, blocked, small = sequence_of(1, 40, 24), sequence_of(2, 40, 24), sequence_of(3, 1, 1)
    for sequence in (large, blocked, small):
        scheduler.add(sequence)
    assert scheduler.admit(1.0) == [large]
    assert scheduler.admit(2.0) == []
    scheduler.remove(large)
    assert scheduler.admit(3.0) == [blocked]


def test_blocks_are_given_up_by_drafts_before_anybody_is_preempted() -> None:
    scheduler = Scheduler(Blocks(slots=2, blocks=4))
    first, second = sequence_of(1, 15, 40, cap=16), sequence_of(2, 15, 40, cap=16)
    for sequence in (first, second):
        scheduler.add(sequence)
    assert scheduler.admit(1.0) == [first]
    first.append([0], [])
    scheduler.start_decoding(first)
    assert scheduler.make_room([16]) == ([16], [])
    assert scheduler.admit(2.0) == []
    scheduler.blocks.trim(1, 16)
    assert scheduler.admit(3.0) == [second]
    second.append([0], [])
    scheduler.start_decoding(second)
    assert scheduler.make_room([16, 16]) == ([16, 16], [])
    for sequence in (first, second):
        sequence.append([0], [])
    assert scheduler.make_room([16, 16]) == ([15, 15], [])
    first.append([0] * 16, [])
    assert scheduler.make_room([0, 16]) == ([0], [second])
    assert (second.blocks, second.prefilled, list(scheduler.waiting)) == ([], 0, [second])
    assert scheduler.preemptions == 1


def test_one_that_is_prefilled_is_preempted_before_any_that_decodes() -> None:
    scheduler = Scheduler(Blocks(slots=3, blocks=6))
    first, second, third = sequence_of(1, 15, 60), sequence_of(2, 15, 60), sequence_of(3, 20, 60)
    for sequence in (first, second, third):
        scheduler.add(sequence)
    assert scheduler.admit(1.0) == [first, second, third]
    for sequence in (first, second):
        sequence.append([0], [])
        scheduler.start_decoding(sequence)
    first.append([0] * 34, [])
    assert scheduler.make_room([0, 0]) == ([0, 0], [third])
    assert scheduler.decoding == [first, second]
    assert scheduler.prefilling == []

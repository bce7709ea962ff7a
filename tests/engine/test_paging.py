"""The loop with fewer blocks than the load wants: texts stay the same, and every block comes back.

Numbers in names are those of collected field reports.
"""

import random
from collections import Counter

import pytest

from engine.blocks import BLOCK_TOKENS, Blocks, blocks_for
from engine.faults import FAULT, NO_CHOICE
from engine.messages import AskStatus, Cancel, CycleDone, Redirect, Sampling, Submit
from kernels.sampling import Failure
from policies.stats import BlockEnd
from policies.types import MAX_BLOCK_LENGTH
from tests.engine.scripted import VOCABULARY, Rig, decision, ended_text, submit

CONTEXT_LIMIT = 96
WHOLE = CONTEXT_LIMIT // BLOCK_TOKENS
"""Blocks of one sequence at the context limit."""


def assert_as_alone(rig: Rig, message: Submit) -> None:
    """It has ended, with exactly the text that it gives alone in a cache of its own."""
    text, finish = ended_text(message, rig.context_limit)
    assert rig.delivered.tokens[message.request_key] == text
    assert rig.delivered.finished[message.request_key].reason is finish


def prompt_of(key: int, length: int) -> list[int]:
    """A text that no other key's begins with for long."""
    lot = random.Random(key)
    return [lot.randrange(VOCABULARY) for _ in range(length)]


@pytest.mark.parametrize("blocks", [WHOLE, WHOLE + 1, 2 * WHOLE - 1, 2 * WHOLE])
@pytest.mark.parametrize("block_length", [0, 1, 5, 16])
def test_report_42_a_cache_that_is_nearly_full_serves_many_requests_to_their_end(
    blocks: int, block_length: int
) -> None:
    rig = Rig(slots=8, blocks=blocks, context_limit=CONTEXT_LIMIT, chunk=20)
    messages = [
        submit(
            key,
            prompt_of(key, 1 + 7 * key % 80),
            max_tokens=CONTEXT_LIMIT,
            chosen=decision("foresight" if block_length else "none", block_length),
        )
        for key in range(1, 30)
    ]
    rig.run(*messages, steps=20_000)
    for message in messages:
        assert_as_alone(rig, message)
    assert rig.loop.scheduler.preemptions > 0
    rig.assert_nothing_is_held()


def test_report_38_a_sequence_preempted_in_mid_block_loses_its_drafts_and_nothing_of_its_text() -> None:
    rig = Rig(slots=2, blocks=WHOLE, context_limit=CONTEXT_LIMIT, chunk=100, right=10)
    first = submit(1, prompt_of(1, 30), max_tokens=60, chosen=decision("none", 0))
    second = submit(2, prompt_of(2, 17), max_tokens=60, chosen=decision("foresight", 6))
    rig.step(first, second)
    preempted_at = 0
    while not rig.loop.scheduler.preemptions:
        preempted_at = len(rig.delivered.tokens[2])
        rig.step()
    assert 1 < preempted_at < 60
    ends = [s.end for stats in rig.delivered.stats for s in stats.sequences if s.request_key == 2]
    assert BlockEnd.FULL in ends, "it was speculating"
    sequence = rig.loop.scheduler.find(2)
    assert sequence is not None
    assert (sequence.blocks, sequence.prefilled) == ([], 0)
    assert sequence.tokens == [*second.prompt, *rig.delivered.tokens[2]]
    assert list(rig.loop.scheduler.waiting) == [sequence]
    assert all(2 not in watched.kept for watched in rig.watched.values()), "no drafter holds anything of it"
    rig.run()
    for message in (first, second):
        assert_as_alone(rig, message)
    assert rig.target.first_choices == 2, "no first token is chosen again"
    told = sum(m.stats.preemptions for m in rig.delivered.messages if isinstance(m, CycleDone))
    assert told == rig.loop.status().preemptions == rig.loop.scheduler.preemptions
    rig.assert_nothing_is_held()


def test_the_preempted_wait_in_front_in_the_order_of_their_arrival() -> None:
    rig = Rig(slots=3, blocks=8, context_limit=CONTEXT_LIMIT, chunk=200)
    messages = [submit(key, prompt_of(key, 20), max_tokens=70) for key in (1, 2, 3, 4)]
    rig.step(*messages)
    order = [[sequence.key for sequence in rig.loop.scheduler.waiting]]
    while not rig.loop.idle:
        rig.step()
        order.append([sequence.key for sequence in rig.loop.scheduler.waiting])
    assert [2, 3, 4] in order
    assert all(waiting == sorted(waiting) for waiting in order)
    ended = [
        item.request_key
        for m in rig.delivered.messages
        if isinstance(m, CycleDone)
        for item in m.tokens
        if item.finished is not None
    ]
    assert ended[0] == 1, "the first to come is never preempted"


@pytest.mark.parametrize("block_length", range(1, MAX_BLOCK_LENGTH + 1))
def test_report_39_after_full_accepts_alone_the_text_is_the_plain_one(block_length: int) -> None:
    rig = Rig(context_limit=CONTEXT_LIMIT, right=10)
    message = submit(1, prompt_of(1, 9), max_tokens=80, chosen=decision("foresight", block_length))
    rig.run(message)
    assert_as_alone(rig, message)
    ends = Counter(sequence.end for stats in rig.delivered.stats for sequence in stats.sequences)
    assert ends[BlockEnd.FULL] > 0
    assert ends[BlockEnd.REJECTED] == 0


def test_report_43_rejected_positions_leave_no_block_behind() -> None:
    rig = Rig(slots=2, context_limit=CONTEXT_LIMIT)
    before = rig.blocks.free_blocks
    for key in range(1, 60):
        message = submit(key, prompt_of(key, 5), max_tokens=60, chosen=decision("wrong", MAX_BLOCK_LENGTH))
        rig.step(message)
        while not rig.loop.idle:
            rig.step()
            for sequence in rig.loop.scheduler.decoding:
                assert len(sequence.blocks) <= blocks_for(len(sequence.tokens) + MAX_BLOCK_LENGTH + 1)
        assert_as_alone(rig, message)
        assert rig.blocks.free_blocks == before
    assert all(sequence.accepted == 0 for stats in rig.delivered.stats for sequence in stats.sequences)
    rig.assert_nothing_is_held()


def test_report_44_a_hundred_clients_that_leave_in_mid_block_leave_nothing_behind() -> None:
    rig = Rig(slots=4, blocks=2 * WHOLE, context_limit=CONTEXT_LIMIT, chunk=8)
    lot = random.Random(44)
    drafters = ("ngram", "foresight", "wrong")
    moments: Counter[str] = Counter()
    stays = submit(1000, prompt_of(1000, 20), max_tokens=70, chosen=decision("foresight", 5))
    for key in range(1, 101):
        if key == 50:
            rig.step(stays)
        chosen = decision(drafters[key % 3], lot.randrange(1, MAX_BLOCK_LENGTH + 1))
        rig.step(submit(key, prompt_of(key % 7, 4 + key % 50), max_tokens=90, chosen=chosen))
        for _ in range(lot.randrange(6)):
            rig.step()
        victim = lot.randrange(max(1, key - 3), key + 1)
        for leaving in (victim, key):
            sequence = rig.loop.scheduler.find(leaving)
            if sequence is not None:
                moments["waits" if not sequence.blocks else "has output" if sequence.output_length else "prefills"] += 1
            rig.step(Cancel(leaving))
            assert all(leaving not in watched.kept for watched in rig.watched.values())
    rig.run()
    assert moments["has output"] > 30
    assert moments["prefills"] > 5
    assert_as_alone(rig, stays)
    rig.step(AskStatus(1))
    status = rig.delivered.statuses[-1]
    assert (status.running, status.waiting, status.free_slots, status.free_blocks) == (0, 0, 4, 2 * WHOLE)
    rig.assert_nothing_is_held()


def test_report_64_requests_in_a_quarter_of_the_cache_half_of_them_cancelled_end_as_they_do_alone() -> None:
    """Near the context limit too: prompts of limit - 1, limit - 2, ... limit - 17 tokens are among them."""
    rig = Rig(slots=64, blocks=64 * WHOLE // 4, context_limit=CONTEXT_LIMIT, chunk=500)
    lot = random.Random(64)
    drafters = ("none", "ngram", "foresight", "wrong")
    messages = []
    for key in range(1, 65):
        length = lot.randrange(1, 30) if key <= 47 else CONTEXT_LIMIT + 47 - key
        prompt = prompt_of(key if key <= 47 else key % 5, length)
        sampling = Sampling(seed=key % 11, choice=key % 2, frequency_penalty=0.5 if key % 4 == 0 else 0.0)
        chosen = decision(drafters[key // 2 % 4], lot.randrange(MAX_BLOCK_LENGTH + 1))
        stops = ("bca",) if key % 6 == 0 else ()
        messages.append(submit(key, prompt, max_tokens=90, sampling=sampling, stops=stops, chosen=chosen))
    leaving = lot.sample(range(1, 65), 32)
    stay = [message for message in messages if message.request_key not in leaving]
    rig.step(*messages)
    while leaving:
        rig.step(*(Cancel(leaving.pop()) for _ in range(lot.randrange(2))))
    rig.run()
    for message in stay:
        assert_as_alone(rig, message)
    for key, tokens in rig.delivered.tokens.items():
        assert tokens == ended_text(messages[key - 1], CONTEXT_LIMIT)[0][: len(tokens)]
    assert len(rig.delivered.finished) < 50, "many left before their end"
    assert rig.loop.scheduler.preemptions > 0
    assert max(stats.load for stats in rig.delivered.stats) > 16
    rig.assert_nothing_is_held()


def test_drafts_are_shortened_to_the_blocks_that_are_free() -> None:
    rig = Rig(slots=2, blocks=6, context_limit=64, chunk=100, right=10)
    rig.step(*(submit(key, prompt_of(key, 31), max_tokens=17, chosen=decision("foresight", 16)) for key in (1, 2)))
    assert [s.requested for s in rig.delivered.stats[0].sequences] == [15, 15]
    rig.run()
    shortened = Rig(slots=2, blocks=5, context_limit=64, chunk=100, right=0)
    messages = [submit(key, prompt_of(key, 24), max_tokens=40, chosen=decision("wrong", 16)) for key in (1, 2)]
    shortened.run(*messages)
    asked = {s.requested for stats in shortened.delivered.stats for s in stats.sequences}
    assert len(asked) > 3
    for message in messages:
        assert_as_alone(shortened, message)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48, 60])
def test_the_same_prompt_is_computed_once_and_its_last_token_always(length: int) -> None:
    rig = Rig(context_limit=CONTEXT_LIMIT)
    first = submit(1, prompt_of(1, length), sampling=Sampling(seed=1))
    second = submit(2, prompt_of(1, length), sampling=Sampling(seed=2), chosen=decision("foresight", 8))
    rig.run(first)
    computed = rig.target.prefilled
    assert computed == length
    rig.run(second)
    assert rig.target.prefilled - computed == length - (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS >= 1
    for message in (first, second):
        assert_as_alone(rig, message)
    assert rig.loop.status().reused_tokens == (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert rig.delivered.reused == {1: 0, 2: (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS}


@pytest.mark.parametrize("block_length", [1, 5, 16])
def test_report_41_as_much_of_the_cache_is_taken_over_with_drafts_as_without(block_length: int) -> None:
    reused = []
    for chosen in (decision("none", 0), decision("foresight", block_length)):
        rig = Rig(slots=2, context_limit=CONTEXT_LIMIT)
        for turn in range(6):
            # Three prompts that begin alike, each asked twice, and between them others.
            prompt = [*prompt_of(1, 40), *prompt_of(10 + turn % 3, 20)]
            rig.run(submit(turn + 1, prompt, max_tokens=20, sampling=Sampling(seed=turn), chosen=chosen))
        reused.append(rig.loop.status().reused_tokens)
        rig.assert_nothing_is_held()
    assert reused[1] == reused[0] > 0


def test_the_next_turn_of_a_conversation_reuses_the_output_of_the_last_one() -> None:
    rig = Rig(context_limit=CONTEXT_LIMIT)
    first = submit(1, prompt_of(1, 20), max_tokens=30, chosen=decision("foresight", 7))
    rig.run(first)
    turn = submit(2, [*first.prompt, *rig.delivered.tokens[1], 3, 1], max_tokens=20, chosen=decision("ngram", 4))
    computed = rig.target.prefilled
    rig.run(turn)
    # 49 positions of the first turn are computed: its last token never was.
    assert rig.target.prefilled - computed == len(turn.prompt) - 48
    assert_as_alone(rig, turn)


def test_requests_that_arrive_together_compute_the_prompt_that_they_share_once() -> None:
    rig = Rig(slots=4, context_limit=CONTEXT_LIMIT, chunk=7)
    shared = prompt_of(1, 48)
    messages = [submit(key, [*shared, key % VOCABULARY, key % 2], sampling=Sampling(seed=key)) for key in range(1, 5)]
    rig.run(*messages)
    for message in messages:
        assert_as_alone(rig, message)
    assert rig.target.prefilled == 48 + 4 * 2
    assert rig.delivered.reused == {1: 0, 2: 48, 3: 48, 4: 48}


@pytest.mark.parametrize("length", range(17, 32))
def test_who_returns_after_a_preemption_finds_what_is_left_of_its_own_text(length: int) -> None:
    rig = Rig(slots=2, blocks=WHOLE, context_limit=CONTEXT_LIMIT, chunk=100)
    first = submit(1, prompt_of(1, length), max_tokens=96 - length)
    second = submit(2, prompt_of(2, 33), max_tokens=30)
    rig.step(first, second)
    while not rig.loop.scheduler.preemptions:
        rig.step()
    sequence = rig.loop.scheduler.find(2)
    assert sequence is not None
    held = len(sequence.tokens) - 1
    computed = rig.target.prefilled
    rig.run(Cancel(1))
    # The first sequence has taken the last block, or the one before it.
    assert held % BLOCK_TOKENS <= rig.target.prefilled - computed <= held % BLOCK_TOKENS + BLOCK_TOKENS < held
    assert_as_alone(rig, second)
    rig.assert_nothing_is_held()


def test_a_cache_full_of_old_texts_makes_room_for_new_ones() -> None:
    rig = Rig(slots=2, blocks=WHOLE + 2, context_limit=CONTEXT_LIMIT)
    for key in range(1, 12):
        message = submit(key, prompt_of(key, 60), max_tokens=30, chosen=decision("foresight", 4))
        rig.run(message)
        assert_as_alone(rig, message)
    assert rig.loop.status().kept_blocks > 0
    assert rig.loop.status().free_blocks == WHOLE + 2


def test_a_decision_with_a_longer_block_after_admission_finds_its_room() -> None:
    rig = Rig(slots=2, blocks=WHOLE, context_limit=CONTEXT_LIMIT, chunk=100, right=10)
    message = submit(1, prompt_of(1, 15), max_tokens=70)
    rig.step(message)
    rig.run(Redirect(1, decision("foresight", MAX_BLOCK_LENGTH)))
    assert_as_alone(rig, message)
    assert max(s.requested for stats in rig.delivered.stats for s in stats.sequences) == MAX_BLOCK_LENGTH


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("fault", [FAULT, NO_CHOICE], ids=["raises", "not-a-number"])
def test_a_fault_in_one_sequence_ends_it_with_a_sentence_and_no_other(phase: str, fault: Failure) -> None:
    rig = Rig(slots=3, context_limit=CONTEXT_LIMIT, chunk=100)
    messages = [submit(key, prompt_of(key, 20), max_tokens=40, chosen=decision("foresight", 4)) for key in (1, 2, 3)]
    seeds = rig.target.broken_seeds if fault is FAULT else rig.target.speechless_seeds
    if phase == "prefill":
        seeds.add(2)
    rig.step(*messages)
    seeds.add(2)
    rig.run()
    assert rig.delivered.failures == {2: fault.message}
    for message in (messages[0], messages[2]):
        assert_as_alone(rig, message)
    sent = rig.delivered.tokens.get(2, [])
    assert sent == ended_text(messages[1], CONTEXT_LIMIT)[0][: len(sent)]
    assert bool(sent) == (phase == "decode")
    assert 2 not in rig.delivered.finished
    assert all(2 in watched.releases for watched in rig.watched.values())
    rig.assert_nothing_is_held()
    rig.target.broken_seeds.clear()
    rig.target.speechless_seeds.clear()
    after = submit(4, messages[1].prompt, max_tokens=40, sampling=Sampling(seed=2))
    rig.run(after)
    assert_as_alone(rig, after)


class Counted(Blocks):
    """Counts how often the tables are looked at."""

    def __init__(self, slots: int, blocks: int) -> None:
        super().__init__(slots, blocks)
        self.covered = 0

    def cover(self, request_key: int, positions: int) -> bool:
        self.covered += 1
        return super().cover(request_key, positions)


def test_a_plain_cycle_asks_for_blocks_only_at_the_edge_of_one() -> None:
    rig = Rig(slots=4, context_limit=CONTEXT_LIMIT, chunk=100)
    counted = Counted(4, 4 * WHOLE)
    rig.loop.scheduler.blocks = rig.blocks = counted
    messages = [submit(key, prompt_of(key, 16), max_tokens=65) for key in (1, 2, 3, 4)]
    rig.run(*messages)
    for message in messages:
        assert_as_alone(rig, message)
    assert counted.covered == 4 * 3, "five blocks hold the 80 positions, and admission gave the first two"

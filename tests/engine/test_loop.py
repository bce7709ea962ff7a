"""The loop over a target whose text is known: the text never depends on speculation, load, chunks or policies."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import BLOCK_TOKENS
from engine.messages import (
    AskStatus,
    Cancel,
    CycleDone,
    DraftersAre,
    LoadDrafter,
    Redirect,
    Sampling,
    SetCyclePolicy,
    Shutdown,
    Submit,
    ToEngine,
    UnloadDrafter,
)
from policies.cycle_policy import INITIAL_CYCLE_POLICY, Copier, CyclePolicy, Outlook, PassCost, Survival, Window
from policies.stats import BlockEnd, CycleStats, DraftTiming, SequenceStats, ShadowStats
from policies.types import MAX_BLOCK_LENGTH, Decision
from tests.engine.scripted import VOCABULARY, Rig, decision, ended_text, submit

DRAFTERS = ("none", "ngram", "foresight", "wrong")
ROUTES = ("chat", "story")
CONTEXT_LIMIT = 96

LEARNED = dataclasses.replace(
    INITIAL_CYCLE_POLICY,
    version=1,
    default_survivals={name: Survival(((0.9, 0.8, 0.7), (0.7, 0.5, 0.3, 0.2), (0.1,))) for name in DRAFTERS},
    cost=PassCost((1, 4, 16), (1.0, 1.1, 2.0), 0.01, 0.0001),
)
"""A policy under which unforced decisions speculate as far as they are worth it."""

decisions = st.builds(
    decision,
    st.sampled_from(DRAFTERS),
    st.integers(0, MAX_BLOCK_LENGTH + 4),
    forced=st.booleans(),
    route=st.sampled_from(ROUTES),
    shadows=st.sets(st.sampled_from(DRAFTERS)),
)
samplings = st.builds(
    Sampling,
    seed=st.integers(0, 3),
    choice=st.integers(0, 1),
    frequency_penalty=st.sampled_from((0.0, 0.0, 0.5)),
)
bodies = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
        "max_tokens": st.integers(1, 70),
        "sampling": samplings,
        "stop_token_ids": st.sampled_from(((), (), (5,))),
        "stops": st.sampled_from(((), (), ("bcbc",), ("é", "a a"), ("bca",))),
        "chosen": decisions,
    }
)
CERTAIN = Outlook((1.0,) * MAX_BLOCK_LENGTH, (1.0,) * MAX_BLOCK_LENGTH)
NOTHING = Outlook((), ())
COPIERS = {
    ("chat", "en"): Copier("ngram", 3, (NOTHING, NOTHING, CERTAIN)),
    ("story", "en"): Copier("ngram", 9, (NOTHING, CERTAIN)),
}
"""What matched one or two tokens is not taken in a chat."""
COPYING_VERSION = 2
"""Of every policy with these copiers."""
policies = st.builds(
    lambda kill, window, plain, killed, hold, copiers: dataclasses.replace(
        LEARNED,
        version=COPYING_VERSION if copiers else LEARNED.version,
        kill=kill,
        window=Window(window, plain),
        killed_routes=frozenset(killed),
        hold=hold,
        copiers=copiers,
    ),
    st.sampled_from((False, False, True)),
    st.integers(0, 2),
    st.sampled_from((False, False, True)),
    st.sampled_from(((), (), ("chat",), ROUTES)),
    st.sampled_from((False, False, True)),
    st.sampled_from(({}, COPIERS, COPIERS)),
)
events = st.one_of(
    policies.map(SetCyclePolicy),
    st.tuples(st.integers(1, 6), decisions).map(lambda pair: Redirect(*pair)),
)
scripts = st.lists(st.tuples(st.integers(0, 40), events), max_size=8)


@settings(max_examples=120, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 20), bodies), min_size=1, max_size=6),
    script=scripts,
    cancels=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=2),
    slots=st.integers(1, 4),
    chunk=st.integers(1, 50),
    blocks=st.integers(CONTEXT_LIMIT // BLOCK_TOKENS, 24),
)
def test_no_order_of_events_changes_a_text_or_loses_a_block(
    requests: list[tuple[int, dict[str, object]]],
    script: list[tuple[int, ToEngine]],
    cancels: list[tuple[int, int]],
    slots: int,
    chunk: int,
    blocks: int,
) -> None:
    rig = Rig(slots=slots, chunk=chunk, context_limit=CONTEXT_LIMIT, blocks=blocks)
    submits = {key: submit(key, **body) for key, (_, body) in enumerate(requests, start=1)}  # type: ignore[arg-type]
    timed: list[tuple[int, ToEngine]] = [(step, submits[key]) for key, (step, _) in enumerate(requests, start=1)]
    timed += [*script, *((step, Cancel(key)) for step, key in cancels)]
    timed.sort(key=lambda pair: pair[0])
    switches = play(rig, timed)

    rig.assert_nothing_is_held()
    cancelled = {key for _, key in cancels}
    for key, message in submits.items():
        text, finish = ended_text(message, CONTEXT_LIMIT)
        emitted = rig.delivered.tokens.get(key, [])
        finished = rig.delivered.finished.get(key)
        if finished is None:
            assert key in cancelled
            assert emitted == text[: len(emitted)]
            continue
        assert (emitted, finished.reason) == (text, finish)
        assert all(watched.observed[key] == text for watched in rig.watched.values())
        check_totals(rig, key)
    for stats in rig.delivered.stats:
        check_cycle(stats)
    assert [sum(lengths) for lengths in rig.target.passes] == [
        sum(sequence.verified for sequence in stats.sequences) for stats in rig.delivered.stats
    ]
    assert [stats.first_after_switch for stats in rig.delivered.stats] == switches
    for key in submits:
        check_shadows(rig, key, whole=key in rig.delivered.finished)


def play(rig: Rig, timed: Sequence[tuple[int, ToEngine]]) -> list[bool]:
    """Step through the script and to the end; for each decoding cycle, whether a window began before it."""
    switches: list[bool] = []
    window, switched = INITIAL_CYCLE_POLICY.window, False
    left = list(timed)
    for step in itertools.count():
        due = [message for when, message in left if when <= step]
        left = [(when, message) for when, message in left if when > step]
        for message in due:
            if isinstance(message, SetCyclePolicy):
                switched = switched or message.policy.window != window
                window = message.policy.window
        before = len(rig.delivered.stats)
        rig.step(*due)
        if len(rig.delivered.stats) > before:
            switches.append(switched)
            switched = False
        if not left and rig.loop.idle:
            return switches
        assert step < 2000
    raise AssertionError("unreachable")


def check_cycle(stats: CycleStats) -> None:
    """What must hold of every cycle, whatever it did."""
    assert stats.load == len(stats.sequences)
    assert stats.tokens == stats.load + sum(sequence.verified for sequence in stats.sequences)
    assert stats.cycle_seconds >= stats.verify_seconds >= 0.0
    assert stats.cycle_seconds >= stats.verify_seconds + stats.copying_seconds + sum(stats.draft_seconds.values())
    for sequence in stats.sequences:
        assert (
            MAX_BLOCK_LENGTH >= sequence.requested >= sequence.proposed >= sequence.verified >= sequence.accepted >= 0
        )
        assert (sequence.confidence == 0) == (sequence.proposed == 0)
        match sequence.end:
            case BlockEnd.PLAIN:
                assert (sequence.verified, sequence.accepted, sequence.emitted) == (0, 0, 1)
            case BlockEnd.FULL:
                assert sequence.accepted == sequence.verified > 0
                assert sequence.emitted == sequence.accepted + 1
            case BlockEnd.REJECTED:
                assert sequence.accepted < sequence.verified
                assert sequence.emitted == sequence.accepted + 1
            case BlockEnd.CENSORED:
                assert 1 <= sequence.emitted == sequence.accepted
        if stats.killed or stats.window.plain:
            assert sequence.requested == 0


def check_totals(rig: Rig, key: int) -> None:
    """A sequence's own totals are the sums of its cycles, and its cycles emitted all but its first token."""
    cycles = [sequence for stats in rig.delivered.stats for sequence in stats.sequences if sequence.request_key == key]
    finished = rig.delivered.finished[key]
    assert 1 + sum(cycle.emitted for cycle in cycles) == len(rig.delivered.tokens[key])
    assert finished.cycles == len(cycles)
    assert finished.proposed == sum(cycle.proposed for cycle in cycles)
    assert finished.verified == sum(cycle.verified for cycle in cycles)
    assert finished.accepted == sum(cycle.accepted for cycle in cycles)
    rejected = [cycle.accepted for cycle in cycles if cycle.end is BlockEnd.REJECTED]
    assert finished.rejected_at == tuple(rejected.count(place) for place in range(max(rejected, default=-1) + 1))


def check_shadows(rig: Rig, key: int, *, whole: bool) -> None:
    """Shadows equal what the final text says of the proposals that were not verified, whoever made them."""
    text = rig.delivered.tokens.get(key, [])
    expected: list[tuple[str, int, int, int, int, bool]] = []
    cycles = [(stats, one) for stats in rig.delivered.stats for one in stats.sequences if one.request_key == key]
    for name, watched in rig.watched.items():
        offers = {offer.output_length: offer for offer in watched.offers if offer.request_key == key}
        position, decided_at = 1, 0
        for stats, sequence in cycles:
            offer = offers.get(position)
            own = sequence.drafter == name and sequence.requested > 0
            if offer is not None:
                assert not stats.killed, "nothing proposes under a kill switch"
                assert not stats.window.plain, "a plain window measures plain"
                assert own or position > decided_at or may_copy(stats, sequence, name), "one shadow at a time"
            silent_block = own and (sequence.verified > 0 or sequence.proposed == 0)
            if offer is not None and not silent_block and position > decided_at:
                drafts = offer.proposal.tokens
                matched = 0
                while matched < len(drafts) and text[position + matched : position + matched + 1] == [drafts[matched]]:
                    matched += 1
                decided_at = position + matched
                censored = decided_at >= len(text)
                if whole or not censored:
                    expected.append((name, offer.asked, len(drafts), matched, offer.proposal.confidence, censored))
            position += sequence.emitted
    assert sorted(describe(shadow) for shadow in shadows_of(rig, key)) == sorted(expected)


def may_copy(stats: CycleStats, sequence: SequenceStats, drafter: str) -> bool:
    """Whether `drafter` is a copier of the sequence's context, which is asked in every cycle: what it offers may be
    taken. What is not taken is no second shadow."""
    copier = COPIERS[sequence.context.route, sequence.context.language]
    copying = stats.policy_version == COPYING_VERSION and stats.load <= copier.most_load
    return copying and copier.drafter == drafter != sequence.drafter


def shadows_of(rig: Rig, key: int) -> list[ShadowStats]:
    return [shadow for stats in rig.delivered.stats for shadow in stats.shadows if shadow.request_key == key]


def describe(shadow: ShadowStats) -> tuple[str, int, int, int, int, bool]:
    return (
        shadow.drafter,
        shadow.requested,
        shadow.proposed,
        shadow.matched,
        shadow.confidence,
        shadow.censored,
    )


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("block_length", range(MAX_BLOCK_LENGTH + 1))
def test_every_block_length_and_drafter_gives_the_same_text(drafter: str, block_length: int) -> None:
    rig = Rig()
    message = submit(1, max_tokens=60, chosen=decision(drafter, block_length))
    rig.run(message)
    assert rig.delivered.tokens[1] == ended_text(message, rig.context_limit)[0]
    accepted = rig.delivered.finished[1].accepted
    assert accepted == 0 if drafter in ("none", "wrong") or block_length == 0 else accepted > 0


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 13, 29, 30, 31, 1000])
def test_every_prefill_chunk_gives_the_same_text(chunk: int) -> None:
    rig = Rig(chunk=chunk)
    messages = [submit(key, [(key * place) % VOCABULARY for place in range(30)]) for key in (1, 2)]
    rig.run(*messages)
    for message in messages:
        assert rig.delivered.tokens[message.request_key] == ended_text(message, rig.context_limit)[0]
    stats = [m.stats for m in rig.delivered.messages if isinstance(m, CycleDone)]
    assert sum(one.prefill_tokens + one.reused_tokens for one in stats) == 60
    assert max(one.prefill_tokens for one in stats) == min(chunk, 60)


def test_report_16_a_seeds_text_is_the_same_alone_and_in_a_batch_that_changes_around_it() -> None:
    message = submit(1, max_tokens=50, chosen=decision("foresight", 5))
    alone, crowded = Rig(), Rig()
    alone.run(message)
    crowded.step(message)
    for key in range(2, 12):
        crowded.step(submit(key, (key % VOCABULARY,) * key, max_tokens=key, chosen=decision("ngram", key)))
    crowded.run()
    assert crowded.delivered.tokens[1] == alone.delivered.tokens[1]
    assert max(stats.load for stats in crowded.delivered.stats) == 4


def test_report_58_a_block_length_that_changes_in_every_cycle_gives_the_text_of_a_fixed_one() -> None:
    rig = Rig()
    message = submit(1, max_tokens=80, chosen=decision("foresight", 4))
    rig.step(message)
    lengths = itertools.cycle((1, 16, 0, 3, 9, 2, 12))
    while not rig.loop.idle:
        rig.step(Redirect(1, decision("foresight", next(lengths))))
    assert len({stats.sequences[0].requested for stats in rig.delivered.stats}) > 4
    fixed = Rig()
    fixed.run(message)
    assert rig.delivered.tokens[1] == fixed.delivered.tokens[1] == ended_text(message, rig.context_limit)[0]


@settings(max_examples=40, deadline=None)
@given(
    drafted=st.lists(st.tuples(st.sampled_from(DRAFTERS), st.integers(0, 20)), min_size=1, max_size=6),
    right=st.integers(0, 10),
    blocks=st.integers(CONTEXT_LIMIT // BLOCK_TOKENS, 24),
)
def test_report_46_acceptance_is_never_above_one(drafted: list[tuple[str, int]], right: int, blocks: int) -> None:
    rig = Rig(right=right, blocks=blocks)
    rig.run(*(submit(key, max_tokens=50, chosen=decision(*pair)) for key, pair in enumerate(drafted, start=1)))
    for stats in rig.delivered.stats:
        check_cycle(stats)
    for finished in rig.delivered.finished.values():
        assert 0 <= finished.accepted <= finished.verified <= finished.proposed


def test_each_sequence_of_a_cycle_may_have_its_own_drafter_and_block_length() -> None:
    rig = Rig(chunk=100)
    asked = {1: ("ngram", 3), 2: ("foresight", 7), 3: ("wrong", 1), 4: ("none", 0)}
    rig.step(*(submit(key, max_tokens=60, chosen=decision(*pair)) for key, pair in asked.items()))
    sequences = rig.delivered.stats[0].sequences
    assert {s.request_key: (s.drafter, s.requested) for s in sequences} == asked
    assert set(rig.delivered.stats[0].draft_seconds) == {"ngram", "foresight", "wrong"}


def kill_all() -> CyclePolicy:
    return dataclasses.replace(LEARNED, version=2, kill=True)


def plain_window() -> CyclePolicy:
    return dataclasses.replace(LEARNED, version=2, window=Window(1, plain=True))


def kill_the_route() -> CyclePolicy:
    return dataclasses.replace(LEARNED, version=2, killed_routes=frozenset({"chat"}))


@pytest.mark.parametrize("policy", [kill_all(), plain_window(), kill_the_route()], ids=["kill", "window", "route"])
def test_a_kill_switch_and_a_plain_window_are_in_force_in_the_very_next_cycle(policy: CyclePolicy) -> None:
    rig = Rig()
    rig.step(submit(1, max_tokens=90, chosen=decision("foresight", 4)))
    rig.step()
    assert rig.delivered.stats[-1].sequences[0].requested == 4
    calls = rig.watched["foresight"].calls
    rig.step(SetCyclePolicy(policy))
    stats = rig.delivered.stats[-1]
    assert (stats.policy_version, stats.killed, stats.window) == (2, policy.kill, policy.window)
    assert (stats.sequences[0].requested, stats.sequences[0].end) == (0, BlockEnd.PLAIN)
    assert rig.watched["foresight"].calls == calls, "nothing is drafted either"
    rig.step(SetCyclePolicy(dataclasses.replace(LEARNED, version=3, window=Window(2, plain=False))))
    assert rig.delivered.stats[-1].sequences[0].requested == 4


def test_the_kill_switch_of_a_route_leaves_the_others_alone() -> None:
    rig = Rig(chunk=100)
    rig.step(
        SetCyclePolicy(kill_the_route()),
        submit(1, max_tokens=60, chosen=decision("foresight", 4, route="chat")),
        submit(2, max_tokens=60, chosen=decision("foresight", 4, route="story")),
    )
    assert [sequence.requested for sequence in rig.delivered.stats[0].sequences] == [0, 4]
    assert not rig.delivered.stats[0].killed


def test_the_first_cycle_of_a_window_is_flagged_once_and_a_prefill_does_not_use_it_up() -> None:
    rig = Rig(chunk=2)
    rig.step(submit(1, (1,) * 9, max_tokens=60), SetCyclePolicy(plain_window()))
    while not rig.delivered.stats:
        rig.step()
    rig.step()
    rig.step(SetCyclePolicy(dataclasses.replace(plain_window(), version=3)))
    rig.step(SetCyclePolicy(dataclasses.replace(LEARNED, version=4, window=Window(2, plain=False))))
    rig.step()
    flags = [m.stats.first_after_switch for m in rig.delivered.messages if isinstance(m, CycleDone)]
    assert flags == [False] * 4 + [True, False, False, True, False]


def test_a_redirect_changes_the_decision_of_a_running_sequence_and_not_its_text() -> None:
    rig = Rig()
    message = submit(1, max_tokens=60, chosen=decision("foresight", 4))
    rig.step(message)
    rig.step(Redirect(1, decision("ngram", 2, route="story")), Redirect(77, decision()))
    sequence = rig.delivered.stats[-1].sequences[0]
    assert (sequence.drafter, sequence.requested, sequence.context.route) == ("ngram", 2, "story")
    rig.step(Redirect(1, decision()))
    assert rig.delivered.stats[-1].sequences[0].requested == 0
    rig.run()
    assert rig.delivered.tokens[1] == ended_text(message, rig.context_limit)[0]


def test_cancelling_frees_slot_and_blocks_at_once_while_waiting_prefilling_and_decoding() -> None:
    rig = Rig(slots=2, chunk=10)
    decoding = submit(1, (1,) * 5, max_tokens=80, chosen=decision("ngram", 4))
    prefilling = submit(2, (1,) * 50, max_tokens=20, chosen=decision("ngram", 4))
    waiting = submit(3, max_tokens=20)
    rig.step(decoding, prefilling, waiting)
    rig.step(AskStatus(1))
    for serial, key in enumerate((3, 2, 1), start=2):
        rig.step(Cancel(key), Cancel(key), AskStatus(serial))
    counts = [(status.running, status.waiting, status.free_slots) for status in rig.delivered.statuses]
    assert counts == [(2, 1, 0), (2, 0, 0), (1, 0, 1), (0, 0, 2)]
    assert rig.delivered.statuses[-1].free_blocks == rig.blocks.blocks
    assert rig.loop.idle
    assert not rig.delivered.finished
    rig.assert_nothing_is_held()


def test_a_cancelled_sequence_sends_nothing_more_and_its_slot_serves_the_next_one() -> None:
    rig = Rig(slots=1)
    first = submit(1, (2,) * 20, max_tokens=70, chosen=decision("foresight", 6))
    second = submit(2, (1, 2), max_tokens=70, chosen=decision("foresight", 6))
    rig.step(first, second)
    for _ in range(4):
        rig.step()
    sent = list(rig.delivered.tokens[1])
    rig.run(Cancel(1))
    assert rig.delivered.tokens[1] == sent
    assert rig.delivered.tokens[2] == ended_text(second, rig.context_limit)[0]


@pytest.mark.parametrize("prompt_length", range(CONTEXT_LIMIT - MAX_BLOCK_LENGTH - 2, CONTEXT_LIMIT))
def test_report_35_blocks_are_shortened_near_the_context_limit(prompt_length: int) -> None:
    rig = Rig(context_limit=CONTEXT_LIMIT, right=10)
    message = submit(1, (1,) * prompt_length, max_tokens=1000, chosen=decision("foresight", MAX_BLOCK_LENGTH))
    rig.run(message)
    text, finish = ended_text(message, CONTEXT_LIMIT)
    assert (rig.delivered.tokens[1], rig.delivered.finished[1].reason) == (text, finish)
    assert len(text) == CONTEXT_LIMIT - prompt_length
    left = len(text) - 1
    for stats in rig.delivered.stats:
        # A block of K emits up to K + 1 tokens.
        assert stats.sequences[0].requested == min(MAX_BLOCK_LENGTH, left - 1)
        left -= stats.sequences[0].emitted


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (submit(1, ()), "The prompt has no tokens; give at least one."),
        (
            submit(1, (1,) * CONTEXT_LIMIT),
            "The prompt has 96 tokens; the context limit is 96 with room for one more.",
        ),
        (submit(1, max_tokens=0), "max_tokens is 0; give at least 1."),
        (
            submit(1, chosen=decision("oracle", 4)),
            "The decision names the drafter 'oracle'; this engine has none, ngram, foresight, wrong.",
        ),
        (
            submit(1, (1,) * 60, max_tokens=40),
            "The sequence may need 96 tokens of context, more than the KV cache holds in all.",
        ),
        (
            submit(1, stops=("a", "")),
            "The stop string '' is empty or not valid Unicode; give text that can be written.",
        ),
        (
            submit(1, stops=("\ud800",)),
            "The stop string '\\ud800' is empty or not valid Unicode; give text that can be written.",
        ),
    ],
)
def test_a_sequence_that_cannot_run_is_refused_in_one_sentence(message: Submit, sentence: str) -> None:
    rig = Rig(context_limit=CONTEXT_LIMIT, blocks=CONTEXT_LIMIT // BLOCK_TOKENS - 1)
    healthy = submit(2)
    rig.run(message, healthy)
    assert rig.delivered.failures == {1: sentence}
    assert rig.delivered.tokens[2] == ended_text(healthy, CONTEXT_LIMIT)[0]
    rig.assert_nothing_is_held()


def test_token_bytes_are_loaded_once_and_only_for_stop_strings() -> None:
    rig = Rig()
    rig.run(submit(1), submit(2, stop_token_ids=(4,)))
    assert rig.byte_loads == 0
    rig.run(submit(3, stops=("zz",)), submit(4, stops=("y",)))
    assert rig.byte_loads == 1


def test_nothing_is_delivered_by_a_step_that_did_nothing() -> None:
    rig = Rig()
    rig.step()
    rig.step(SetCyclePolicy(LEARNED))
    assert rig.delivered.messages == []
    rig.step(AskStatus(5))
    assert [status.policy_version for status in rig.delivered.statuses] == [1]


def test_a_step_without_decoding_reports_its_prefill_and_no_load() -> None:
    rig = Rig(slots=1, chunk=10)
    rig.step(submit(1, (1,) * 25), submit(2))
    message = rig.delivered.messages[-1]
    assert isinstance(message, CycleDone)
    assert (message.tokens, message.stats.load, message.stats.cycle) == ((), 0, 0)
    assert (message.stats.prefill_tokens, message.stats.waiting) == (10, 1)


def test_shutdown_is_seen_after_the_step() -> None:
    rig = Rig()
    rig.step(submit(1), Shutdown())
    assert rig.loop.stopping


def test_an_unforced_decision_does_not_speculate_before_the_costs_are_known() -> None:
    rig = Rig()
    unforced: Decision = decision("foresight", 6, forced=False)
    rig.step(submit(1, max_tokens=90, chosen=unforced))
    rig.step()
    assert rig.delivered.stats
    assert all(s.requested == 0 for stats in rig.delivered.stats for s in stats.sequences)
    rig.step(SetCyclePolicy(LEARNED))
    rig.run()
    assert sum(s.verified for stats in rig.delivered.stats for s in stats.sequences) > 0


class BrokenShelf:
    """A set of drafters in which nothing can be changed, for reasons that nobody foresaw."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}

    def time(self, names: Iterable[str]) -> tuple[DraftTiming, ...]:
        raise AssertionError("nothing was loaded")

    def load(self, source: str) -> None:
        raise MemoryError(source)

    def unload(self, name: str) -> None:
        raise RuntimeError(name)


def test_a_drafter_that_fails_to_load_in_an_unforeseen_way_costs_no_request() -> None:
    rig = Rig()
    rig.loop._loaded = BrokenShelf()
    rig.step(submit(1, max_tokens=40, chosen=decision("foresight", 4)))
    rig.step(LoadDrafter(7, "broken"), UnloadDrafter(8, "foresight"))
    rig.run()
    answers = [message for message in rig.delivered.messages if isinstance(message, DraftersAre)]
    assert [(answer.serial, answer.problem) for answer in answers] == [
        (7, "The drafter could not be loaded or unloaded (MemoryError); the log says where."),
        (8, "The drafter could not be loaded or unloaded (RuntimeError); the log says where."),
    ]
    assert all(answer.drafters == ("none", "ngram", "foresight", "wrong") for answer in answers)
    assert len(rig.delivered.tokens[1]) == 40
    rig.assert_nothing_is_held()

"""No controller decides by what it cannot know yet: the tokens that its decision would judge.

A twin of a trace is another future: from some position of each request on, everything that drafters would offer and the
target would keep is drawn anew, and requests end later. In one twin that is from the middle on, in another one from the
end on, so that nothing but the length differs. Two runs of a controller, one on each, log what it decides
and what it is told in turn. The logs agree up to where it is first told something else. If they part at a decision, it
was not made from what the controller was told.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from policies.types import MAX_BLOCK_LENGTH
from tests.tuner.replay.small_traces import small_trace
from tuner.replay.baselines import HINDSIGHT, INFORMED
from tuner.replay.baselines.fixed import Fixed
from tuner.replay.copying_oracle import CopyingOracle
from tuner.replay.oracle import Oracle, Truth
from tuner.replay.player import CopyingPlayer, Player, Running, Told, VerifyingPlayer, WatchingPlayer, World
from tuner.replay.run import all_controllers
from tuner.replay.simulate import play
from tuner.replay.trace import DraftTrace, Trace, TracedRequest

DECIDED, TOLD = "decided", "told"
Entry = tuple[str, Any]

ONLINE = [name for name in all_controllers() if name not in HINDSIGHT | INFORMED]


class Logged:
    """A player between the simulator and a controller, which keeps a log of both."""

    def __init__(self, player: Player) -> None:
        self.name = player.name
        self.player = player
        self.log: list[Entry] = []

    def start(self, world: World, memory: Any) -> None:
        self.player.start(world, memory)

    def save(self) -> Any:
        return self.player.save()

    def admit(self, one: Running, load: int) -> None:
        self.log.append((TOLD, (one.index, one.request.route, one.request.language, one.request.prompt_tokens, load)))
        self.player.admit(one, load)

    def ask(self, running: list[Running]) -> None:
        if isinstance(self.player, CopyingPlayer):
            self.player.ask(running)
        self.log.append((DECIDED, [one.copier for one in running]))

    def plan(self, running: list[Running]) -> None:
        self.log.append((TOLD, [(one.copied, one.copied_confidence) for one in running]))
        self.player.plan(running)
        self.log.append((DECIDED, [(one.drafter, one.requested, one.shadows) for one in running]))

    def verify(self, running: list[Running]) -> None:
        self.log.append((TOLD, [(one.requested, one.proposed, one.confidence) for one in running]))
        if isinstance(self.player, VerifyingPlayer):
            self.player.verify(running)
        self.log.append((DECIDED, [one.verified for one in running]))

    def watch(self, told: Told) -> None:
        scored = [(each.one.index, *each[1:]) for each in told.shadows]
        self.log.append((TOLD, (dict(told.draft_seconds), told.shadow_seconds, told.copying_seconds, scored)))
        if isinstance(self.player, WatchingPlayer):
            self.player.watch(told)

    def observe(self, running: list[Running], seconds: float, now: float) -> None:
        self.log.append((TOLD, ([(one.accepted, one.emitted) for one in running], seconds, now)))
        self.player.observe(running, seconds, now)

    def finish(self, one: Running) -> None:
        self.log.append((TOLD, one.index))
        self.player.finish(one)


def another_future(trace: Trace, seed: int, known_share: float) -> Trace:
    """Behind `known_share` of each request other drafts, and up to 8 tokens more."""
    generator = random.Random(seed)
    return replace(trace, requests=tuple(_other(one, generator, known_share) for one in trace.requests))


def _other(one: TracedRequest, generator: random.Random, known_share: float) -> TracedRequest:
    known = int(one.output_tokens * known_share)
    length = one.output_tokens + generator.randint(1, 8)
    drafts = {}
    for name, draft in one.drafts.items():
        offered, kept, confidence = bytearray(length), bytearray(length), bytearray(length)
        run = 0
        for position in reversed(range(length)):
            if position >= known:
                run = run + 1 if generator.random() < 0.5 else 0
                offered[position] = generator.randint(0, MAX_BLOCK_LENGTH)
                confidence[position] = generator.randint(1, 3) if offered[position] else 0
                kept[position] = min(run, offered[position])
            else:
                # What is known stays, but for what it says of the other tokens.
                offered[position], confidence[position] = draft.offered[position], draft.confidence[position]
                reaches = position + draft.kept[position] >= known
                whole = known - position + run if reaches else draft.kept[position]
                kept[position] = min(whole, offered[position])
        drafts[name] = DraftTrace(bytes(offered), bytes(kept), bytes(confidence))
    return replace(one, output_tokens=length, drafts=drafts)


def parting(player: Player, twin: Player, trace: Trace, seed: int, known_share: float) -> str | None:
    """What kind of entry is the first in which two logs differ; None if none does."""
    first, second = Logged(player), Logged(twin)
    play(trace, first, 1)
    play(another_future(trace, seed, known_share), second, 1)
    for (kind, entry), (_, other) in zip(first.log, second.log, strict=False):
        if entry != other:
            return kind
    return None


def changing_trace(seed: int) -> Trace:
    return replace(small_trace(seed, requests=80, loads=(2, 4)), seconds_sd=0.03)


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("known_share", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_no_decision_depends_on_the_tokens_that_it_would_judge(name: str, seed: int, known_share: float) -> None:
    trace = changing_trace(seed)
    truth = Truth(trace)
    factory = all_controllers()[name]
    assert parting(factory(truth), factory(truth), trace, seed, known_share) == TOLD


@pytest.mark.parametrize("name", sorted(INFORMED))
@pytest.mark.parametrize("seed", range(4))
def test_those_that_see_more_than_an_engine_tells_decide_alike_until_the_text_comes_to_what_is_new(
    name: str, seed: int
) -> None:
    trace = replace(changing_trace(seed), loads=(1,) * 80)
    truth = Truth(trace)
    factory = all_controllers()[name]
    decided: list[list[tuple[int, int, str, int]]] = []
    for played in (trace, another_future(trace, seed, 0.5)):
        seen: list[tuple[int, int, str, int]] = []
        player = factory(truth)
        plan = player.plan

        def spy(running: list[Running], plan: Any = plan, seen: Any = seen) -> None:
            plan(running)
            seen.extend((one.index, one.position, one.drafter, one.requested) for one in running)

        player.plan = spy  # type: ignore[method-assign]
        play(played, player, 1)
        decided.append([entry for entry in seen if entry[0] == 0])
    known = trace.requests[0].output_tokens // 2
    early = [[entry for entry in entries if entry[1] < known] for entries in decided]
    assert early[0] == early[1]
    assert early[0]
    assert decided[0] != decided[1]


def test_a_player_that_looks_at_the_future_is_found_out() -> None:
    class Cheat(Fixed):
        def plan(self, running: list[Running]) -> None:
            for one in running:
                one.requested = one.request.drafts["learned"].kept[min(one.position + 9, one.output_tokens - 1)]

    assert parting(Cheat("learned", 4), Cheat("learned", 4), changing_trace(1), 1, 0.5) == DECIDED


def test_a_player_that_knows_where_a_request_ends_is_found_out() -> None:
    class Cheat(Fixed):
        def plan(self, running: list[Running]) -> None:
            for one in running:
                one.requested = 4 if one.output_tokens - one.position > 20 else 0

    assert parting(Cheat("learned", 4), Cheat("learned", 4), changing_trace(1), 1, 1.0) == DECIDED


@pytest.mark.parametrize("seed", range(4))
def test_the_oracles_know_contexts_and_not_what_a_request_will_say(seed: int) -> None:
    trace = changing_trace(seed)
    truth = Truth(trace)
    for oracle in (Oracle, CopyingOracle):
        assert parting(oracle(truth), oracle(truth), trace, seed, 0.5) == TOLD


def test_the_oracle_knows_the_future_which_is_why_it_is_the_oracle() -> None:
    trace = changing_trace(1)
    twin = another_future(trace, 1, 0.5)
    first, second = Logged(Oracle(Truth(trace))), Logged(Oracle(Truth(twin)))
    play(trace, first, 1)
    play(twin, second, 1)
    kinds = [kind for (kind, entry), (_, other) in zip(first.log, second.log, strict=False) if entry != other]
    assert kinds[0] == DECIDED

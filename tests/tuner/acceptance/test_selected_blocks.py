"""What is seen of a text is chosen: by confidence, by what other drafters emit, or by a copier that goes first. Curves
are those of the text all the same."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from policies.stats import CycleStats, SequenceStats, ShadowStats
from policies.types import MAX_BLOCK_LENGTH
from tests.tuner.acceptance.text import CHAT, bursts, cycle
from tests.tuner.simulated_engine import sequence
from tuner.acceptance import Acceptance, Curve
from tuner.acceptance.reblocking import Strip, reblock

TOKENS = 200
REQUESTS = 300


def emits(texts: Sequence[list[bool]], length: int) -> float:
    """Tokens a cycle where blocks of that length are served on them, and a drafter is silent where it is not right at
    first or proposes all the same: that changes nothing."""
    blocks = 0
    for right in texts:
        place = 0
        while place < TOKENS:
            place += min(kept(right, place, length) + 1, TOKENS - place)
            blocks += 1
    return len(texts) * TOKENS / blocks


def kept(right: list[bool], place: int, length: int) -> int:
    length = min(length, TOKENS - place - 1)
    run = 0
    while run < length and right[place + run]:
        run += 1
    return run


class Watched:
    """The shadow of one drafter beside one request: at most one at a time, told when the text has decided it."""

    def __init__(self, key: int, drafter: str, right: list[bool]) -> None:
        self._key, self._drafter, self._right = key, drafter, right
        self._shadow: ShadowStats | None = None

    def cast(self, place: int, requested: int, confidence: int) -> None:
        if self._shadow is None and requested:
            matched = kept(self._right, place, requested) if confidence else 0
            proposed = requested if confidence else 0
            self._shadow = ShadowStats(
                self._key, CHAT, self._drafter, requested, proposed, matched, confidence, censored=False, emitted=0
            )

    def told(self, emitted: int) -> tuple[ShadowStats, ...]:
        if self._shadow is None:
            return ()
        shadow = replace(self._shadow, emitted=self._shadow.emitted + emitted)
        self._shadow = None if shadow.emitted > shadow.matched else shadow
        return (shadow,) if self._shadow is None else ()


def block(
    key: int, drafter: str, requested: int, proposed: int, verified: int, accepted: int, confidence: int
) -> SequenceStats:
    return sequence(
        CHAT,
        key=key,
        drafter=drafter,
        requested=requested,
        proposed=proposed,
        verified=verified,
        accepted=accepted,
        confidence=confidence,
    )


def by_confidence(key: int, right: list[bool], chance: random.Random, verified_share: float) -> list[CycleStats]:
    """Blocks of 4 drafts. Confidence tells good places from bad ones, and the bad are the first to stay unverified.
    Where not all are verified, a cycle of four has no room to ask."""
    served: list[CycleStats] = []
    watched = Watched(key, "draft", right)
    place = 0
    while place < TOKENS:
        requested = min(4, TOKENS - place - 1)
        good = sum(right[place : place + 4]) >= 2
        confident = good if chance.random() < 0.8 else not good
        verifies = verified_share == 1.0 or (confident and chance.random() < verified_share)
        if verified_share < 1.0 and chance.random() < 0.25:
            one = block(key, "draft", 0, 0, 0, 0, 0)
        elif requested and verifies:
            accepted = kept(right, place, requested)
            one = block(key, "draft", requested, requested, requested, accepted, 2 if confident else 1)
        else:
            one = block(key, "draft", requested, requested, 0, 0, 2 if confident else 1)
            watched.cast(place, requested, 2 if confident else 1)
        served.append(cycle(len(served), [one], watched.told(one.emitted)))
        place += one.emitted
    return served


def copies(chance: random.Random) -> list[bool]:
    """Stretches of 12 tokens on average that are copied, after 40 that are not."""
    right, inside = [], False
    for _ in range(TOKENS + MAX_BLOCK_LENGTH):
        inside = chance.random() < (11 / 12 if inside else 1 / 40)
        right.append(inside)
    return right


def copier_first(key: int, right: list[bool], chance: random.Random, most: int = 2) -> list[CycleStats]:
    """A copier proposes where text is copied, and is taken; where it is silent up to `most` drafts of another drafter
    are kept."""
    served: list[CycleStats] = []
    watched = Watched(key, "copier", right)
    place = 0
    while place < TOKENS:
        left = TOKENS - place - 1
        if right[place] and left:
            requested = min(MAX_BLOCK_LENGTH, left)
            one = block(key, "copier", requested, requested, requested, kept(right, place, requested), 1)
        else:
            requested = min(most, left)
            one = block(key, "draft", requested, requested, requested, chance.randint(0, requested), 1)
            watched.cast(place, min(MAX_BLOCK_LENGTH, left), 0)
        served.append(cycle(len(served), [one], watched.told(one.emitted)))
        place += one.emitted
    return served


def learned(
    texts: Sequence[list[bool]],
    drafter: str,
    serve: Callable[[int, list[bool], random.Random], list[CycleStats]],
) -> Curve:
    acceptance = Acceptance(half_life_blocks=1e9)
    chance = random.Random(8)
    for key, right in enumerate(texts):
        for stats in serve(key, right, chance):
            acceptance.fold(stats)
        acceptance.finish(key)
    return acceptance.curves(drafter, [("chat", "en")])[1]["chat", "en"]


@pytest.mark.parametrize("verified_share", [0.35, 0.8, 1.0])
def test_what_is_verified_by_confidence_does_not_move_what_blocks_emit(verified_share: float) -> None:
    chance = random.Random(3)
    texts = [bursts(chance) for _ in range(REQUESTS)]
    curve = learned(texts, "draft", lambda key, right, drawn: by_confidence(key, right, drawn, verified_share))
    for length in (1, 2, 4):
        assert curve.emitted[length] == pytest.approx(emits(texts, length), rel=0.015)


def test_a_copier_that_is_silent_beside_a_drafter_that_emits_much_is_worth_what_it_is() -> None:
    chance = random.Random(3)
    texts = [copies(chance) for _ in range(REQUESTS)]
    curve = learned(texts, "copier", copier_first)
    for length in (1, 2, 4, 8):
        assert curve.emitted[length] == pytest.approx(emits(texts, length), rel=0.02)


def test_a_drafter_that_is_looked_at_now_and_then_is_worth_what_it_is() -> None:
    """A shadow where one plain cycle of ten has room for it; where it was not asked, nothing places it."""

    def serve(key: int, right: list[bool], drawn: random.Random) -> list[CycleStats]:
        served: list[CycleStats] = []
        watched = Watched(key, "draft", right)
        for place in range(TOKENS):
            if drawn.random() < 0.1:
                watched.cast(place, min(4, TOKENS - place - 1), 1)
            one = block(key, "none", 0, 0, 0, 0, 0)
            served.append(cycle(len(served), [one], watched.told(1)))
        return served

    chance = random.Random(3)
    texts = [[chance.random() < 0.6 for _ in range(TOKENS + MAX_BLOCK_LENGTH)] for _ in range(REQUESTS)]
    curve = learned(texts, "draft", serve)
    for length in (1, 2, 4):
        assert curve.emitted[length] == pytest.approx(emits(texts, length), rel=0.02)


def test_a_stretch_that_a_copier_took_is_not_counted_as_if_it_were_like_the_rest() -> None:
    # A copied block of three tokens begins at 4; the drafter, whose blocks emit two tokens, was not asked.
    strip = Strip(11, {4})
    for place in (0, 2, 7, 9):
        strip.mark(place, 1, 4, 4, 4)
    tokens, blocks = [0] * 17, [0] * 17
    reblock(strip, 7, tokens, blocks, ended=True)
    assert (tokens[1], blocks[1]) == (8, 4)


def test_what_another_drafter_emitted_in_a_cycle_in_which_this_one_was_asked_is_counted() -> None:
    strip = Strip(30, range(0, 30, 3))
    for place in range(0, 30, 3):
        strip.mark(place, 0, 4, 0, 0)
    tokens, blocks = [0] * 17, [0] * 17
    reblock(strip, 7, tokens, blocks, ended=True)
    assert tokens[1] >= 28
    assert blocks[1] >= 27


def test_a_faster_drafter_beside_it_is_no_change_of_a_copier() -> None:
    """At first the text is decoded plainly where the copier is silent, so that all of its silence is seen."""
    chance = random.Random(5)
    acceptance = Acceptance(half_life_blocks=1e9)
    for key in range(300):
        for stats in copier_first(key, copies(chance), chance, most=0 if key < 150 else 3):
            acceptance.fold(stats)
        acceptance.finish(key)
    assert [alarm for alarm in acceptance.alarms() if alarm.drafter == "copier"] == []

"""The correction for bursts: the numbers of the research notes, and none where there are no bursts."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from policies.stats import CycleStats, SequenceStats, ShadowStats
from policies.types import MAX_BLOCK_LENGTH
from tests.tuner.acceptance.text import CHAT, Text, bursts, cycle, cycles_of
from tests.tuner.simulated_engine import sequence
from tuner.acceptance import Acceptance, Curve

TOKENS = 200
REQUESTS = 400


def steady(chance: random.Random) -> list[bool]:
    return [chance.random() < 0.6 for _ in range(TOKENS + MAX_BLOCK_LENGTH)]


def texts_of(make: Callable[[random.Random], list[bool]], length: int, drafter: str = "ngram") -> list[Text]:
    chance = random.Random(4)
    return [
        Text(key, key, TOKENS, lengths=(length,), silent=0.0, short=0.0, right=make(chance), drafter=drafter)
        for key in range(REQUESTS)
    ]


def learned(cycles: list[CycleStats], drafter: str = "ngram", feature_heads: tuple[str, ...] = ()) -> Curve:
    acceptance = Acceptance(half_life_blocks=1e9, feature_heads=feature_heads)
    for stats in cycles:
        acceptance.fold(stats)
    for key in range(REQUESTS):
        acceptance.finish(key)
    return acceptance.curves(drafter, [("chat", "en")])[1]["chat", "en"]


def real(make: Callable[[random.Random], list[bool]], length: int) -> float:
    """Tokens a cycle when blocks of that length are served."""
    cycles = cycles_of(texts_of(make, length))
    emitted = [one.emitted for stats in cycles for one in stats.sequences]
    return sum(emitted) / len(emitted)


def cut(curve: Curve, length: int) -> float:
    return 1.0 + sum(curve.unconditioned[:length])


def test_blocks_of_8_tell_what_blocks_of_2_and_4_emit_in_bursts() -> None:
    curve = learned(cycles_of(texts_of(bursts, 8)))
    assert cut(curve, 2) == pytest.approx(1.6964, rel=0.015), "what cutting the blocks gives, as in the notes"
    assert cut(curve, 4) == pytest.approx(2.0490, rel=0.015)
    assert real(bursts, 2) == pytest.approx(1.8963, rel=0.015), "what it really is, as in the notes"
    assert real(bursts, 4) == pytest.approx(2.2248, rel=0.015)
    assert curve.emitted[2] == pytest.approx(1.8963, rel=0.015)
    assert curve.emitted[4] == pytest.approx(2.2248, rel=0.015)
    assert curve.emitted[8] == pytest.approx(real(bursts, 8), rel=0.01)


def test_blocks_of_2_tell_what_longer_ones_emit_in_bursts() -> None:
    curve = learned(cycles_of(texts_of(bursts, 2)))
    assert curve.emitted[2] == pytest.approx(1.8963, rel=0.015)
    assert curve.emitted[4] == pytest.approx(2.2248, rel=0.025)


@pytest.mark.parametrize("length", [2, 8])
def test_there_is_no_correction_where_acceptance_does_not_come_in_bursts(length: int) -> None:
    curve = learned(cycles_of(texts_of(steady, length)))
    for shorter in range(1, length + 1):
        assert curve.emitted[shorter] == pytest.approx(cut(curve, shorter), rel=0.01)
        assert curve.emitted[shorter] == pytest.approx(sum(0.6**j for j in range(shorter + 1)), rel=0.01)


def test_shadows_tell_it_as_well_as_blocks_do() -> None:
    """Plain decoding with a shadow of 8 drafts, told when it is decided, as the engine does it."""
    served: list[CycleStats] = []
    for text in texts_of(bursts, 8):
        assert text.right is not None
        position = 0
        while position < text.tokens:
            requested = min(8, text.tokens - position - 1)
            matched = 0
            while matched < requested and text.right[position + matched]:
                matched += 1
            for token in range(matched + 1):
                shadow = ShadowStats(text.key, CHAT, "ngram", requested, requested, matched, 1, False, matched + 1)
                told = (shadow,) if token == matched else ()
                served.append(cycle(len(served), [plain(text.key)], told))
            position += matched + 1
    curve = learned(served)
    assert curve.emitted[2] == pytest.approx(1.8963, rel=0.015)
    assert curve.emitted[4] == pytest.approx(2.2248, rel=0.015)


def plain(key: int) -> SequenceStats:
    return sequence(CHAT, key=key, drafter="none", requested=0, proposed=0, verified=0, accepted=0, confidence=0)


def test_a_feature_head_is_not_corrected_and_nothing_is_inferred_along_its_positions() -> None:
    curve = learned(cycles_of(texts_of(bursts, 4, "head")), "head", feature_heads=("head",))
    assert curve.emitted[2] == pytest.approx(cut(curve, 2))
    hazards = [after / before for before, after in zip(curve.unconditioned, curve.unconditioned[1:], strict=False)]
    assert hazards[2] > 0.6
    assert hazards[3] < 0.6 * hazards[2], "position 5 was never seen"
    assert learned(cycles_of(texts_of(bursts, 4))).unconditioned[4] > 1.5 * curve.unconditioned[4]


def test_the_emission_of_longer_blocks_is_never_smaller_and_an_outlook_adds_up_to_it() -> None:
    curve = learned(cycles_of(texts_of(bursts, 8)))
    assert curve.emitted[0] == 1.0
    assert all(0.0 <= after - before <= 1.0 for before, after in zip(curve.emitted, curve.emitted[1:], strict=False))
    survival = curve.outlook().survival
    assert all(later <= earlier for earlier, later in itertools.pairwise(survival))
    assert 1.0 + sum(survival) == pytest.approx(curve.emitted[-1])
    assert curve.outlook().offered == curve.offered


def test_an_outlook_shares_out_what_a_longer_block_adds_beyond_a_shorter_one() -> None:
    curve = learned(cycles_of(texts_of(steady, 2)))
    humped = replace(curve, emitted=(1.0, 1.2, 1.6, 1.7, *(1.7,) * 13))
    assert humped.outlook().survival[:4] == pytest.approx((0.3, 0.3, 0.1, 0.0))


def test_requests_that_never_finish_are_re_blocked_when_there_are_too_many() -> None:
    acceptance = Acceptance()
    for key in range(3000):
        acceptance.fold(cycle(key, [sequence(CHAT, key=key, accepted=3)]))
    assert acceptance.live_requests <= 1024

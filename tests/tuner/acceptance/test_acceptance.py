"""Hazards, censoring, pooling and the mixture over confidence."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.stats import BlockEnd, SequenceStats, ShadowStats
from policies.types import MAX_BLOCK_LENGTH
from tests.tuner.acceptance.text import CHAT, cycle
from tests.tuner.simulated_engine import sequence
from tuner.acceptance import Acceptance, Curve, product_limit

KEY = ("chat", "en")


def fold(acceptance: Acceptance, *sequences: SequenceStats, shadows: tuple[ShadowStats, ...] = ()) -> None:
    acceptance.fold(cycle(0, sequences, shadows))


def curve_of(acceptance: Acceptance, key: tuple[str, str] = KEY) -> Curve:
    return acceptance.curves("ngram", [key])[1][key]


def run_length(hazards: tuple[float, ...], longest: int, chance: random.Random) -> int:
    run = 0
    while run < longest and chance.random() < hazards[run]:
        run += 1
    return run


blocks = st.integers(1, MAX_BLOCK_LENGTH).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))


@given(st.lists(blocks, min_size=1, max_size=60))
def test_hazards_are_the_product_limit_of_the_counts(observed: list[tuple[int, int]]) -> None:
    acceptance = Acceptance(strength=1e-12)
    for length, accepted in observed:
        acceptance.add_block("ngram", *KEY, 1, length, accepted)
    curve = curve_of(acceptance).survival.of(1)
    survival = 1.0
    for j in range(1, MAX_BLOCK_LENGTH + 1):
        at = sum(k >= j and a >= j - 1 for k, a in observed)
        kept = sum(k >= j and a >= j for k, a in observed)
        if at == 0:
            break
        survival *= kept / at
        assert curve[j - 1] == pytest.approx(survival, abs=1e-9)
        assert product_limit(observed, j)[-1] == pytest.approx(survival, abs=1e-9)


def test_the_product_limit_ends_where_no_block_reached_and_stays_at_zero_where_all_were_rejected() -> None:
    assert product_limit([(2, 2), (2, 1)], 4) == (1.0, 0.5)
    assert product_limit([(4, 1), (2, 1)], 4) == (1.0, 0.0, 0.0, 0.0)
    assert product_limit([], 4) == ()


def test_mixed_lengths_and_cut_blocks_do_not_bias_the_curve() -> None:
    chance = random.Random(3)
    hazards = (0.8, 0.7, 0.9, 0.6, 0.5, 0.9, 0.8, 0.7)
    acceptance = Acceptance(half_life_blocks=1e9)
    for _ in range(20_000):
        requested = chance.choice((2, 4, 8))
        verified = chance.randint(1, requested)
        accepted = run_length(hazards, verified, chance)
        # The end of the text does not depend on the drafter; it is seen as one only where drafts were still kept.
        text_ends = chance.randint(0, 40)
        end = BlockEnd.CENSORED if text_ends < accepted else None
        kept = min(accepted, text_ends)
        fold(
            acceptance,
            sequence(CHAT, requested=requested, proposed=requested, verified=verified, accepted=kept, end=end),
        )
    curve = curve_of(acceptance).survival.of(1)
    truth = 1.0
    for j, hazard in enumerate(hazards):
        truth *= hazard
        assert curve[j] == pytest.approx(truth, abs=0.015)


def test_a_short_proposal_is_a_rejection_at_its_next_position_and_a_silent_one_at_the_first() -> None:
    acceptance = Acceptance(strength=1e-12)
    for _ in range(10):
        fold(acceptance, sequence(CHAT, requested=8, proposed=3, verified=3, accepted=3))
    for _ in range(30):
        fold(acceptance, sequence(CHAT, requested=8, proposed=0, verified=0, accepted=0, confidence=0))
    curve = curve_of(acceptance)
    assert curve.survival.of(1)[:4] == pytest.approx((1.0, 1.0, 1.0, 0.0), abs=1e-9)
    assert set(curve.survival.of(0)) == {0.0}
    assert curve.shares == pytest.approx((0.75, 0.25))
    assert curve.unconditioned[:4] == pytest.approx((0.25, 0.25, 0.25, 0.0), abs=1e-9)
    assert curve.blocks == pytest.approx(40, rel=0.01)


def test_what_the_allocation_left_out_is_no_rejection() -> None:
    acceptance = Acceptance(strength=1e-12)
    fold(acceptance, sequence(CHAT, requested=8, proposed=8, verified=2, accepted=2))
    fold(acceptance, sequence(CHAT, requested=8, proposed=8, verified=8, accepted=3))
    assert curve_of(acceptance).survival.of(1)[:5] == pytest.approx((1.0, 1.0, 1.0, 0.0, 0.0), abs=1e-9)


def test_a_block_cut_by_an_end_counts_what_it_kept_and_no_rejection() -> None:
    acceptance = Acceptance(strength=1e-12)
    fold(acceptance, sequence(CHAT, accepted=2, emitted=2, end=BlockEnd.CENSORED))
    fold(acceptance, sequence(CHAT, accepted=4))
    assert curve_of(acceptance).survival.of(1)[:5] == pytest.approx((1.0, 1.0, 1.0, 1.0, 0.0), abs=1e-9)


def test_plain_sequences_and_unasked_drafters_count_for_nothing() -> None:
    acceptance = Acceptance()
    fold(acceptance, sequence(CHAT, drafter="none", requested=0, proposed=0, verified=0, confidence=0))
    fold(acceptance, sequence(CHAT, requested=0, proposed=0, verified=0, confidence=0))
    assert acceptance.contexts("ngram") == ()
    assert acceptance.contexts("none") == ()


def test_a_shadow_counts_like_the_block_that_it_would_have_been() -> None:
    shadowed, verified = Acceptance(), Acceptance()
    shadows = (
        ShadowStats(1, CHAT, "ngram", 8, 8, 5, 2, censored=False, emitted=6),
        ShadowStats(1, CHAT, "ngram", 8, 3, 3, 2, censored=False, emitted=4),
        ShadowStats(1, CHAT, "ngram", 8, 8, 4, 2, censored=True, emitted=4),
    )
    fold(shadowed, shadows=shadows)
    fold(verified, sequence(CHAT, accepted=5, confidence=2))
    fold(verified, sequence(CHAT, proposed=3, verified=3, accepted=3, confidence=2))
    fold(verified, sequence(CHAT, accepted=4, emitted=4, confidence=2, end=BlockEnd.CENSORED))
    assert curve_of(shadowed) == curve_of(verified)


def test_verifying_only_confident_proposals_does_not_move_what_people_read() -> None:
    chance = random.Random(5)
    shares, hazards = (0.4, 0.4, 0.2), {1: 0.1, 2: 0.9}
    acceptance = Acceptance(half_life_blocks=1e9)
    verified_only = []
    for _ in range(6000):
        bucket = chance.choices((0, 1, 2), shares)[0]
        if bucket == 0:
            fold(acceptance, sequence(CHAT, proposed=0, verified=0, confidence=0))
            continue
        run = run_length((hazards[bucket],) * 8, 8, chance)
        if bucket == 1:
            shadow = ShadowStats(1, CHAT, "ngram", 8, 8, run, 1, censored=False, emitted=1)
            fold(acceptance, sequence(CHAT, verified=0, confidence=1), shadows=(shadow,))
        else:
            fold(acceptance, sequence(CHAT, accepted=run, confidence=2))
            verified_only.append(run)
    curve = curve_of(acceptance)
    truth = [0.4 * 0.1**j + 0.2 * 0.9**j for j in range(1, 9)]
    assert curve.unconditioned[:8] == pytest.approx(truth, abs=0.02)
    assert curve.shares == pytest.approx(shares, abs=0.02)
    assert sum(run >= 1 for run in verified_only) / len(verified_only) > 0.85, "the naive reading is far off"


def test_a_new_pair_starts_from_its_route_and_its_language() -> None:
    acceptance = Acceptance()
    rates = {("edit", "en"): 9, ("edit", "da"): 7, ("story", "en"): 3, ("story", "da"): 1}
    for (route, language), kept in rates.items():
        for index in range(300):
            acceptance.add_block("ngram", route, language, 1, 1, int(index % 10 < kept))
    pooled, curves = acceptance.curves("ngram", [("edit", "fr"), ("story", "fr"), ("chat", "en"), ("chat", "da")])
    first = {key: curve.survival.of(1)[0] for key, curve in curves.items()}
    assert first["edit", "fr"] > 0.7 > pooled.survival.of(1)[0] > 0.3 > first["story", "fr"]
    assert first["chat", "en"] > first["chat", "da"]
    assert all(curve.blocks == 0 for curve in curves.values())


def test_own_evidence_outweighs_relatives() -> None:
    acceptance = Acceptance()
    for _ in range(1000):
        acceptance.add_block("ngram", "edit", "en", 1, 4, 4)
    for _ in range(200):
        acceptance.add_block("ngram", "edit", "da", 1, 4, 0)
    assert curve_of(acceptance, ("edit", "da")).survival.of(1)[0] < 0.1
    assert curve_of(acceptance, ("edit", "en")).survival.of(1)[3] > 0.95


def test_old_blocks_fade() -> None:
    # A step from 45 to 55 % is too small to be found as a change.
    acceptance = Acceptance(half_life_blocks=500.0)
    for index in range(2000):
        acceptance.add_block("ngram", *KEY, 1, 4, 4 * (index * 7 % 20 < 9))
    for index in range(1500):
        acceptance.add_block("ngram", *KEY, 1, 4, 4 * (index * 7 % 20 < 11))
    curve = curve_of(acceptance)
    assert acceptance.alarms() == ()
    assert curve.survival.of(1)[0] == pytest.approx(0.55 - 0.1 * 0.5**3, abs=0.01)
    assert curve.blocks == pytest.approx(500 / 0.693 * (1 - 0.5**7), rel=0.1)


def test_with_nothing_known_each_further_position_is_as_likely_as_the_last() -> None:
    pooled, _ = Acceptance().curves("ngram", [])
    assert pooled.survival.of(1)[:4] == pytest.approx((0.5, 0.25, 0.125, 0.0625))
    assert pooled.survival.of(7) == pooled.survival.of(1)
    assert set(pooled.survival.of(0)) == {0.0}


@given(st.lists(st.tuples(st.integers(0, 4), blocks), max_size=80))
def test_curves_never_rise_and_stay_probabilities(observed: list[tuple[int, tuple[int, int]]]) -> None:
    acceptance = Acceptance()
    for bucket, (length, accepted) in observed:
        acceptance.add_block("ngram", *KEY, bucket, length, 0 if bucket == 0 else accepted)
    curve = curve_of(acceptance)
    assert sum(curve.shares) == pytest.approx(1.0)
    for row in (*curve.survival.by_confidence, curve.unconditioned):
        assert all(0.0 <= later <= earlier <= 1.0 for earlier, later in zip((1.0, *row), row, strict=False))

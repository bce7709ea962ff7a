"""Which drafter proposes first in a context, and what it is worth together with the one behind it."""

from dataclasses import replace

import numpy as np
import pytest

from policies.cycle_policy import DraftCost, PassCost, Survival
from policies.types import Arm
from tuner.acceptance import Curve
from tuner.baseline import Gain
from tuner.choice import Worth, choose, menus
from tuner.copiers import Copiers, copying
from tuner.cost.rates import CUTS, preceded, profiles, rates
from tuner.evidence import note_learned
from tuner.survivals import Published
from tuner.together import less

COST = PassCost((1, 8, 64), (0.010, 0.0105, 0.030), 0.0001, 0.0)
DRAFTING = {
    "ngram": DraftCost(1e-5, 2e-5, 0.0, 1e-6),
    "head": DraftCost(1e-4, 5e-5, 5e-4, 3e-5),
}
WORTH = Worth(16, (1, 4, 16), COST, DRAFTING, 100.0)
KEY = ("code", "en")
LENGTH = 16


def curve(rows: list[tuple[float, float]], shares: list[float]) -> Curve:
    """By confidence bucket from 1 upwards: hazards of the first position and of those behind it."""
    survival = [(0.0,) * LENGTH, *(tuple(first * later**j for j in range(LENGTH)) for first, later in rows)]
    whole = tuple(sum(share * row[j] for share, row in zip(shares, survival, strict=True)) for j in range(LENGTH))
    offered = (1.0 - shares[0],) * LENGTH
    emitted = (1.0, *(1.0 + sum(whole[: j + 1]) for j in range(LENGTH)))
    return Curve(
        survival=Survival(tuple(survival)),
        shares=tuple(shares),
        unconditioned=whole,
        offered=offered,
        emitted=emitted,
        low=whole,
        high=whole,
        emitted_low=emitted,
        emitted_high=emitted,
        blocks=1000.0,
    )


HEAD = curve([(0.5, 0.6)], [0.0, 1.0])
REPEATING = curve([(0.4, 0.5), (0.97, 0.97)], [0.5, 0.2, 0.3])
SILENT = curve([(0.3, 0.2), (0.5, 0.2)], [0.999, 0.0009, 0.0001])


def test_what_takes_next_to_no_time_can_only_copy() -> None:
    assert copying(DRAFTING, COST, DRAFTING) == {"ngram"}
    assert copying({"unmeasured": None}, COST, DRAFTING) == frozenset()


def test_where_text_repeats_itself_the_copier_goes_first_at_every_load_and_knows_how_sure_it_is() -> None:
    found = Copiers(Published()).of(KEY, {"ngram": REPEATING, "head": HEAD}, WORTH)
    assert found is not None
    assert (found.drafter, found.most_load) == ("ngram", 16)
    assert found.of(2).survival[0] == pytest.approx(0.97)
    assert found.of(9) == found.of(2)


def test_a_copier_that_is_nearly_always_silent_is_not_worth_its_time() -> None:
    assert Copiers(Published()).of(KEY, {"ngram": SILENT, "head": HEAD}, WORTH) is None


def test_without_another_drafter_there_is_nothing_to_go_before() -> None:
    assert Copiers(Published()).of(KEY, {"ngram": REPEATING}, WORTH) is None


def test_a_drafter_behind_a_copier_is_worth_what_both_bring() -> None:
    alone, copied = profiles([HEAD], 8), profiles([REPEATING], 8)
    both = preceded(alone, [REPEATING])
    sure = sum(REPEATING.survival.by_confidence[2][:8])
    assert both.emitted[0, 0, 0, 4] == pytest.approx(0.3 * (1.0 + sure) + 0.7 * alone.emitted[0, 0, 0, 4])
    assert both.rows[0, 0, 4] == pytest.approx(0.3 * 8 + 0.7 * 4)
    # Rows are 8 in 3 of 10 blocks and 4 in the others.
    assert both.variance[0, 0, 4] == pytest.approx(0.3 * 64 + 0.7 * 16 - (0.3 * 8 + 0.7 * 4) ** 2)
    assert both.asked == pytest.approx(0.7 * alone.asked)
    assert (both.emitted[0, 0, 0, 0], both.rows[0, 0, 0], both.variance[0, 0, 0]) == (1.0, 0.0, 0.0)
    reached = [
        float(np.max(rates(one, [DRAFTING[name]], COST, (1,), 100.0)[:, :, 0]))
        for one, name in ((both, "head"), (alone, "head"), (copied, "ngram"))
    ]
    assert reached[0] > 1.03 * max(reached[1:])


def test_copied_drafts_are_priced_as_long_as_they_come_however_short_the_blocks_of_the_other_drafter() -> None:
    both = preceded(profiles([HEAD], 8), [REPEATING])
    load = 16
    found = rates(both, [None], COST, (load,), 100.0)[0, 0, 0, 0]
    # From 8 tokens on the cost is a line, so the mean of the rows is all that counts.
    seconds = [COST.seconds(load + load * rows, load, 100 * load) for rows in both.rows[0, 0]]
    assert found == pytest.approx(load * both.emitted[0, 0, 0] / np.array(seconds), rel=1e-6)


def test_of_a_copied_proposal_too_only_what_is_likely_enough_is_verified() -> None:
    both = preceded(profiles([HEAD], 8), [curve([(0.97, 0.8)], [0.5, 0.5])])
    cut = CUTS.index(0.5)
    likely = [0.97 * 0.8**j for j in range(8) if 0.97 * 0.8**j >= 0.5]
    head = both.rows[0, cut, 4] - 0.5 * len(likely)
    assert head == pytest.approx(0.5 * 1.0), "of the other one's block only the first draft"
    assert both.emitted[0, 0, cut, 4] == pytest.approx(0.5 * (1.0 + sum(likely)) + 0.5 * 1.5)


def test_a_drafter_behind_a_copier_is_worth_no_less_than_the_copier_alone_and_named_before_it() -> None:
    useless = curve([(0.01, 0.1)], [0.0, 1.0])
    curves = {"ngram": {KEY: REPEATING}, "head": {KEY: useless}}
    (menu,) = menus([KEY], curves, WORTH, {KEY: REPEATING}, {"ngram"}).values()
    assert menu.worth["head"] >= menu.worth["ngram"]
    assert choose(menu, None, 1, 0.02).drafter == "head"
    (alone,) = menus([KEY], curves, WORTH, {}, {"ngram"}).values()
    assert alone.worth["head"][0] < alone.worth["ngram"][0]
    assert choose(alone, None, 1, 0.02).drafter == "ngram"
    assert (menu.first, alone.first) == ({"head": "ngram"}, {})


def test_the_evidence_says_what_a_copier_does_alone_and_whom_others_come_after() -> None:
    curves = {"ngram": REPEATING, "head": HEAD, "other": replace(HEAD)}
    (menu,) = menus(
        [KEY], {name: {KEY: one} for name, one in curves.items()}, WORTH, {KEY: REPEATING}, {"ngram"}
    ).values()
    menu = less(menu, {"head": (0.0,) * len(menu.loads)})
    predicted = [(1, menu.gain("head", 1))]
    told = note_learned(Arm.fixed("head", 2), HEAD, Gain(None, 0, 0), menu, predicted, 1)
    both, alone = menu.gain("head", 1), menu.gain("ngram", 1)
    assert f"{both:.2f}x plain at load 1, of which ngram, which proposes first, would do {alone:.2f}x alone" in told
    assert f"others would do other after ngram {menu.gain('other', 1):.2f}x, ngram alone {alone:.2f}x" in told
    (bare,) = menus([KEY], {name: {KEY: one} for name, one in curves.items()}, WORTH, {}, {"ngram"}).values()
    told = note_learned(Arm.fixed("head", 2), HEAD, Gain(None, 0, 0), bare, predicted, 1)
    assert "proposes first" not in told
    assert f"would do other {bare.gain('other', 1):.2f}x, ngram {alone:.2f}x" in told

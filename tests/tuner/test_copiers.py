"""Which drafter proposes first in a context, and what it is worth together with the one behind it."""

import numpy as np
import pytest

from policies.cycle_policy import DraftCost, PassCost, Survival
from tuner.acceptance import Curve
from tuner.choice import Worth
from tuner.copiers import Copiers, copying
from tuner.cost.rates import preceded, profiles, rates
from tuner.survivals import Published

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
    assert reached[0] > 1.05 * max(reached[1:])

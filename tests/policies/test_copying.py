"""Copied proposals are taken where they promise more than the drafter that a sequence was given."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from policies.copying import CopyingChoice
from policies.cycle_policy import DraftCost, Outlook, PassCost

COST = PassCost((1, 8, 64), (0.010, 0.011, 0.030), 0.0001, 1e-6)
LEARNED = DraftCost(0.0002, 0.0001, 0.0005, 0.00001)
SURVIVALS = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).map(
    lambda hazards: tuple(accumulate(hazards, lambda left, right: left * right))
)


def certain(survival: tuple[float, ...]) -> Outlook:
    return Outlook(survival, (1.0,) * len(survival))


def net(outlook: Outlook, most: int, price: float, step: float, call: float) -> float:
    """By looking at every length."""
    return max(
        [
            outlook.tokens[k] - price * outlook.rows[k] - step * k - call
            for k in range(min(most, len(outlook.survival)) + 1)
        ]
    )


@given(SURVIVALS, SURVIVALS, st.integers(0, 8), st.integers(1, 8), st.integers(1, 16))
def test_what_is_taken_is_worth_more_than_every_length_of_the_other(
    copied: tuple[float, ...], other: tuple[float, ...], proposed: int, cap: int, load: int
) -> None:
    choice = CopyingChoice(COST, load, 100 * load)
    plain = COST.seconds(load, load, 100 * load)
    rate = load / plain
    price = rate * (COST.seconds(3 * load, load, 100 * load) - plain) / (2 * load)
    worth = net(certain(copied), proposed, price, 0.0, 0.0)
    alternative = net(
        certain(other),
        cap,
        price + rate * LEARNED.row_seconds,
        rate * LEARNED.step_seconds / load,
        rate * (LEARNED.sequence_seconds + LEARNED.call_seconds / load),
    )
    taken = choice.takes(certain(copied), proposed, certain(other), cap, LEARNED)
    if abs(worth - max(alternative, 0.0)) > 1e-9:
        assert taken is (proposed > 0 and worth > max(alternative, 0.0))


def test_a_sure_copy_goes_before_a_model_and_an_unsure_one_behind_it() -> None:
    choice = CopyingChoice(COST, 1, 100)
    model = Outlook((0.7, 0.5, 0.35, 0.25), (1.0, 1.0, 0.9, 0.8))
    assert choice.takes(certain((0.98, 0.96, 0.94, 0.92, 0.9)), 5, model, 4, LEARNED)
    assert not choice.takes(certain((0.3, 0.1, 0.05, 0.0, 0.0)), 5, model, 4, LEARNED)
    assert not choice.takes(certain((0.98, 0.96, 0.94, 0.92, 0.9)), 1, model, 4, LEARNED)


def test_a_copy_that_costs_more_rows_than_it_brings_is_left_where_the_cycle_is_full() -> None:
    full = PassCost((1, 1000), (0.001, 1.0), 0.0, 0.0)
    nothing = Outlook((), ())
    assert not CopyingChoice(full, 64, 0).takes(certain((0.5, 0.3)), 2, nothing, 4, None)
    assert CopyingChoice(COST, 1, 0).takes(certain((0.5, 0.3)), 2, nothing, 4, None)

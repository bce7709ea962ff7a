"""Whether a copied proposal is taken in place of the drafter that a sequence was given.

A drafter that copies from the text takes next to no time, so it may propose before a cycle is planned. What it offers
is then known, and how sure it is; of the other drafter only the average is. Taken is what brings more tokens, less
what its rows and its drafting are worth elsewhere.
"""

from bisect import bisect_right

from policies.cycle_policy import DraftCost, Outlook, PassCost


class CopyingChoice:
    """For one cycle of `load` sequences."""

    def __init__(self, cost: PassCost, load: int, kv_tokens: int) -> None:
        plain_seconds = cost.seconds(load, load, kv_tokens)
        self._load = load
        self._rate = load / plain_seconds
        # Between a few rows and many, so that a step of the cost does not decide.
        self._row_price = self._rate * (cost.seconds(3 * load, load, kv_tokens) - plain_seconds) / (2 * load)

    def takes(self, copied: Outlook, proposed: int, other: Outlook, cap: int, drafting: DraftCost | None) -> bool:
        """Whether `proposed` copied drafts are worth more than a block of the other drafter.

        Args:
            copied: of a proposal that is as sure as this one.
            other: of the drafter that the sequence was given; `drafting` is its cost, None where it is free.
            cap: the longest block that may be asked of it.
        """
        if proposed <= 0:
            return False
        price = self._row_price
        length = min(copied.lengths[bisect_right(copied.prices, price)], proposed)
        worth = copied.tokens[length] - price * copied.rows[length]
        if worth <= 0.0:
            return False
        call = step = 0.0
        if drafting is not None:
            # Its calls and steps are shared by those that run beside; how many use it is not known yet.
            price += self._rate * drafting.row_seconds
            step = self._rate * drafting.step_seconds / self._load
            call = self._rate * (drafting.sequence_seconds + drafting.call_seconds / self._load)
        length = min(other.lengths[bisect_right(other.prices, price + step)], cap)
        alternative = other.tokens[length] - price * other.rows[length] - step * length - call
        return worth > alternative

"""Whether a copied proposal is taken in place of the drafter that a sequence was given.

A drafter that copies from the text takes next to no time, so it may propose before a cycle is planned. What it offers
is then known, and how sure it is; of the other drafter only the average is. Taken is what brings more tokens, less
what its rows and its drafting are worth elsewhere.
"""

from bisect import bisect_right

from policies.cycle_policy import DraftCost, Outlook, PassCost


class CopyingChoice:
    """For one cycle of `load` sequences. Worth is in tokens."""

    def __init__(self, cost: PassCost, load: int, kv_tokens: int) -> None:
        plain_seconds = cost.seconds(load, load, kv_tokens)
        self._load = load
        self._rate = load / plain_seconds
        # Between a few rows and many, so that a step of the cost does not decide.
        self._row_price = self._rate * (cost.seconds(3 * load, load, kv_tokens) - plain_seconds) / (2 * load)

    def takes(self, copied: Outlook, proposed: int, other: Outlook, cap: int, drafting: DraftCost | None) -> bool:
        """Whether `proposed` copied drafts are worth more than a block of the other drafter, and than none.

        Args:
            copied: of a proposal that is as sure as this one.
            other: of the drafter that the sequence was given; `drafting` is its cost, None where it is free.
            cap: the longest block that may be asked of it.
        """
        worth = self.copied(copied, proposed)
        return worth > 0.0 and worth > self.other(other, cap, drafting)

    def copied(self, outlook: Outlook, proposed: int) -> float:
        """Worth of a proposal at hand."""
        price = self._row_price
        length = min(outlook.lengths[bisect_right(outlook.prices, price)], proposed)
        return outlook.tokens[length] - price * outlook.rows[length]

    def other(self, outlook: Outlook, cap: int, drafting: DraftCost | None) -> float:
        """Worth of a block that is still to be drafted; negative where it is better left."""
        price = self._row_price
        call = step = 0.0
        if drafting is not None:
            # Its calls and steps are shared by those that run beside; how many use it is not known yet.
            price += self._rate * drafting.row_seconds
            step = self._rate * drafting.step_seconds / self._load
            call = self.price(drafting)
        length = min(outlook.lengths[bisect_right(outlook.prices, price + step)], cap)
        return outlook.tokens[length] - price * outlook.rows[length] - step * length - call

    def price(self, drafting: DraftCost) -> float:
        """What asking costs, in tokens that its time would bring."""
        return self._rate * (drafting.sequence_seconds + drafting.call_seconds / self._load)

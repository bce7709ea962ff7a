"""Sequences that are alike, by drafter: the lengths that are best for them at given prices, and what they come to."""

from bisect import bisect_right
from collections.abc import Sequence

from policies.cycle_policy import DraftCost, Outlook


class Group:
    """Sequences that are alike: one drafter, one outlook, one cap."""

    __slots__ = (
        "_silence",
        "asked",
        "cap",
        "count",
        "drafter",
        "length",
        "lengths",
        "members",
        "prices",
        "rows",
        "silent",
        "steps",
        "tokens",
    )

    def __init__(self, drafter: str, outlook: Outlook, cap: int) -> None:
        self.drafter = drafter
        self.tokens = outlook.tokens
        self.rows = outlook.rows
        self.steps = outlook.steps
        self.lengths = outlook.lengths
        self.prices = outlook.prices
        self.silent = outlook.silence
        """Of one of them."""
        self.asked = cap
        self.cap = min(cap, len(outlook.survival))
        """Of `asked`, what anything is known of."""
        self.members: list[int] = []
        self.count = 0
        """Of `members`, once they are all there."""
        self.length = 0
        self._silence: Sequence[float] = ()

    @property
    def silence(self) -> Sequence[float]:
        """The probability that none of them offers position j."""
        if not self._silence:
            count = self.count
            self._silence = self.silent if count == 1 else [silent**count for silent in self.silent]
        return self._silence


class Drafter:
    """The groups of one drafter that are weighed, and what its forced blocks pay for already."""

    __slots__ = ("cost", "forced", "forced_rows", "groups", "silent")

    def __init__(self, cost: DraftCost) -> None:
        self.cost = cost
        self.groups: list[Group] = []
        self.forced = 0
        self.forced_rows = 0.0
        self.silent: list[float] = []
        """The probability that no forced block offers position j."""

    def force(self, outlook: Outlook, cap: int) -> tuple[float, float]:
        """Count a block that is asked for in any case; its expected tokens and rows."""
        length = min(cap, len(outlook.survival))
        self.forced += 1
        self.forced_rows += outlook.rows[length]
        self.silent += [1.0] * (length - len(self.silent))
        for position in range(length):
            self.silent[position] *= outlook.silence[position]
        return outlook.tokens[length], outlook.rows[length]

    def forced_seconds(self) -> float:
        """Expected seconds of drafting for the forced blocks."""
        return self.cost.seconds(self.forced, len(self.silent) - sum(self.silent), self.forced_rows)

    def is_free(self, limit: float) -> bool:
        """Whether drafting up to every cap takes no more than `limit` seconds."""
        cost = self.cost
        if cost.call_seconds + cost.step_seconds > limit:
            return False
        asked = rows = longest = 0
        for group in self.groups:
            asked += group.count
            rows += group.count * group.asked
            if group.asked > longest:
                longest = group.asked
        return cost.seconds(asked, longest, rows) <= limit

    def choose(self, row_price: float, rate: float) -> tuple[float, float, float]:
        """Set the best length of each group where a row of the target costs `row_price` and a second `rate` tokens, the
        call left out. Returns the expected tokens, rows and drafting seconds beyond those of forced blocks."""
        cost = self.cost
        step_seconds = cost.step_seconds
        price = row_price + rate * cost.row_seconds
        least = rate * cost.sequence_seconds
        step_price = rate * step_seconds
        steps, depth = 0.0, 0
        if step_price:
            depth, steps = self._depth(price, step_price)
            if not depth:
                self.drop()
                return 0.0, 0.0, 0.0
        tokens = rows = 0.0
        asked = 0
        for group in self.groups:
            if step_price:
                length = group.length
                if length > depth:
                    length = depth
            else:
                length = group.lengths[bisect_right(group.prices, price)]
                if length > group.cap:
                    length = group.cap
            more, added = group.tokens[length], group.rows[length]
            if more - price * added > least:
                group.length = length
                count = group.count
                tokens += count * more
                rows += count * added
                asked += count
            else:
                group.length = 0
        if not asked:
            return 0.0, 0.0, 0.0
        # `DraftCost.seconds`, written out: this runs for every price that is tried.
        seconds = cost.call_seconds + cost.sequence_seconds * asked + step_seconds * steps + cost.row_seconds * rows
        return tokens, rows, seconds - cost.call_seconds if self.forced else seconds

    def expected(self) -> tuple[float, float, float]:
        """Tokens, rows and drafting seconds at the lengths that are set, beyond those of forced blocks."""
        steps = 0.0
        if self.cost.step_seconds:
            for position in range(max([group.length for group in self.groups])):
                before = silent = self.silent[position] if position < len(self.silent) else 1.0
                for group in self.groups:
                    if group.length > position:
                        silent *= group.silence[position]
                steps += before - silent
        tokens = rows = 0.0
        asked = 0
        for group in self.groups:
            length = group.length
            if length:
                count = group.count
                tokens += count * group.tokens[length]
                rows += count * group.rows[length]
                asked += count
        seconds = self.cost.seconds(asked, steps, rows)
        return tokens, rows, seconds - self.cost.call_seconds if asked and self.forced else seconds

    def drop(self) -> None:
        """Set every length to 0."""
        for group in self.groups:
            group.length = 0

    def _depth(self, price: float, step_price: float) -> tuple[int, float]:
        """Up to which position drafting goes on, and the expected steps: those in which any block offers one more.

        Sets the length of each group that is best at `price` where steps are free.
        """
        groups = []
        longest, left = 0, 0.0
        """`left`: what the positions ahead bring at most, steps left out."""
        for group in self.groups:
            length = group.lengths[bisect_right(group.prices, price)]
            if length > group.cap:
                length = group.cap
            group.length = length
            if length:
                count = group.count
                groups.append((length, count, group.steps, group.silence))
                left += count * (group.tokens[length] - price * group.rows[length])
                if length > longest:
                    longest = length
        value = steps = best = best_steps = 0.0
        position = depth = 0
        forced = self.silent
        while position < longest and value + left > best:
            before = silent = forced[position] if position < len(forced) else 1.0
            gain = 0.0
            for length, count, each, none in groups:
                if length > position:
                    tokens, offered = each[position]
                    gain += count * (tokens - price * offered)
                    silent *= none[position]
            left -= gain
            steps += before - silent
            value += gain - step_price * (before - silent)
            position += 1
            if value > best:
                best, depth, best_steps = value, position, steps
        return depth, best_steps
